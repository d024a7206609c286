"""A shard of hidden states: one safetensors file, many samples back to back.

    input_ids  int32 [tokens]        loss_mask  uint8 [tokens]
    aux        bf16  [tokens, 3·H]   the three layers' states, low, mid, high, side by side
    last       bf16  [tokens, H]     the state after the final norm: what lm_head reads
    offsets    int64 [samples + 1]   sample k: rows offsets[k] to offsets[k + 1]
    status     uint8 [samples]       CAPTURED, or why its states must not be used: NOT_FINITE, DISAGREES
    agreement  uint8 [samples, 2]    positions at which lm_head's top-1 was looked up, and those where it was the text's
    digests    uint8 [samples, 16]   XXH3-128 of all that is here of the sample

In fp8, aux and last are e4m3, and aux_scale (fp32 [tokens, 3]) and last_scale (fp32 [tokens, 1]) hold what each state
of each token is multiplied by (see states_encoding.py).

Sizes are known before the first state is: the file is laid out at once, rows are written where they belong by whoever
has them (this process, or the server), and a sample is finished once it was read back and found sound. So memory does
not grow with the shard, and a shard that was interrupted goes on where it was. It gets its name when all samples are
finished. numpy has no bf16 and no fp8: their bits are handled as uint16 and uint8.
"""

import hashlib
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import xxhash

from eyas.errors import EyasError
from eyas.records import sync_folder

PENDING, CAPTURED, NOT_FINITE, DISAGREES = range(4)
REASONS = {NOT_FINITE: "not_finite", DISAGREES: "disagrees"}
DTYPES = {
    **{"I64": np.int64, "F32": np.float32, "I32": np.int32, "F16": np.float16, "BF16": np.uint16},
    **{"F8_E4M3": np.uint8, "U8": np.uint8, "BOOL": np.uint8},
}
ENCODINGS = {"bf16": "BF16", "fp8": "F8_E4M3"}
STATES = ("aux_scale", "last_scale", "aux", "last")  # tensors that hold them; bf16 has no scales
ALIGNMENT = 64  # of the data behind the header
FORMAT = "eyas-hidden-states-2"
SPECIAL = 0xFF00  # bits of a bf16 without its sign, shifted left: from here on infinities and NaN
BLOCK = 1 << 16  # numbers that are looked at in one go: they stay in the cache


@dataclass(frozen=True)
class Sample:
    """What is fed to the target: token ids and which of them are trained on, of equal lengths."""

    id: str
    dataset: str
    input_ids: np.ndarray
    loss_mask: np.ndarray


@dataclass(frozen=True)
class Slot:
    """Where one sample's rows belong in a file: for each tensor of states the first byte, and the bytes of a row."""

    path: str
    rows: int
    places: dict[str, tuple[int, int]]

    @property
    def encoding(self) -> str:
        return "fp8" if "aux_scale" in self.places else "bf16"

    def write(self, first: int, rows: dict[str, memoryview]) -> None:
        """Rows from row `first` on, as bytes of each tensor. ValueError when they do not fit."""
        if rows.keys() != self.places.keys():
            raise ValueError(f"states of {', '.join(rows)}, expected {', '.join(self.places)}")
        count = len(rows["last"]) // self.places["last"][1]
        for name, (_, row_bytes) in self.places.items():
            if first < 0 or first + count > self.rows or len(rows[name]) != count * row_bytes:
                raise ValueError(
                    f"{name}: rows {first} to {first + count} of {len(rows[name]) / max(1, count):.0f} bytes, "
                    f"expected {self.rows} of {row_bytes}"
                )
        file = os.open(self.path, os.O_WRONLY)
        try:
            for name, (start, row_bytes) in self.places.items():
                _write_at(file, start + first * row_bytes, rows[name])
        finally:
            os.close(file)


def _write_at(file: int, offset: int, data: memoryview) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        offset, data = offset + written, data[written:]


