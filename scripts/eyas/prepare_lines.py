"""Candidates → lines: conversations are rendered, tokenized and judged, in several processes, in order."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import orjson

from eyas.chat import Chat, NotRenderable, Plan
from eyas.prepare_rows import Payload, Settings
from eyas.workers import Workers

CHUNK_BYTES = 256 << 10  # of conversations that are encoded in one go


@dataclass(slots=True)
class Encoded:
    """A record's line, and its length and trainable tokens."""

    line: bytes
    tokens: int
    trainable: int
    left_out: int


@dataclass(slots=True)
class Turned:
    """A conversation that the encoder turned down."""

    reason: str
    detail: str


class Encoder:
    """Payloads → lines, in the process where it is called."""

    def __init__(self, settings: Settings, chat: Chat):
        self.settings, self.chat = settings, chat

    def encode(self, payloads: list[Payload]) -> list[Encoded | Turned]:
        """One result for each payload; one call of the tokenizer for all of them."""
        contents = [orjson.loads(p.content) for p in payloads]
        plans = [self._plan(c) for c in contents]
        encoded = iter(self.chat.encode([p for p in plans if not isinstance(p, Turned)]))
        return [
            plan if isinstance(plan, Turned) else self._line(payload, content, plan, *next(encoded))
            for payload, content, plan in zip(payloads, contents, plans, strict=True)
        ]

    def _plan(self, content: dict) -> Plan | Turned:
        chat_format, preparation = self.chat.format, self.settings.preparation
        try:
            if self.settings.produces == "prompts":
                return chat_format.prompt(content["messages"], content["tools"])
            plan = chat_format.conversation(content["messages"], content["tools"])
        except NotRenderable as error:
            return Turned(error.reason, error.detail)
        return plan.train_after_first_user() if preparation.loss_mask == "after_first_user" else plan

    def _line(self, payload: Payload, content: dict, plan: Plan, ids: list[int], mask: list[int]) -> Encoded | Turned:
        limit = self.settings.preparation.max_tokens
        if len(ids) > limit:
            return Turned("too_long", f"{len(ids):,} tokens, the limit is {limit:,}")
        record = {"id": payload.id, "dataset": self.settings.dataset}
        if self.settings.produces == "prompts":
            record["messages"] = content["messages"]
            if content["tools"]:
                record["tools"] = content["tools"]
            record["meta"] = {**content["meta"], "prompt_tokens": len(ids)}
            trainable = 0
        else:
            record["input_ids"], record["loss_mask"] = ids, mask
            trainable = sum(mask)
            if trainable == 0:
                return Turned("nothing_to_train", "the loss mask has no 1")
        return Encoded(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE), len(ids), trainable, plan.left_out)


_worker: Encoder | None = None  # of a forked worker process: set before the fork


def _encode_in_worker(payloads: list[Payload]) -> list[Encoded | Turned]:
    return _worker.encode(payloads)


class Encoders:
    """`threads` processes that encode, in the order in which candidates come; one thread: this process."""

    def __init__(self, settings: Settings, chat: Chat, threads: int):
        self.encoder = Encoder(settings, chat)
        killed = (
            f"{settings.dataset}: a worker process was killed, most likely for memory: raise "
            "resources.prepare_mem_mb or lower resources.prepare_threads"
        )
        self.workers = Workers(threads, killed)

    def __enter__(self) -> "Encoders":
        global _worker
        if self.workers.count > 1:
            _worker = self.encoder  # forked with the loaded tokenizer; its own threads are off
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.workers.__enter__()
        return self

    def __exit__(self, *exc) -> None:
        self.workers.__exit__(*exc)

    def encode(self, candidates: Iterable) -> Iterator[tuple]:
        """(candidate, Encoded or Turned) in order; at most a few chunks are in flight."""
        encode = _encode_in_worker if self.workers.count > 1 else self.encoder.encode
        waiting: deque = deque()

        def jobs() -> Iterator[Callable]:
            for chunk in _chunks(candidates):
                waiting.append(chunk)
                yield partial(encode, [candidate.payload for candidate in chunk])

        for encoded in self.workers.results(jobs()):
            yield from zip(waiting.popleft(), encoded, strict=True)


def _chunks(candidates: Iterable) -> Iterator[list]:
    """Lists of candidates of about CHUNK_BYTES each."""
    chunk, size = [], 0
    for candidate in candidates:
        chunk.append(candidate)
        size += len(candidate.payload.content)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
