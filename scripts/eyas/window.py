"""A window on the shards: captured ahead, trained on, dropped, so that never more than a few lie on the disk.

Shards are counted through all passes: number m is shard m mod n of pass m div n. One file says which number training
needs next; what lies within the window from there on is captured, what does not is dropped. Both sides look at files
alone, so either may be killed and started again.
"""

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow.parquet as pq

from eyas.config import DECIDES_NO_TRAINING
from eyas.differences import fingerprint
from eyas.records import write_json
from eyas.states import shard_path

POLL_S = 0.5


class Starved(Exception):
    """The next shard is not there, and is not waited for."""


@dataclass(frozen=True)
class Window:
    """folder: of the shards, of which there are `shards`; size: most that lie there; position: the file.

    key: of the run that it belongs to. Each run has a folder of its own, so that no shard is taken for another's.
    """

    key: str
    folder: Path
    shards: int
    size: int
    passes: int
    position: Path

    @property
    def total(self) -> int:
        return self.shards * self.passes

    @property
    def next(self) -> int:
        """The number that training needs next; total when it needs none."""
        try:
            return orjson.loads(self.position.read_bytes())["next"]
        except FileNotFoundError:
            return 0

    def path(self, number: int) -> Path:
        return shard_path(self.folder, number % self.shards, self.shards)

    def to_capture(self) -> int | None:
        """The first number within the window whose shard is not there."""
        first = self.next
        wanted = range(first, min(first + self.size, self.total))
        return next((m for m in wanted if not self.path(m).exists()), None)

    def advance(self, number: int) -> None:
        """Training needs `number` next, and a checkpoint says so: drop what no longer lies within the window."""
        write_json(self.position, {"next": number})
        kept = {self.path(m) for m in range(number, min(number + self.size, self.total))}
        for k in range(self.shards):
            if (path := self.path(k)) not in kept:
                path.unlink(missing_ok=True)

    def wait_for(self, number: int, alive: Callable[[], None] | None) -> Path:
        """The shard's file, once it is there. alive: called while waiting, may raise; None: Starved at once."""
        path = self.path(number)
        while not path.exists():
            if alive is None:
                raise Starved
            alive()
            time.sleep(POLL_S)
        return path


def window_of(settings: dict, states: Path, corpus: Path, vocabulary: Path, state: Path) -> Window | None:
    """The window of the run that these settings, this corpus and this map describe; None without capture.window.

    settings: config.Config.train_settings. Shards of other runs' windows are removed: the disk is for this one.
    """
    capture = settings["capture"]
    if capture["window"] is None:
        return None
    key = fingerprint(
        {k: v for k, v in settings["train"].items() if k not in DECIDES_NO_TRAINING},
        settings["draft"],
        {k: capture[k] for k in ("shards", "layers", "dtype")},
        settings["target"]["model"],
        _ids_in(corpus / "train.parquet"),
        hashlib.blake2b(vocabulary.read_bytes(), digest_size=16).hexdigest(),
    )
    windows = states / "window"
    for other in windows.iterdir() if windows.is_dir() else ():
        if other.name != key:
            shutil.rmtree(other)
    folder, position = windows / key / "train", state / key / "window.json"
    return Window(key, folder, capture["shards"], capture["window"], settings["train"]["epochs"], position)


def _ids_in(corpus: Path) -> str:
    """A digest of the samples' ids in order."""
    digest = hashlib.blake2b(digest_size=16)
    with pq.ParquetFile(corpus) as file:
        for batch in file.iter_batches(columns=["id"]):
            digest.update("\n".join(batch.column(0).to_pylist()).encode())
    return digest.hexdigest()
