"""Rows from JSONL, JSON and Parquet files, a batch at a time; nothing is loaded whole.

`open_rows` gives a reader by the file's ending. Its `batches()` yield lists of (row number, value), the
number counted from 1: the line of a JSONL file, the item of a JSON array or object, the row of a
Parquet file. Of a part of a file only its rows are read, under the numbers that they have in the file.
A line that is not JSON is yielded as a `BadRow`; a file that is damaged as a
whole (cut off, not Parquet, a broken array) raises EyasError with the file and the place.
"""

import codecs
import gzip
import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from eyas.errors import EyasError
from eyas.records import lines_before, lines_of_part

READ_BYTES = 4 << 20
BATCH_BYTES = 16 << 20  # of the needed columns, decoded
LARGEST_ITEM_CHARS = 256 << 20


class BadRow(NamedTuple):
    """What stands in place of a row that cannot be parsed."""

    reason: str
    detail: str


@dataclass(frozen=True)
class FilePart:
    """The rows within `size` bytes (None: all) of a file from byte `start`: of parts side by side, each row is in one.

    A line is where it begins; a row group of Parquet is where its middle is, with all rows taken to be equally long.
    What can only be read from the start (gzip, a JSON array or object) is where the middle of the file is.
    """

    path: Path
    start: int = 0
    size: int | None = None

    def has(self, byte: int) -> bool:
        """Whether a byte of the file is within."""
        return self.start <= byte and (self.size is None or byte < self.start + self.size)


def open_rows(part: FilePart, columns: tuple[str, ...] | None) -> "ParquetRows | JsonLines | JsonItems":
    """A reader for a file or a part of it; `columns`: those needed, or None for all (Parquet decodes only these)."""
    path = part.path
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return ParquetRows(part, columns)
    if suffix in (".jsonl", ".ndjson") or path.name.lower().endswith((".jsonl.gz", ".ndjson.gz")):
        return JsonLines(part)
    if suffix == ".json":
        return JsonLines(part) if _holds_lines(path) else JsonItems(part)
    raise EyasError(
        f"{path}: unknown kind of file; expected .parquet, .jsonl(.gz), .ndjson(.gz) or .json: change `files` of the "
        "source"
    )


