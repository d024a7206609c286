"""Rows → candidates: source files are read, rows become conversations, the selection says which may be kept."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eyas.adapters.base import Adapter, Filtered, Preselection, Rejected, load_adapter
from eyas.adapters.turns import check_answered, link_calls, prompt_context, split_thinking, tidy
from eyas.chat import Chat, chat_of
from eyas.config import Preparation
from eyas.ledger import Ledger
from eyas.progress import Progress
from eyas.readers import BadRow, FilePart, ParquetRows, open_rows
from eyas.records import content_id
from eyas.selection import Candidate, Everything, Sample


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

    def selection(self) -> Sample | Everything:
        cap = self.preparation.cap
        return Sample(cap) if cap else Everything()

    def load_chat(self, folder: Path) -> Chat:
        return chat_of(folder, self.raw["target"])


@dataclass(slots=True)
class Payload:
    """A conversation on its way to the encoder: where it stood, and its content as JSON."""

    where: dict
    id: str
    content: bytes  # {"messages", "tools", "meta"}


def candidates(
    settings: Settings, parts: Sequence[FilePart], selection: Sample | Everything, ledger: Ledger
) -> Iterator[Candidate]:
    """Offer every row of every part to the selection; yields what may be kept.

    An uncapped selection keeps as it goes; of a capped one nothing comes before the last row was seen.
    """
    progress = Progress(settings.dataset, "rows")
    for number, part in enumerate(parts):
        reader = _reader(part, settings.adapter)
        if selection.__class__ is Sample and settings.adapter.preselects and isinstance(reader, ParquetRows):
            batches = _preselected(settings, reader, selection, ledger)
        else:
            batches = (((None, row, value) for row, value in batch) for batch in _counted(reader, ledger))
        for batch in batches:
            for place, row, value in batch:
                where = {"file": part.path.name, "row": row}
                try:
                    key_place, key, payload = candidate_of(settings, where, value)
                except Rejected as error:
                    ledger.reject(error.reason, where, error.detail, value, is_filter=isinstance(error, Filtered))
                    continue
                candidate = selection.offer(key_place if place is None else place, key, payload.id, payload)
                if candidate is not None:
                    yield candidate
            progress.update(ledger.rows_read, (number + reader.fraction_done) / len(parts))
    progress.close()
    yield from selection.ranked()


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
        _reject(verdict, reader.path.name, first, ledger)
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


def _reject(verdict: Preselection, file: str, first: int, ledger: Ledger) -> None:
    """Count and list what a batch's verdict turned down, in the order of the rows; first: the batch's first row."""
    listed, more = [], Counter()
    for reason, is_filter, rows, values in verdict.turned_down:
        shown = rows[: ledger.room(reason)].tolist()
        listed += [(row, reason, is_filter, values) for row in shown]
        more[reason] = len(rows) - len(shown)
    for row, reason, is_filter, values in sorted(listed, key=lambda each: each[0]):
        ledger.reject(reason, {"file": file, "row": first + row}, f"{values[row].as_py()!r}", is_filter=is_filter)
    ledger.reasons.update(more)


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


def rows_of(path: Path, adapter: Adapter) -> Iterator[tuple[dict, Any]]:
    """(where, value) of each row of a file."""
    for batch in _reader(FilePart(path), adapter).batches():
        for row, value in batch:
            yield {"file": path.name, "row": row}, value


def _reader(part: FilePart, adapter: Adapter):
    """A reader of the columns that the adapter needs; EyasError when the table is none for it."""
    reader = open_rows(part, adapter.columns)
    if adapter.check_columns and reader.columns:
        adapter.check_columns(reader.columns, str(part.path))
    return reader


def candidate_of(settings: Settings, where: dict, value: Any) -> tuple[int, str, Payload]:
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
