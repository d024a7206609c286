"""What an engine is asked, and what it answers."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from eyas.config import Generation, Target
from eyas.states import Slot


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


@dataclass(frozen=True)
class CaptureRequest:
    """One sample whose hidden states belong in `slot`; the id is unique within the call."""

    id: str
    input_ids: list[int]
    slot: Slot


@dataclass(frozen=True)
class Captured:
    """The rows of a request are written."""

    id: str


class Engine(Protocol):
    """A way to ask the target."""

    def generate(self, requests: Iterable[Request], sampling: Generation) -> Iterator[Answer | Refusal]:
        """One Answer or Refusal for each request, in any order, as they come; takes requests as it has room.

        `requests` may be endless and slow: an engine holds at most `sampling.concurrency` of them. EyasError when the
        target is gone for good; what was given until then is good.
        """

    def capture(self, requests: Iterable[CaptureRequest], concurrency: int) -> Iterator[Captured | Refusal]:
        """One Captured or Refusal for each request, in any order, as they come; at most `concurrency` at once.

        Rows: bf16; aux: the states of the configured layers, low, mid, high; last: after the final norm.
        """


# Flags of the server that decide what the model says; all others (memory, batching, graphs) may change in mid-run.
DECIDING_FLAGS = ("revision", "dtype", "quantization", "kv-cache-dtype", "json-model-override-args", "load-format")


def identity_of(target: Target) -> dict:
    """What answers depend on besides sampling and template: the model, where it comes from, the engine; plain JSON."""
    identity = {"engine": target.engine, "model": target.model}
    if target.weights is not None:
        identity["weights"] = target.weights.model_dump(mode="json", exclude_none=True)
    if target.engine == "sglang":
        flags = {k.replace("_", "-"): v for k, v in target.sglang.flags.items()}
        identity |= {k: flags[k] for k in DECIDING_FLAGS if k in flags}
    return identity


def seed_of(sampling: Generation, request_id: str) -> int:
    """The seed of one prompt (31 bits): from the sampling's seed and the prompt's id, so in no order's debt."""
    digest = hashlib.blake2b(f"{sampling.seed}/{request_id}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF
