"""One dataset: from its source files to prepared/<ds>/ (records, rejects, statistics).

rows read = kept + rejected + duplicates + beyond the cap, always. Memory does not grow with the rows
(only with what is kept of a capped dataset, and 100 bytes for each row of an uncapped one).
"""

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import orjson

from eyas.adapters.base import Adapter, Filtered, Rejected, load_adapter
from eyas.adapters.turns import check_answered, link_calls, prompt_context, split_thinking, tidy
from eyas.chat import Chat, NotRenderable, Plan, chat_of
from eyas.config import Preparation
from eyas.errors import EyasError
from eyas.ledger import REJECTS_LISTED, Ledger, length_statistics
from eyas.progress import Progress
from eyas.readers import BadRow, ParquetRows, open_rows
from eyas.records import RECORD_FILES, content_id, whole_file
from eyas.selection import Everything, Sample

CHUNK_BYTES = 256 << 10  # of conversations that are encoded in one go


@dataclass(frozen=True)
class Settings:
    """What decides how one dataset is prepared (config.Config.prepare_settings)."""

    raw: dict
    dataset: str
    produces: str
    adapter: Adapter
    preparation: Preparation

    @classmethod
    def of(cls, raw: dict) -> "Settings":
        keys = Preparation.model_fields.keys() & raw.keys()
        adapter = load_adapter(raw["adapter"], raw["options"], dataset=raw["dataset"])
        return cls(raw, raw["dataset"], raw["produces"], adapter, Preparation.model_validate({k: raw[k] for k in keys}))

    def load_chat(self, folder: Path) -> Chat:
        return chat_of(folder, self.raw["target"])


