"""What an engine is asked, and what it answers."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from eyas.config import Generation


@dataclass(frozen=True)
class Request:
    """One prompt, in the target's tokens."""

    id: str
    input_ids: list[int]


@dataclass(frozen=True)
class Answer:
    """What the target generated: output_ids end with the token that ended the turn when finish_reason is stop.

    seconds: from asking to the whole answer.
    """

    id: str
    output_ids: list[int]
    finish_reason: Literal["stop", "length"]
    seconds: float


@dataclass(frozen=True)
class Refusal:
    """A prompt without an answer: `reason` is counted, `detail` says what happened."""

    id: str
    reason: Literal["prompt_too_long", "refused", "failed"]
    detail: str


class Engine(Protocol):
    """A way to ask the target."""

    def generate(self, requests: Iterable[Request], sampling: Generation) -> Iterator[Answer | Refusal]:
        """One Answer or Refusal for each request, in any order, as they come; takes requests as it has room.

        `requests` may be endless and slow: an engine holds at most `sampling.concurrency` of them. EyasError when the
        target is gone for good; what was given until then is good.
        """

    def fingerprint(self) -> dict:
        """What the answers depend on besides the sampling: model, engine, version, flags; plain JSON."""


def seed_of(sampling: Generation, request_id: str) -> int:
    """The seed of one prompt (31 bits): from the sampling's seed and the prompt's id, so in no order's debt."""
    digest = hashlib.blake2b(f"{sampling.seed}/{request_id}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF
