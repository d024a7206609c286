"""The append-only journal of a long job: each finished item once, on its own line, safe when the job is killed.

A line is `{"id": …, …}` in JSON. It is handed to the operating system at once, so that a killed process loses
nothing, and reaches the disk every SYNC_EVERY_S. What a crash left behind, a last line without its end, is cut off
when the journal is opened; a damaged line in the middle is dropped and counted, and its item done again.
Only places in the file are held in memory, so a journal may be far larger than that.
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from eyas.errors import EyasError

SYNC_EVERY_S = 5.0


class Journal:
    """A journal file, open for reading and appending by this process alone."""

    def __init__(self, path: Path):
        self.path = path
        self.places: dict[str, int] = {}  # id → offset of its last line
        self.dropped = 0  # damaged lines

    def __enter__(self) -> "Journal":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: what a full disk did not take is never written later.
        self.file = open(self.path, "a+b", buffering=0)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise EyasError(f"{self.path}: another process writes this journal: let it end, or stop it") from None
        self._read()
        self.synced = time.monotonic()
        return self

    def __exit__(self, *exc) -> None:
        try:
            os.fsync(self.file.fileno())
        finally:
            self.file.close()

    def __contains__(self, key: str) -> bool:
        return key in self.places

    def append(self, item: dict) -> None:
        """Add one finished item; it survives this process from here on."""
        offset = self.file.seek(0, os.SEEK_END)
        line = orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE)
        try:
            written = self.file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            os.ftruncate(self.file.fileno(), offset)  # a full disk takes half a line: the journal must stay whole
            raise
        self.places[item["id"]] = offset
        now = time.monotonic()
        if now - self.synced > SYNC_EVERY_S:
            os.fsync(self.file.fileno())
            self.synced = now

    def items(self, keys: Iterable[str]) -> Iterator[dict]:
        """The items that were appended last under `keys`, in that order; keys without one are passed over."""
        with open(self.path, "rb") as file:
            for key in keys:
                if key in self.places:
                    file.seek(self.places[key])
                    yield orjson.loads(file.readline())

    def _read(self) -> None:
        offset = 0
        with open(self.path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    logging.warning("%s: its last line is cut and dropped: that item is done again", self.path)
                    os.ftruncate(self.file.fileno(), offset)
                    break
                item = _item(line)
                if item is None:
                    self.dropped += 1
                else:
                    self.places[item["id"]] = offset
                offset += len(line)
        if self.dropped:
            logging.warning("%s: %d damaged lines are dropped: their items are done again", self.path, self.dropped)


def _item(line: bytes) -> dict | None:
    """The item on a line, None when the line is damaged."""
    try:
        item = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return item if isinstance(item, dict) and isinstance(item.get("id"), str) else None
