"""The two steps of building the corpus that worker processes do.

`spill_part`: lines of a record file are parsed, checked, and spilled by ranges of the hash of their tokens, an Arrow
file for each part with a batch for each range. `gather_bucket`: one range of all parts is sorted, and its repeats fall
out.
"""

import functools
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from eyas.records import TRAINS_NOTHING, fault_in_tokenized, lines_of_part

SPLITS = ("train", "heldout")
RECORD = pa.schema(
    [
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
    ]
)
MASK = b'],"loss_mask":['  # between the ids and the mask
PLACE = pa.schema([("order", pa.uint64()), ("tie", pa.uint64()), ("heldout", pa.bool_())])
SPILLED = pa.schema([*RECORD, *PLACE])


@dataclass(frozen=True)
class Part:
    """The lines that begin within `size` bytes from byte `start` of one dataset's record file."""

    number: int  # among all parts of all files, in their order
    dataset: str
    path: Path
    start: int
    size: int


@dataclass(frozen=True)
class Plan:
    """What is done with the records of every part."""

    spill: Path
    buckets: int
    vocabulary: int
    max_tokens: int
    heldout: float  # share of the prompts

    def spilled(self, number: int) -> Path:
        return self.spill / f"part-{number}.arrow"

    def gathered(self, bucket: int, split: str) -> Path:
        return self.spill / f"{split}-{bucket}.arrow"


@dataclass(frozen=True)
class Fault:
    """A line that is no record."""

    line: int
    what: str


@dataclass
class Spilled:
    """What became of a part. Its lines count from 0: how many stand before them, the worker does not know."""

    lines: int = 0
    records: int = 0
    cut: int = 0
    rejects: list[tuple[int, str, str, str]] = field(default_factory=list)  # line, id, reason, detail
    fault: Fault | None = None  # then nothing is spilled


@dataclass
class Gathered:
    """What became of a bucket: of each dataset the repeats, of each (split, dataset) lengths and trainable tokens."""

    repeats: Counter = field(default_factory=Counter)
    lengths: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    trainable: Counter = field(default_factory=Counter)


# A part of a file → its spill


