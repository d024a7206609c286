"""From shards of hidden states to packed batches: mapped, in an order that seed and epoch decide, read ahead.

A batch is so many samples as fit into a budget of tokens, back to back. Which samples make which batch is planned from
their lengths alone, so every rank of a run, and every run that goes on from a checkpoint, plans the same.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from eyas.eagle3.supervision import Batch
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.states import CAPTURED, Shard
from eyas.states_encoding import decode

SAME = ("target", "tokenizer", "layers", "layers_convention", "last")  # metadata that all shards of a run share
AHEAD = 3  # batches that are read before they are needed


@dataclass(frozen=True)
class Pack:
    """The samples of one batch, as (shard, sample) of a `Shards`; tokens in all."""

    samples: tuple[tuple[int, int], ...]
    tokens: int


class Shards:
    """Published shards, mapped. EyasError when one is damaged in its frame, or of another target or layers than others.

    samples [n, 2]: (shard, sample) of those that may be used; lengths [n]: their tokens. part: 8 takes the first eighth
    of them, which is as good as any: their order is that of a hash.
    """

    def __init__(self, paths: Sequence[Path], part: int = 1):
        if not paths:
            raise EyasError("hidden_states: no shard to train on: run `snakemake captured`")
        self.shards = [Shard(path) for path in paths]
        self.metadata = self.shards[0].metadata
        for shard in self.shards:
            agree(shard, self.metadata, paths[0])
        usable = [np.flatnonzero(shard.arrays["status"] == CAPTURED) for shard in self.shards]
        samples = np.array([(s, k) for s, own in enumerate(usable) for k in own], dtype=np.int64).reshape(-1, 2)
        lengths = [np.diff(shard.arrays["offsets"])[own] for shard, own in zip(self.shards, usable, strict=True)]
        taken = -(-len(samples) // part)
        self.samples, self.lengths = samples[:taken], np.concatenate(lengths)[:taken]

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(int(layer) for layer in self.metadata["layers"].split(","))

    @property
    def hidden(self) -> int:
        """H: the width of one state."""
        return self.shards[0].arrays["last"].shape[1]

    def name(self, shard: int, sample: int) -> str:
        """A sample's id and dataset, for messages."""
        return " of ".join(self.shards[shard].ids[sample])

    def dataset(self, shard: int, sample: int) -> str:
        return self.shards[shard].ids[sample][1]

    @property
    def datasets(self) -> list[str]:
        """Names, sorted."""
        return sorted({self.dataset(*sample) for sample in self.samples.tolist()})

    def verify(self) -> None:
        """Read everything and compare the checksums; EyasError names the first sample that is damaged."""
        progress = Progress("checking the shards", "samples")
        for done, (s, k) in enumerate(self.samples.tolist(), start=1):
            self.shards[s].check(k)
            progress.update(done, done / len(self.samples))
        progress.close()

    def packs(self, budget: int, seed: int | None, number: int = 0, dataset: str | None = None) -> list[Pack]:
        """Each usable sample in one pack; as many as fit into `budget` tokens, a longer one alone.

        seed: of the order, with the number of the block; None: as they lie. dataset: of this one alone.
        """
        order = np.arange(len(self.samples))
        if dataset is not None:
            order = np.array([n for n in order if self.dataset(*self.samples[n]) == dataset], dtype=np.int64)
        if seed is not None:
            np.random.default_rng([seed, number]).shuffle(order)
        packs, chosen, tokens = [], [], 0
        for n in order:
            if chosen and tokens + self.lengths[n] > budget:
                packs.append(Pack(tuple(chosen), tokens))
                chosen, tokens = [], 0
            chosen.append(tuple(self.samples[n].tolist()))
            tokens += int(self.lengths[n])
        return [*packs, Pack(tuple(chosen), tokens)] if chosen else packs

    def batch(self, pack: Pack, with_last: bool, verify: bool) -> Batch:
        """Read a pack; last: None unless asked for. verify: compare each sample's checksum (EyasError names it)."""
        parts: dict[str, list[torch.Tensor]] = {"input_ids": [], "loss_mask": [], "aux": [], "last": []}
        offsets = [0]
        for s, k in pack.samples:
            shard = self.shards[s]
            if verify:
                shard.check(k)
            rows = slice(*shard.arrays["offsets"][k : k + 2].tolist())
            parts["input_ids"].append(torch.from_numpy(shard.arrays["input_ids"][rows].astype(np.int64)))
            parts["loss_mask"].append(torch.from_numpy(np.array(shard.arrays["loss_mask"][rows])))
            parts["aux"].append(decode(shard.arrays, "aux", rows))
            if with_last:
                parts["last"].append(decode(shard.arrays, "last", rows))
            offsets.append(offsets[-1] + rows.stop - rows.start)
        joined = {name: torch.cat(tensors) if tensors else None for name, tensors in parts.items()}
        return Batch(**joined, offsets=torch.tensor(offsets))


def agree(shard: Shard, metadata: dict[str, str], first: Path) -> None:
    """EyasError when a shard is of another target, tokenizer or convention of layers than `metadata` (of `first`)."""
    for key in SAME:
        found, expected = shard.metadata.get(key), metadata.get(key)
        if found != expected:
            raise EyasError(
                f"{shard.path}: {key} is {found!r}, expected {expected!r} as in {first}: they cannot be trained on "
                f"together; {shard.remedy}, or the other"
            )


class Reader:
    """Batches of some packs in order, read by a thread while others are trained on; a context manager.

    waited_s: how long the consumer stood waiting for data, in all. What fails in the thread is raised to the consumer.
    """

    def __init__(self, shards: Shards, packs: Sequence[Pack], *, with_last: bool, verify: bool, device: torch.device):
        self.shards, self.packs, self.device = shards, packs, device
        self.with_last, self.verify = with_last, verify
        self.waited_s = 0.0
        self.queue: queue.Queue = queue.Queue(AHEAD)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._read, name="eyas-reader", daemon=True)

    def __enter__(self) -> "Reader":
        self.thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self.stopped.set()
        while not self.queue.empty():
            self.queue.get_nowait()
        self.thread.join()

    def __iter__(self) -> Iterator[Batch]:
        for _ in self.packs:
            started = time.monotonic()
            found = self.queue.get()
            self.waited_s += time.monotonic() - started
            if isinstance(found, BaseException):
                raise found
            yield on_device(found, self.device)

    def _read(self) -> None:
        try:
            for pack in self.packs:
                batch = self.shards.batch(pack, self.with_last, self.verify)
                if self.device.type == "cuda":
                    batch = _each(batch, torch.Tensor.pin_memory)
                if not self._put(batch):
                    return
        except BaseException as error:  # whatever it is, the consumer must see it
            self._put(error)

    def _put(self, item) -> bool:
        while not self.stopped.is_set():
            try:
                self.queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch there; from pinned memory the copy does not wait."""
    if device.type == "cpu":
        return batch
    return _each(batch, lambda t: t.to(device, non_blocking=True))


def _each(batch: Batch, change) -> Batch:
    tensors = {name: getattr(batch, name) for name in ("input_ids", "loss_mask", "aux", "last", "offsets")}
    return Batch(**{name: None if t is None else change(t) for name, t in tensors.items()})