class ParquetRows:
    """A Parquet file, read by column and batch. A missing column fails at once, with the columns found."""

    def __init__(self, part: FilePart, columns: tuple[str, ...] | None):
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path = part.path
        try:
            self.file = pq.ParquetFile(path, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise EyasError(f"{path}: not a whole Parquet file: {error}: fetch it again") from None
        self.columns = list(self.file.schema_arrow.names)
        if missing := [c for c in columns or () if c not in self.columns]:
            raise EyasError(
                f"{path}: column {', '.join(missing)} is missing; columns found: {', '.join(self.columns)}: "
                "the dataset has changed: pin the revision that had it, or mend the adapter"
            )
        self.needed = list(columns or self.columns)
        counts = [self.file.metadata.row_group(g).num_rows for g in range(self.file.num_row_groups)]
        before, rows, size = [0, *accumulate(counts)], max(1, sum(counts)), path.stat().st_size
        middles = (size * (begin + end) // (2 * rows) for begin, end in pairwise(before))
        self.groups = [g for g, middle in enumerate(middles) if part.has(middle)]
        self.before = before[self.groups[0]] if self.groups else 0  # rows of the file before this part's
        self.rows = sum(counts[g] for g in self.groups)
        self.done = 0  # rows given out

    @property
    def fraction_done(self) -> float:
        return self.done / self.rows if self.rows else 1.0

    def batches(self) -> Iterator[list[tuple[int, Any]]]:
        for first, batch in self.arrow_batches():
            yield list(enumerate(batch.to_pylist(), start=first))

    def arrow_batches(self) -> Iterator[tuple[int, Any]]:
        """(number of the first row, pyarrow.RecordBatch) of about BATCH_BYTES each."""
        import pyarrow as pa

        options = {"batch_size": self._batch_rows(), "columns": self.needed, "use_threads": False}
        batches = self.file.iter_batches(row_groups=self.groups, **options)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise EyasError(
                    f"{self.path}: damaged after row {self.before + self.done:,} of {self.file.metadata.num_rows:,}: "
                    f"{error}: fetch it again"
                ) from None
            if batch is None:
                return
            first = self.before + self.done + 1
            self.done += batch.num_rows
            yield first, batch

    def _batch_rows(self) -> int:
        """Rows that decode to about BATCH_BYTES of the needed columns, by the file's own statistics."""
        metadata, size = self.file.metadata, 0
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            chunks = (group.column(c) for c in range(group.num_columns))
            size += sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in self.needed)
        return max(16, min(16384, BATCH_BYTES * metadata.num_rows // max(size, 1)))


class JsonRows(ABC):
    """What the two kinds of JSON file share; `done` of `size` bytes are read."""

    columns = None  # known only row by row

    def __init__(self, part: FilePart):
        self.path, self.start = part.path, part.start
        self.size, self.done = part.path.stat().st_size, 0
        self.has_middle = part.has(self.size // 2)

    @property
    def fraction_done(self) -> float:
        return self.done / self.size if self.size else 1.0

    def batches(self) -> Iterator[list[tuple[int, Any]]]:
        batch, since = [], 0
        for row in self.rows():
            batch.append(row)
            if len(batch) >= 1024 or self.done - since >= BATCH_BYTES:
                yield batch
                batch, since = [], self.done
        if batch:
            yield batch

    @abstractmethod
    def rows(self) -> Iterator[tuple[int, Any]]:
        """(number, value) of each row."""


class JsonLines(JsonRows):
    """A JSONL file, as it is or gzipped: one JSON value a line; a BOM, CRLF and blank lines are nothing special."""

    def __init__(self, part: FilePart):
        super().__init__(part)
        self.zipped = self.path.suffix.lower() == ".gz"
        if not self.zipped:
            self.size = self.size - part.start if part.size is None else part.size
        elif self.size >= 4:
            with open(self.path, "rb") as file:
                file.seek(-4, os.SEEK_END)
                self.size = int.from_bytes(file.read(4), "little")  # of its last member, unpacked

    @property
    def fraction_done(self) -> float:
        return min(1.0, super().fraction_done)

    def rows(self) -> Iterator[tuple[int, Any]]:
        number = 0
        try:
            for number, line in self._lines():
                self.done += len(line)
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line and not line.isspace():
                    yield number, parse_line(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise EyasError(f"{self.path}: damaged after line {number:,}: {error}: fetch it again") from None

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        if not self.zipped:
            lines = lines_of_part(self.path, self.start, self.size)
            yield from enumerate(lines, start=1 + lines_before(self.path, self.start))
        elif self.has_middle:
            with gzip.open(self.path) as file:
                yield from enumerate(file, start=1)


class JsonItems(JsonRows):
    """A JSON file that is one array of rows, or one object of rows by key (the row gets its key as `_key`)."""

    def rows(self) -> Iterator[tuple[int, Any]]:
        if self.has_middle:
            yield from enumerate(self._items(), start=1)

    def _items(self) -> Iterator[Any]:
        with open(self.path, "rb") as file:
            text = _Text(file, self)
            opening = text.next_char()
            if opening not in ("[", "{"):
                raise EyasError(f"{self.path}: begins with {opening!r}, expected a JSON array or object of rows")
            closing, number = {"[": "]", "{": "}"}[opening], 0
            if text.next_char(peek=True) == closing:
                text.next_char()
            else:
                while True:
                    key = None
                    if opening == "{":
                        key = text.value(number + 1)
                        if text.next_char() != ":":
                            raise text.error(number + 1, "expected ':' after a key")
                    value = text.value(number + 1)
                    number += 1
                    yield {"_key": key, **value} if key is not None and isinstance(value, dict) else value
                    follows = text.next_char()
                    if follows == closing:
                        break
                    if follows != ",":
                        raise text.error(
                            number,
                            f"expected ',' or '{closing}' after the item, found {follows or 'the end of the file'!r}",
                        )
            if rest := text.next_char():
                raise text.error(number, f"text after the end: {rest!r}")


class _Text:
    """A window on a JSON file's characters that grows and moves on as values are taken from it."""

    decoder = json.JSONDecoder(strict=False)

    def __init__(self, file, owner: JsonItems):
        self.file, self.owner = file, owner
        self.decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self.text, self.at, self.ended = "", 0, False

    def grow(self) -> bool:
        """Read on (at least as much as is held, so that a long value is scanned a few times only)."""
        if self.ended:
            return False
        block = self.file.read(max(READ_BYTES, len(self.text) - self.at))
        self.ended = not block
        self.text, self.at = self.text[self.at :] + self.decode(block, final=self.ended), 0
        self.owner.done = self.file.tell()
        return True

    def next_char(self, peek: bool = False) -> str:
        """The next character that is not white space; "" at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.text):
                self.at += not peek
                return self.text[self.at - (not peek)]
            if not self.grow():
                return ""

    def value(self, number: int) -> Any:
        self.next_char(peek=True)
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
                if end < len(self.text) or self.ended:  # else a number could go on
                    self.at = end
                    return value
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self.text) - 16
                if not cut or len(self.text) - self.at > LARGEST_ITEM_CHARS:
                    raise self.error(number, error.msg) from None
                if self.ended:
                    raise self.error(number, f"the file ends inside it ({error.msg})") from None
            except RecursionError:
                raise self.error(number, "nested too deeply") from None
            self.grow()

    def error(self, number: int, what: str) -> EyasError:
        return EyasError(
            f"{self.owner.path}: damaged at item {number:,}, before byte {self.owner.done:,} of "
            f"{self.owner.size:,}: {what}: fetch it again"
        )


def parse_line(line: bytes) -> Any:
    """One JSON value from a line; BadRow when it is none. Lone surrogates pass (the adapter mends them)."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(line.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        return BadRow("not_json", f"{error}: {line[:80]!r}")


def _holds_lines(path: Path) -> bool:
    """Whether a .json file holds one JSON object a line, as some sets name their JSONL."""
    with open(path, "rb") as file:
        first = file.readline(READ_BYTES).removeprefix(codecs.BOM_UTF8).strip()
        more = file.read(1 << 16).strip()
    return bool(more) and first.startswith(b"{") and first.endswith(b"}") and not isinstance(parse_line(first), BadRow)