def prepare_dataset(
    raw_settings: dict, files: list[Path], tokenizer: Path, out: Path, *, threads: int = 1, origin: Sequence[dict] = ()
) -> dict:
    """Write out/{prompts|tokenized_data}.jsonl, rejects.jsonl and stats.json; returns the statistics.

    files: the dataset's files, in order. tokenizer: folder of the target's tokenizer. threads: processes that encode.
    origin: where the files come from (a manifest's "sources"), for the record.
    EyasError when a file is damaged, nothing is kept, or more than `max_rejected` of the rows are
    damaged; then nothing is published.
    """
    started = time.monotonic()
    settings = Settings.of(raw_settings)
    chat = settings.load_chat(tokenizer)
    ledger = Ledger()
    with ExitStack() as files_open:
        records = files_open.enter_context(whole_file(out / RECORD_FILES[settings.produces]))
        write_stats = files_open.enter_context(whole_file(out / "stats.json"))
        ledger.file = files_open.enter_context(whole_file(out / "rejects.jsonl"))
        counts = _write_records(settings, files, chat, threads, records, ledger)
        stats = _statistics(settings, files, chat, ledger, counts)
        _check(settings, ledger, stats)
        stats["sources"] = list(origin)
        stats["seconds"] = round(time.monotonic() - started, 2)
        write_stats.write(orjson.dumps(stats, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return stats


def probe_dataset(raw_settings: dict, files: list[Path], rows: int, chat: Chat) -> dict:
    """The first `rows` rows (spread over the sources' first files) through the adapter and the encoder.

    Returns {"rows_read", "kept", "filtered", "reasons", "tokens"}: tokens of the rows kept. Repeats are kept.
    """
    settings, ledger = Settings.of(raw_settings), Ledger()
    encoder = Encoder(settings, chat)
    lengths = []
    for number, path in enumerate(files, start=1):
        for where, value in _rows(path, settings.adapter):
            if ledger.rows_read >= rows * number // len(files):
                break
            ledger.rows_read += 1
            try:
                encoded = encoder.encode([_candidate(settings, where, value)[2]])[0]
            except Rejected as error:
                ledger.reject(error.reason, where, error.detail, value, is_filter=isinstance(error, Filtered))
                continue
            if isinstance(encoded, Turned):
                ledger.reject(encoded.reason, where, encoded.detail, value)
            else:
                lengths.append(encoded.tokens)
    return {
        "rows_read": ledger.rows_read,
        "kept": len(lengths),
        "filtered": ledger.filtered,
        "reasons": dict(ledger.reasons.most_common()),
        "tokens": sum(lengths),
        "example": ledger.top_reasons(1) if ledger.rejected else "",
    }


@dataclass
class Counts:
    """Of the records written: kept, trainable tokens, and each one's length in tokens."""

    kept: int = 0
    duplicates: int = 0
    beyond_cap: int = 0
    trainable: int = 0
    reasoning_left_out: int = 0
    lengths: list[int] = field(default_factory=list)


def _write_records(settings: Settings, files: list[Path], chat: Chat, threads: int, records, ledger: Ledger) -> Counts:
    cap, counts = settings.preparation.cap, Counts()
    selection = Sample(cap) if cap else Everything()
    stream = _candidates(settings, files, selection, ledger)
    if cap:
        deque(stream, maxlen=0)  # read everything; nothing can be kept before the last row was seen
        stream = iter(selection.ranked())
    with Encoders(settings, chat, threads) as encoders:
        for candidate, encoded in encoders.encode(stream):
            if cap and counts.kept == cap:
                counts.beyond_cap += candidate.count
            elif isinstance(encoded, Turned):
                where, row = candidate.payload.where, candidate.payload.content
                ledger.reject(encoded.reason, where, encoded.detail, row, count=candidate.count)
            else:
                records.write(encoded.line)
                counts.kept += 1
                counts.duplicates += candidate.count - 1
                counts.trainable += encoded.trainable
                counts.reasoning_left_out += encoded.left_out
                counts.lengths.append(encoded.tokens)
    if isinstance(selection, Everything):
        counts.duplicates = selection.duplicates
    counts.beyond_cap += selection.beyond_cap
    return counts


# Rows → candidates


@dataclass(slots=True)
class Payload:
    """A conversation on its way to the encoder: where it stood, and its content as JSON."""

    where: dict
    id: str
    content: bytes  # {"messages", "tools", "meta"}


def _candidates(settings: Settings, files: list[Path], selection: Sample | Everything, ledger: Ledger) -> Iterator:
    """Offer every row of every file to the selection; yields what an uncapped selection keeps."""
    progress = Progress(settings.dataset, "rows")
    for number, path in enumerate(files):
        reader = open_rows(path, settings.adapter.columns)
        if settings.adapter.check_columns and reader.columns:
            settings.adapter.check_columns(reader.columns, str(path))
        if selection.__class__ is Sample and settings.adapter.preselects and isinstance(reader, ParquetRows):
            batches = _preselected(settings, reader, selection, ledger)
        else:
            batches = (((None, row, value) for row, value in batch) for batch in _counted(reader, ledger))
        for batch in batches:
            for place, row, value in batch:
                where = {"file": path.name, "row": row}
                try:
                    key_place, key, payload = _candidate(settings, where, value)
                except Rejected as error:
                    ledger.reject(error.reason, where, error.detail, value, is_filter=isinstance(error, Filtered))
                    continue
                candidate = selection.offer(key_place if place is None else place, key, payload.id, payload)
                if candidate is not None:
                    yield candidate
            progress.update(ledger.rows_read, (number + reader.fraction_done) / len(files))
    progress.close()


def _counted(reader, ledger: Ledger) -> Iterator[list]:
    for batch in reader.batches():
        ledger.rows_read += len(batch)
        yield batch


def _preselected(settings: Settings, reader: ParquetRows, selection: Sample, ledger: Ledger) -> Iterator[list]:
    """(place, row number, row) of the rows that can still enter the sample; the others are only counted.

    Rows wait as Arrow data until twice as many are there as the sample can hold; then those with the higher places fall
    out. So most rows that lead for a while never become Python objects.
    """
    waiting, threshold = [], selection.threshold  # waiting: (places, row numbers, Arrow rows)
    for first, batch in reader.arrow_batches():
        ledger.rows_read += batch.num_rows
        verdict = settings.adapter.preselect(batch)
        for reason, is_filter, rows, values in verdict.turned_down:
            room = max(0, REJECTS_LISTED - ledger.reasons[reason])
            for row in rows[:room]:
                where = {"file": reader.path.name, "row": first + int(row)}
                ledger.reject(reason, where, f"{values[int(row)].as_py()!r}", is_filter=is_filter)
            ledger.reasons[reason] += max(0, len(rows) - room)
        order, rows = verdict.order, verdict.rows
        if threshold is not None:
            inside = order <= threshold
            selection.beyond_cap += len(rows) - int(inside.sum())
            order, rows = order[inside], rows[inside]
        waiting.append((order, first + rows, batch.take(rows)))
        if sum(len(w[0]) for w in waiting) >= 2 * selection.capacity:
            waiting, threshold = _lowest(waiting, selection)
            if sum(len(w[0]) for w in waiting) >= 1.5 * selection.capacity:  # copies, told apart by their keys only
                yield _as_objects(waiting)
                waiting = []
        yield []  # for the progress
    yield _as_objects(waiting)


def _lowest(waiting: list[tuple], selection: Sample) -> tuple[list[tuple], int | None]:
    """Of the waiting rows, those that can still enter the sample, and the highest place that can."""
    import numpy as np
    import pyarrow as pa

    places = np.unique(np.concatenate([order for order, _, _ in waiting]))  # as many keys: a key has one place
    highest = [int(places[selection.capacity - 1])] if len(places) >= selection.capacity else []
    if selection.threshold is not None:
        highest.append(selection.threshold)
    if not highest:
        return waiting, None
    threshold, kept = min(highest), []
    for order, numbers, rows in waiting:
        inside = order <= threshold
        selection.beyond_cap += len(order) - int(inside.sum())
        kept.append((order[inside], numbers[inside], rows.filter(pa.array(inside))))
    return kept, threshold


def _as_objects(waiting: list[tuple]) -> list[tuple]:
    return [
        row
        for places, numbers, rows in waiting
        for row in zip(places.tolist(), numbers.tolist(), rows.to_pylist(), strict=True)
    ]


def _rows(path: Path, adapter: Adapter) -> Iterator[tuple[dict, Any]]:
    """(where, value) of each row of a file."""
    reader = open_rows(path, adapter.columns)
    if adapter.check_columns and reader.columns:
        adapter.check_columns(reader.columns, str(path))
    for batch in reader.batches():
        for row, value in batch:
            yield {"file": path.name, "row": row}, value


def _candidate(settings: Settings, where: dict, value: Any) -> tuple[int, str, Payload]:
    """(place, key, payload) of one row; raises Rejected."""
    if isinstance(value, BadRow):
        raise Rejected(value.reason, value.detail)
    conversation = settings.adapter.conversation(value)
    messages = tidy(conversation.messages)
    if settings.produces == "prompts":
        messages = prompt_context(messages, settings.preparation.turns)
    messages = split_thinking(link_calls(messages))
    if settings.produces == "tokenized_data":
        check_answered(messages)
    try:
        identity = content_id(messages, conversation.tools)
        content = orjson.dumps(
            {"messages": messages, "tools": conversation.tools, "meta": {**where, **conversation.meta}}
        )
    except TypeError as error:  # an integer beyond 64 bits, a NaN
        raise Rejected("not_serializable", str(error)) from None
    key = conversation.key or identity
    place = int(identity[:16], 16) if conversation.key is None else int(content_id([{"key": key}])[:16], 16)
    return place, key, Payload(where, identity, content)


# Candidates → lines


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
        self.encoder, self.threads, self.pool = Encoder(settings, chat), threads, None

    def __enter__(self) -> "Encoders":
        global _worker
        if self.threads > 1:
            _worker = self.encoder
            # Forked, so that a worker has the loaded tokenizer at once; the tokenizer's own threads are off.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            self.pool = ProcessPoolExecutor(self.threads, mp_context=get_context("fork"))
        return self

    def __exit__(self, *exc) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def encode(self, candidates: Iterable) -> Iterator[tuple]:
        """(candidate, Encoded or Turned) in order; at most a few chunks are in flight."""
        waiting: deque = deque()
        try:
            for chunk in _chunks(candidates):
                payloads = [c.payload for c in chunk]
                if self.pool is None:
                    yield from zip(chunk, self.encoder.encode(payloads), strict=True)
                    continue
                waiting.append((chunk, self.pool.submit(_encode_in_worker, payloads)))
                while len(waiting) > 2 * self.threads:
                    done, future = waiting.popleft()
                    yield from zip(done, future.result(), strict=True)
            for done, future in waiting:
                yield from zip(done, future.result(), strict=True)
        except BrokenProcessPool:
            raise EyasError(
                f"{self.encoder.settings.dataset}: a worker process was killed, most likely for memory: "
                "raise resources.prepare_mem_mb or lower resources.prepare_threads"
            ) from None


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


# Statistics


def _statistics(settings: Settings, files: list[Path], chat: Chat, ledger: Ledger, counts: Counts) -> dict:
    stats = {
        "dataset": settings.dataset,
        "produces": settings.produces,
        "rows_read": ledger.rows_read,
        "kept": counts.kept,
        "rejected": ledger.rejected,
        "duplicates": counts.duplicates,
        "beyond_cap": counts.beyond_cap,
        "reasons": dict(ledger.reasons.most_common()),
        "filters": sorted(ledger.filters),
        "rejects_listed": ledger.listed,
        "trainable_tokens": counts.trainable,
        "reasoning_left_out": counts.reasoning_left_out,
        **length_statistics(counts.lengths),
        "files": [f.name for f in files],
        "tokenizer": chat.fingerprint,
        "vocabulary": chat.vocabulary,
        "settings": settings.raw,
    }
    total = stats["kept"] + stats["rejected"] + stats["duplicates"] + stats["beyond_cap"]
    if total != stats["rows_read"]:
        raise EyasError(
            f"{settings.dataset}: {stats['rows_read']:,} rows read, {total:,} accounted for: "
            "a fault in eyas, please report it"
        )
    return stats


def _check(settings: Settings, ledger: Ledger, stats: dict) -> None:
    name, limit = settings.dataset, settings.preparation.max_rejected
    if stats["rows_read"] == 0:
        raise EyasError(f"{name}: its files hold no row: {', '.join(stats['files'])}")
    if stats["kept"] == 0:
        raise EyasError(f"{name}: none of {ledger.rows_read:,} rows is kept:\n{ledger.top_reasons()}")
    judged = ledger.rows_read - ledger.filtered
    if ledger.damaged > limit * judged:
        raise EyasError(
            f"{name}: {ledger.damaged:,} of {judged:,} rows are rejected ({ledger.damaged / judged:.1%}), "
            f"the limit is {limit:.1%}:\n"
            f"{ledger.top_reasons()}\n"
            f"mend the adapter (scripts/eyas/adapters/{settings.adapter.name}.py), "
            f"or set datasets.{name}.prepare.max_rejected"
        )
    logging.info(
        "%s: kept %s of %s rows, %s tokens", name, f"{stats['kept']:,}", f"{ledger.rows_read:,}", f"{stats['tokens']:,}"
    )