def spill_part(part: Part, plan: Plan) -> Spilled:
    """Write plan.spilled(part.number), unless a line is no record."""
    records = _parsed(part, plan.vocabulary)
    if isinstance(records, Fault):
        return Spilled(fault=records)
    result = Spilled(records.lines, len(records.numbers))
    kept, hashes, heldout = [], [], []
    longest, limit = plan.max_tokens, round(plan.heldout * 2.0**64)
    for number, name, ids, mask in zip(records.numbers, records.names, records.ids, records.masks, strict=True):
        first = mask.find(b"1") // 2  # trainable token; -1: none is
        if not 0 <= first < longest:
            result.rejects.append((number, name, *_why_rejected(len(ids) // 4, first, longest)))
            continue
        if len(ids) > 4 * longest:
            result.cut += 1
            ids, mask = ids[: 4 * longest], mask[: 2 * longest - 1]
        kept.append((name, ids, mask))
        hashes.append(xxhash.xxh3_128_digest(ids))
        heldout.append(xxhash.xxh3_64_intdigest(ids[: 4 * first]) < limit)  # by the prompt alone
    order, tie = np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64).reshape(-1, 2).T
    bucket = (order >> np.uint64(32)) * np.uint64(plan.buckets) >> np.uint64(32)
    rows = np.argsort(bucket, kind="stable")
    taken = [kept[k] for k in rows.tolist()]
    ids = np.frombuffer(b"".join([ids for _, ids, _ in taken]), "<i4").astype(np.int32, copy=False)
    mask = np.frombuffer(b",".join([mask for _, _, mask in taken]), np.int8)[::2] - ord("0")
    offsets = pa.array(np.cumsum([0, *(len(ids) // 4 for _, ids, _ in taken)]), pa.int32())
    columns = [
        pa.array([name for name, _, _ in taken], pa.string()),
        pa.array([part.dataset] * len(taken), pa.string()),
        *(pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (ids, mask)),
        *(pa.array(values[rows]) for values in (order, tie, np.array(heldout, dtype=bool))),
    ]
    batch, cuts = pa.record_batch(columns, SPILLED), np.searchsorted(bucket[rows], np.arange(plan.buckets + 1))
    with pa.OSFile(str(plan.spilled(part.number)), "wb") as file, pa.ipc.new_file(file, SPILLED) as writer:
        for begin, end in pairwise(cuts.tolist()):
            writer.write_batch(batch[begin:end])
    return result


def _why_rejected(length: int, first: int, longest: int) -> tuple[str, str]:
    """(reason, detail) of a record of `length` tokens, the first trainable one at `first`; -1: none is."""
    if first < 0:
        return "trains_nothing", f"{length:,} tokens, none is trainable"
    return "trains_nothing_within_limit", f"{length:,} tokens, none of the first {longest:,} is trainable"


@dataclass
class Records:
    """The records of a part."""

    lines: int  # of the part, blank ones too
    numbers: list[int]  # of the lines that the records stand on
    names: list[str]
    ids: list[bytes]  # int32, little-endian
    masks: list[bytes]  # as in JSON: 0,1,1


def _parsed(part: Part, vocabulary: int) -> Records | Fault:
    """The records of a part, or its first line that is none."""
    try:
        return _packed(lines_of_part(part.path, part.start, part.size), part.dataset, vocabulary)
    except (ValueError, TypeError, KeyError, struct.error):
        records = Records(0, [], [], [], [])
    for number, line in enumerate(lines_of_part(part.path, part.start, part.size)):
        records.lines += 1
        if line.isspace():
            continue
        fault = fault_in_tokenized(line, part.dataset, vocabulary)
        if fault is not None and fault != TRAINS_NOTHING:
            return Fault(number, fault)
        record = orjson.loads(line)
        records.numbers.append(number)
        records.names.append(record["id"])
        records.ids.append(_packer(len(record["input_ids"]))(*record["input_ids"]))
        records.masks.append(orjson.dumps(record["loss_mask"])[1:-1])
    return records


def _packed(lines: Iterable[bytes], dataset: str, vocabulary: int) -> Records:
    """The records on lines that are as the stages write them; for others, sound or not, one of several exceptions.

    Half of a record's numbers are its mask: two bytes for each token, which need no JSON parser. So the mask is cut
    out of the line, where it follows the one list that is left. Packing takes true for 1 and false for 0: r and f are
    looked for, which no id has.
    """
    number, numbers, names, packed, masks = -1, [], [], [], []
    for number, line in enumerate(lines):
        if line.isspace():
            continue
        begin, end = line.find(b"["), line.find(b"]")
        mask_begin = end + len(MASK)
        mask_end = line.find(b"]", mask_begin)
        if line[end:mask_begin] != MASK or line.find(b"[", begin + 1, end) >= 0 or line.find(b"[", mask_end) >= 0:
            raise ValueError
        record = orjson.loads(line[:end] + line[mask_end:])
        tokens = record["input_ids"]
        if type(tokens) is not list or "loss_mask" in record or record["dataset"] != dataset:
            raise ValueError
        if line.find(b"r", begin, end) >= 0 or line.find(b"f", begin, end) >= 0:
            raise ValueError
        if mask_end - mask_begin != 2 * len(tokens) - 1:
            raise ValueError
        numbers.append(number)
        names.append(record["id"])
        packed.append(_packer(len(tokens))(*tokens))
        masks.append(line[mask_begin:mask_end])
    ids, mask = np.frombuffer(b"".join(packed), "<i4"), b",".join([*masks, b""])
    if len(ids) and (ids.min() < 0 or ids.max() >= vocabulary):
        raise ValueError
    if mask[::2].strip(b"01") or mask[1::2].strip(b","):
        raise ValueError
    if not set(map(type, names)) <= {str} or not all(names):
        raise ValueError
    return Records(number + 1, numbers, names, packed, masks)


@functools.lru_cache(1 << 16)
def _packer(count: int) -> Callable[..., bytes]:
    """Packs `count` integers of 32 bits; an error for other numbers, text and None."""
    return struct.Struct(f"<{count}i").pack


# A bucket of all spills → sorted samples


def gather_bucket(bucket: int, parts: int, plan: Plan) -> Gathered:
    """Write plan.gathered(bucket, split) for each split: samples by their hash; of repeats, the first part's first."""
    batches = []
    for number in range(parts):
        with pa.OSFile(str(plan.spilled(number))) as file:
            batches.append(pa.ipc.open_file(file).get_batch(bucket))
    batch = pa.concat_batches(batches)
    order, tie = (batch.column(name).to_numpy() for name in ("order", "tie"))
    rows = np.lexsort((tie, order))  # a stable sort
    order, tie = order[rows], tie[rows]
    repeated = np.zeros(len(rows), dtype=bool)
    repeated[1:] = (order[1:] == order[:-1]) & (tie[1:] == tie[:-1])
    result = Gathered(Counter(batch.column("dataset").take(pa.array(rows[repeated])).to_pylist()))
    heldout = batch.column("heldout").to_numpy(zero_copy_only=False)[rows]
    for split in SPLITS:
        taken = _taken(batch, rows[~repeated & (heldout == (split == "heldout"))])
        _measure(taken, split, result)
        with pa.OSFile(str(plan.gathered(bucket, split)), "wb") as file, pa.ipc.new_file(file, RECORD) as writer:
            writer.write_batch(taken)
    return result


def _taken(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    """Some rows in that order. Slices are put together by numpy: Arrow's own take of lists needs ten times as long."""
    columns = [batch.column(name).take(pa.array(rows)) for name in ("id", "dataset")]
    for name in ("input_ids", "loss_mask"):
        values, offsets = batch.column(name).values.to_numpy(), batch.column(name).offsets.to_numpy()
        starts, ends = offsets[rows], offsets[rows + 1]
        slices = [values[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        own = pa.array(np.concatenate([[0], np.cumsum(ends - starts)]), pa.int32())
        columns.append(pa.ListArray.from_arrays(own, pa.array(np.concatenate([values[:0], *slices]))))
    return pa.record_batch(columns, RECORD)


def _measure(batch: pa.RecordBatch, split: str, result: Gathered) -> None:
    if not len(batch):
        return
    mask = batch.column("loss_mask")
    offsets = mask.offsets.to_numpy()
    trained = np.add.reduceat(mask.values.to_numpy(), offsets[:-1], dtype=np.int64)
    names = batch.column("dataset").to_numpy(zero_copy_only=False)
    for dataset in set(names):
        mine = names == dataset
        result.lengths[split, dataset] = np.diff(offsets)[mine]
        result.trainable[split, dataset] = int(trained[mine].sum())