class ShardWriter:
    """Writes path; until it is published, path lies beside it as .<name>.partial.

    metadata: strings that say what the states are; they decide whether an unfinished file can be gone on with.
    hidden: H. layers: how many states `aux` holds side by side. encoding: a key of ENCODINGS.
    """

    def __init__(
        self,
        path: Path,
        samples: Sequence[Sample],
        hidden: int,
        metadata: dict[str, str],
        *,
        layers: int = 3,
        encoding: str = "bf16",
    ):
        self.path, self.samples = path, samples
        self.partial = path.with_name(f".{path.name}.partial")
        self.offsets = np.concatenate([[0], np.cumsum([len(s.input_ids) for s in samples])]).astype(np.int64)
        tokens = int(self.offsets[-1])
        ids = orjson.dumps([[s.id, s.dataset] for s in samples]).decode()
        content = hashlib.blake2b(digest_size=16)
        for sample in samples:
            content.update(sample.input_ids.astype(np.int32).tobytes() + sample.loss_mask.astype(np.uint8).tobytes())
        self.layout = Layout.of(
            {
                "offsets": ("I64", (len(samples) + 1,)),
                **states_layout(tokens, hidden, layers, encoding),
                "input_ids": ("I32", (tokens,)),
                "loss_mask": ("U8", (tokens,)),
                "status": ("U8", (len(samples),)),
                "agreement": ("U8", (len(samples), 2)),
                "digests": ("U8", (len(samples), 16)),
            },
            {"format": FORMAT, "samples": ids, "content": content.hexdigest(), **metadata},
        )

    def __enter__(self) -> "ShardWriter":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self._goes_on()
        if fresh:
            with open(self.partial, "wb") as file:
                file.write(self.layout.header)
                file.truncate(self.layout.size)
        self.file = open(self.partial, "r+b")
        self.map = mmap.mmap(self.file.fileno(), self.layout.size)
        self.arrays = self.layout.arrays(self.map)
        if fresh:
            self.arrays["offsets"][:] = self.offsets
            for name in ("input_ids", "loss_mask"):
                if self.samples:
                    self.arrays[name][:] = np.concatenate([getattr(s, name) for s in self.samples])
        else:  # what was finished before must be on the disk, too
            for k in np.flatnonzero(self.arrays["status"] != PENDING):
                if digest_of(self.arrays, k) != self.arrays["digests"][k].tobytes():
                    self.arrays["status"][k] = PENDING
        return self

    def __exit__(self, *exc) -> None:
        self.arrays = {}
        with suppress(BufferError):  # somebody still looks at an array: the map goes with it
            self.map.close()
        self.file.close()

    def _goes_on(self) -> bool:
        try:
            with open(self.partial, "rb") as file:
                same = file.read(len(self.layout.header)) == self.layout.header
                return same and os.fstat(file.fileno()).st_size == self.layout.size
        except FileNotFoundError:
            return False

    @property
    def pending(self) -> list[int]:
        """Indexes of the samples that are not finished."""
        return np.flatnonzero(self.arrays["status"] == PENDING).tolist()

    def slot(self, k: int) -> Slot:
        """Where sample k's rows belong."""
        start, rows = int(self.offsets[k]), int(self.offsets[k + 1] - self.offsets[k])
        tensors = {name: self.layout.tensors[name] for name in STATES if name in self.layout.tensors}
        places = {name: (t.start + start * t.row_bytes, t.row_bytes) for name, t in tensors.items()}
        return Slot(str(self.partial.absolute()), rows, places)

    def rows(self, k: int) -> slice:
        """The rows of sample k in each tensor of tokens."""
        return slice(int(self.offsets[k]), int(self.offsets[k + 1]))

    def is_finite(self, k: int) -> bool:
        """Whether no state of sample k is infinite or NaN."""
        names = [name for name in STATES if name in self.arrays]
        return all(is_finite(self.arrays[name][self.rows(k)]) for name in names)

    def finish(self, k: int, status: int = CAPTURED, agreement: tuple[int, int] = (0, 0)) -> None:
        """Sample k's rows are written and looked at: seal them."""
        self.arrays["agreement"][k] = agreement
        self.arrays["status"][k] = status
        self.arrays["digests"][k] = np.frombuffer(digest_of(self.arrays, k), dtype=np.uint8)

    def publish(self) -> None:
        """Give the file its name; every sample must be finished."""
        if self.pending:
            raise ValueError(f"{self.path}: {len(self.pending)} samples are not finished")
        self.map.flush()
        os.fsync(self.file.fileno())
        os.replace(self.partial, self.path)
        sync_folder(self.path.parent)


class Shard:
    """A published shard, mapped: arrays[name] as in the module's docstring, bf16 as uint16; metadata: strings.

    EyasError when the file is not a whole shard. `verify` reads everything and compares the digests.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with open(path, "rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self.layout = Layout.read(self.map)
            self.metadata = self.layout.metadata
            self.arrays = self.layout.arrays(self.map)
            self.ids = orjson.loads(self.metadata["samples"])  # [id, dataset] of each
            offsets = self.arrays["offsets"]
            if not (offsets[0] == 0 and offsets[-1] == len(self.arrays["input_ids"]) and (np.diff(offsets) > 0).all()):
                raise ValueError("offsets do not go up from 0 to the number of tokens")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EyasError(f"{path}: not a whole shard of hidden states ({error}): {self.remedy}") from None

    @property
    def remedy(self) -> str:
        return f"run `snakemake --force {'/'.join(self.path.parts[-3:])}` to capture it again"

    def __len__(self) -> int:
        return len(self.arrays["status"])

    def check(self, k: int) -> None:
        """EyasError when the bytes of sample k are not those that were captured."""
        if digest_of(self.arrays, k) != self.arrays["digests"][k].tobytes():
            raise EyasError(f"{self.path}: sample {k} ({self.ids[k][0]}) is damaged (checksum): {self.remedy}")

    def verify(self) -> None:
        """EyasError when any sample is damaged."""
        for k in range(len(self)):
            self.check(k)


def shard_path(folder: Path, shard: int, shards: int) -> Path:
    """The file of one shard of a split's folder."""
    return folder / f"{shard:05}-of-{shards:05}.safetensors"


@dataclass(frozen=True)
class Captured:
    """How far a shard is that is being captured."""

    samples: int
    samples_done: int
    tokens: int
    tokens_done: int


def captured_of(path: Path) -> Captured | None:
    """Of the partial file of a shard; None when there is none. ValueError when it is damaged, or just being laid out.

    Read, not mapped: the job that writes it may cut it at any time.
    """
    try:
        with open(path.with_name(f".{path.name}.partial"), "rb") as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(8)
            length = int.from_bytes(head, "little")
            layout = Layout.read(head + file.read(min(length, size)), size)
            found = {}
            for name in ("offsets", "status"):
                tensor = layout.tensors[name]
                file.seek(tensor.start)
                found[name] = np.frombuffer(file.read(tensor.bytes), DTYPES[tensor.dtype])
    except FileNotFoundError:
        return None
    except (KeyError, TypeError) as error:
        raise ValueError(f"its header lacks something ({error!r})") from None
    done, lengths = found["status"] != PENDING, np.diff(found["offsets"])
    if len(done) != len(lengths):
        raise ValueError(f"{len(done)} samples by status, {len(lengths)} by offsets")
    return Captured(len(done), int(done.sum()), int(lengths.sum()), int(lengths[done].sum()))


def digest_of(arrays: dict[str, np.ndarray], k: int) -> bytes:
    """16 bytes over all that a shard holds of sample k."""
    start, end = arrays["offsets"][k], arrays["offsets"][k + 1]
    digest = xxhash.xxh3_128()
    for name in ("status", "agreement"):
        digest.update(arrays[name][k : k + 1])
    for name in ("input_ids", "loss_mask", *STATES):
        if name in arrays:
            digest.update(arrays[name][start:end])
    return digest.digest()


def is_finite(numbers: np.ndarray) -> bool:
    """Whether no number is infinite or NaN; bf16 and e4m3 come as bits, contiguous (e4m3 has no infinity)."""
    if numbers.dtype == np.float32:
        return bool(np.isfinite(numbers).all())
    flat = numbers.reshape(-1)
    blocks = (flat[k : k + BLOCK] for k in range(0, len(flat), BLOCK))
    if numbers.dtype == np.uint8:
        return all((block & 0x7F).max() < 0x7F for block in blocks)
    return all((block << np.uint16(1)).max() < SPECIAL for block in blocks)


def states_layout(tokens: int, hidden: int, layers: int, encoding: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each tensor that holds states."""
    dtype = ENCODINGS[encoding]
    scales = {"aux_scale": ("F32", (tokens, layers)), "last_scale": ("F32", (tokens, 1))}
    return {
        **(scales if encoding == "fp8" else {}),
        "aux": (dtype, (tokens, layers * hidden)),
        "last": (dtype, (tokens, hidden)),
    }


def bytes_per_token(hidden: int, layers: int, encoding: str) -> int:
    """Of a shard: states, token id and mask."""
    return sum(Tensor(*kind, 0).row_bytes for kind in states_layout(1, hidden, layers, encoding).values()) + 5


# The safetensors layout


@dataclass(frozen=True)
class Tensor:
    """dtype and shape as the header names them; start: byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * np.dtype(DTYPES[self.dtype]).itemsize

    @property
    def bytes(self) -> int:
        return self.shape[0] * self.row_bytes


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies; header: the bytes before the data."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    header: bytes
    size: int

    @classmethod
    def of(cls, shapes: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str]) -> "Layout":
        """Tensors in the order given, without gaps (safetensors allows none): the widest types first."""
        entries, at = {"__metadata__": metadata}, 0
        for name, (dtype, shape) in shapes.items():
            size = Tensor(dtype, shape, 0).bytes
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = orjson.dumps(entries)
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        tensors = {
            name: Tensor(dtype, shape, len(header) + entries[name]["data_offsets"][0])
            for name, (dtype, shape) in shapes.items()
        }
        return cls(tensors, metadata, header, len(header) + at)

    @classmethod
    def read(cls, data: mmap.mmap | bytes, file_size: int | None = None) -> "Layout":
        """ValueError when the data is not a safetensors file of this format, or not all of it is there.

        file_size: when `data` is only its beginning, with the header.
        """
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 + length:
            raise ValueError("its header is cut")
        entries = orjson.loads(data[8 : 8 + length])
        metadata = entries.pop("__metadata__", {})
        if metadata.get("format") != FORMAT:
            raise ValueError(f"format is {metadata.get('format')!r}, expected {FORMAT!r}")
        tensors = {
            name: Tensor(e["dtype"], tuple(e["shape"]), 8 + length + e["data_offsets"][0])
            for name, e in entries.items()
        }
        size = 8 + length + max(e["data_offsets"][1] for e in entries.values())
        found = len(data) if file_size is None else file_size
        if found != size:
            raise ValueError(f"{found:,} bytes, expected {size:,}")
        return cls(tensors, metadata, bytes(data[: 8 + length]), size)

    def arrays(self, data: mmap.mmap) -> dict[str, np.ndarray]:
        return {
            name: np.frombuffer(data, DTYPES[t.dtype], t.bytes // np.dtype(DTYPES[t.dtype]).itemsize, t.start).reshape(
                t.shape
            )
            for name, t in self.tensors.items()
        }
