"""The corpus: every dataset's token records in one order, without repeats, split into what trains and what judges.

Records are read in blocks of lines, checked as whole columns, and spread over buckets by the hash of their
tokens; then each bucket is sorted and written. So memory is bounded by a block and a bucket, repeats always meet in one
bucket, and the order is that of the hashes, whatever the order of the files.
"""

import hashlib
import logging
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eyas.errors import EyasError
from eyas.ledger import Ledger, length_statistics
from eyas.progress import Progress
from eyas.records import RECORD_FILES, fault_in_tokenized, whole_file

BLOCK_BYTES = 16 << 20  # of lines that are parsed at once
BUCKET_BYTES = 256 << 20  # of record files for each bucket; a bucket is sorted in memory
ROW_GROUP = 4096  # samples
SPLITS = ("train", "heldout")
RECORD = pa.schema(
    [
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
    ]
)
PARSED = [pa.string(), pa.string(), pa.list_(pa.int64()), pa.list_(pa.int64())]  # the types of a block of records
PLACE = pa.schema([("order", pa.uint64()), ("tie", pa.uint64()), ("number", pa.int64()), ("heldout", pa.bool_())])
METADATA = b"eyas"  # of the Parquet files: the tokenizer's fingerprint and the vocabulary, as JSON
DAMAGE = "run `snakemake --force {}` to rebuild it"


@dataclass(frozen=True)
class Source:
    """The token records of one dataset."""

    dataset: str
    records: Path  # …/tokenized_data.jsonl
    asked_as: str  # the file's name to Snakemake

    @property
    def stats(self) -> dict:
        path = self.records.with_name("stats.json")
        try:
            return orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise EyasError(f"{path}: cannot be read ({error}): {DAMAGE.format(self.asked_as)}") from None


@dataclass
class Tally:
    """What became of one dataset's records."""

    read: int = 0
    repeats: int = 0
    cut: int = 0
    lengths: dict[str, list[np.ndarray]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    trainable: Counter = field(default_factory=Counter)  # split → tokens


def build_corpus(settings: dict, sources: list[Source], out: Path) -> dict:
    """Write out/{train,heldout}.parquet, rejects.jsonl and stats.json; returns the statistics.

    settings: config.Config.corpus_settings. A Parquet file's columns: id, dataset (strings), input_ids (list of int32),
    loss_mask (list of int8), of equal lengths. EyasError when a record file is damaged or holds another number of
    records than its stats.json says, when two were made with different tokenizers, or when nothing trains.
    """
    tokenizer, vocabulary = one_tokenizer(sources)
    ledger, tallies = Ledger(), {source.dataset: Tally() for source in sources}
    out.mkdir(parents=True, exist_ok=True)
    spill = Path(tempfile.mkdtemp(prefix=".buckets-", dir=out))
    try:
        with ExitStack() as files:
            write_stats = files.enter_context(whole_file(out / "stats.json"))
            ledger.file = files.enter_context(whole_file(out / "rejects.jsonl"))
            schema = RECORD.with_metadata({METADATA: orjson.dumps({"tokenizer": tokenizer, "vocabulary": vocabulary})})
            writers = {}
            for split in SPLITS:
                file = files.enter_context(whole_file(out / f"{split}.parquet"))
                options = {"compression": "zstd", "use_dictionary": ["dataset", "loss_mask"]}
                writers[split] = files.enter_context(pq.ParquetWriter(file, schema, **options))
            total = sum(source.records.stat().st_size for source in sources)
            buckets = Buckets(spill, max(1, -(-total // BUCKET_BYTES)))
            with buckets:
                _spread(settings, sources, vocabulary, total, buckets, ledger, tallies)
            _gather(buckets, writers, schema, [s.dataset for s in sources], tallies)
            stats = _statistics(settings, sources, tallies, ledger, tokenizer, vocabulary)
            write_stats.write(orjson.dumps(stats, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    finally:
        shutil.rmtree(spill, ignore_errors=True)
    return stats


def one_tokenizer(sources: list[Source]) -> tuple[str, int]:
    """(fingerprint, vocabulary) that all record files were made with; EyasError when they differ."""
    first, found = sources[0], None
    for source in sources:
        stats = source.stats
        own = (stats["tokenizer"], stats["vocabulary"])
        if found is not None and own != found:
            raise EyasError(
                f"{source.records}: made with tokenizer {own[0]} of {own[1]:,} tokens, expected {found[0]} of "
                f"{found[1]:,} as in {first.records}: rebuild the older one with `snakemake --force {source.asked_as}` "
                f"or `snakemake --force {first.asked_as}`"
            )
        found = own
    return found


# Files → buckets


class Buckets:
    """Arrow streams in a folder, one for each range of the hash."""

    def __init__(self, folder: Path, count: int):
        self.paths = [folder / f"{k:04}.arrow" for k in range(count)]
        self.schema = pa.schema([*RECORD, *PLACE])

    def __enter__(self) -> "Buckets":
        self.stack = ExitStack()
        self.writers = [
            self.stack.enter_context(
                pa.ipc.new_stream(self.stack.enter_context(pa.OSFile(str(path), "wb")), self.schema)
            )
            for path in self.paths
        ]
        return self

    def __exit__(self, *exc) -> None:
        self.stack.close()

    def add(self, table: pa.Table) -> None:
        order = table.column("order").to_numpy()
        which = (order >> np.uint64(32)) * np.uint64(len(self.paths)) >> np.uint64(32)
        for k, writer in enumerate(self.writers):
            rows = np.flatnonzero(which == k)
            if len(rows) == len(table):
                writer.write_table(table)
            elif len(rows):
                places = [table.column(name).take(pa.array(rows)) for name in PLACE.names]
                writer.write_table(pa.table([*_taken(table, rows).columns, *places], self.schema))


def _spread(settings, sources, vocabulary, total, buckets: Buckets, ledger: Ledger, tallies) -> None:
    progress, done, number = Progress("corpus", "records"), 0, 0
    for source in sources:
        tally = tallies[source.dataset]
        for line_number, lines in _blocks(source.records):
            table = _parsed(source, line_number, lines, vocabulary)
            ledger.rows_read += len(table)
            tally.read += len(table)
            placed = _placed(settings, source, table, line_number, number, ledger, tally)
            number += len(table)
            buckets.add(placed)
            done += sum(map(len, lines))
            progress.update(number, done / total, source.dataset)
        expected = source.stats["kept"]
        if tally.read != expected:
            raise EyasError(
                f"{source.records}: {tally.read:,} records, stats.json beside it says {expected:,}: the file was "
                f"cut or altered: {DAMAGE.format(source.asked_as)}"
            )
    progress.close()


def _blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first line, lines that follow each other); blank lines are left out, the numbers count them."""
    number = 1
    with open(path, "rb") as file:
        while lines := file.readlines(BLOCK_BYTES):
            if any(line.isspace() for line in lines):
                for k, line in enumerate(lines):  # rare: one by one, so that the numbers stay right
                    if not line.isspace():
                        yield number + k, [line]
            else:
                yield number, lines
            number += len(lines)


def _parsed(source: Source, line_number: int, lines: list[bytes], vocabulary: int) -> pa.Table:
    """The records of some lines; EyasError names the first line that is none."""
    try:
        records = [orjson.loads(line) for line in lines]
        # Types are found by Arrow and compared: told the type, it would make an int of 1.5 and of true.
        columns = [pa.array([record[name] for record in records]) for name in RECORD.names]
        sound = [c.type for c in columns] == PARSED
        table = pa.table([c.cast(f.type) for c, f in zip(columns, RECORD, strict=True)], RECORD) if sound else None
        sound = sound and _is_sound(table, source.dataset, vocabulary)
    except (ValueError, TypeError, KeyError, OverflowError):  # Arrow's own are among them
        sound = False
    if sound:
        return table
    for k, line in enumerate(lines):
        fault = fault_in_tokenized(line, source.dataset, vocabulary)
        if fault and fault != "loss_mask trains no token":
            raise EyasError(f"{source.records}, line {line_number + k}: {fault}: {DAMAGE.format(source.asked_as)}")
    raise EyasError(
        f"{source.records}, lines {line_number} and on: Arrow cannot read them: {DAMAGE.format(source.asked_as)}"
    )


def _is_sound(table: pa.Table, dataset: str, vocabulary: int) -> bool:
    columns = {name: table.column(name) for name in RECORD.names}
    if any(column.null_count for column in columns.values()):
        return False
    if pc.any(pc.not_equal(columns["dataset"], dataset)).as_py():
        return False
    ids, mask = (_list_of(columns[name]) for name in ("input_ids", "loss_mask"))
    if not np.array_equal(_offsets(ids), _offsets(mask)):
        return False
    for values, top in ((ids.flatten(), vocabulary), (mask.flatten(), 2)):
        if values.null_count:
            return False
        values = values.to_numpy()
        if len(values) and (values.min() < 0 or values.max() >= top):
            return False
    return True


def _list_of(column: pa.ChunkedArray) -> pa.ListArray:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _offsets(array: pa.ListArray) -> np.ndarray:
    """[rows + 1], from 0."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0]


def _placed(settings, source: Source, table: pa.Table, line_number, number, ledger: Ledger, tally: Tally) -> pa.Table:
    """The records that enter, cut to the limit, each with its place in the order and its side of the split."""
    ids_list, mask_list = (_list_of(table.column(name)) for name in ("input_ids", "loss_mask"))
    ids, mask, offsets = ids_list.flatten().to_numpy(), mask_list.flatten().to_numpy(), _offsets(ids_list)
    starts, ends = offsets[:-1], np.minimum(offsets[1:], offsets[:-1] + settings["max_tokens"])
    trained = np.flatnonzero(mask)
    first_of, after = np.searchsorted(trained, starts), np.searchsorted(trained, ends)
    enters = after > first_of
    too_long = offsets[1:] > ends
    for k in np.flatnonzero(~enters):
        where = {"file": source.asked_as, "row": int(line_number + k), "id": table.column("id")[k].as_py()}
        length = int(offsets[k + 1] - offsets[k])
        if np.searchsorted(trained, offsets[k + 1]) > first_of[k]:
            detail = f"{length:,} tokens, none of the first {settings['max_tokens']:,} is trainable"
            ledger.reject("trains_nothing_within_limit", where, detail)
        else:
            ledger.reject("trains_nothing", where, f"{length:,} tokens, none is trainable")
    kept = np.flatnonzero(enters)
    tally.cut += int((enters & too_long).sum())
    firsts = trained[first_of[kept]]
    limit, places, sides = round(settings["heldout"] * 2.0**64), [], []
    raw = memoryview(np.ascontiguousarray(ids)).cast("B")
    for start, first, end in zip(starts[kept].tolist(), firsts.tolist(), ends[kept].tolist(), strict=True):
        digest = hashlib.blake2b(raw[4 * start : 4 * first], digest_size=16)
        sides.append(struct.unpack("<Q", digest.digest()[:8])[0] < limit)  # by the prompt alone
        digest.update(raw[4 * first : 4 * end])
        places.append(digest.digest())
    orders = np.frombuffer(b"".join(places), dtype="<u8").reshape(-1, 2)
    lengths = ends[kept] - starts[kept]
    own = pa.array(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
    if len(kept) == len(table) and not too_long.any():
        lists = [ids_list.flatten(), mask_list.flatten()]
    else:
        rows = np.repeat(starts[kept] - np.concatenate([[0], lengths.cumsum()[:-1]]), lengths)
        where = rows + np.arange(len(rows))
        lists = [pa.array(ids[where]), pa.array(mask[where])]
    return pa.table(
        [
            *(table.column(name).take(pa.array(kept)) for name in ("id", "dataset")),
            *(pa.ListArray.from_arrays(own, values) for values in lists),
            pa.array(orders[:, 0]),
            pa.array(orders[:, 1]),
            pa.array(number + kept),
            pa.array(sides, pa.bool_()),
        ],
        schema=pa.schema([*RECORD, *PLACE]),
    )


# Buckets → Parquet


def _gather(buckets: Buckets, writers: dict, schema: pa.Schema, datasets: list[str], tallies: dict[str, Tally]) -> None:
    for path in buckets.paths:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
            table = reader.read_all()
        path.unlink()
        table = table.combine_chunks()
        order, tie, number = (table.column(name).to_numpy() for name in ("order", "tie", "number"))
        rows = np.lexsort((number, tie, order))
        order, tie = order[rows], tie[rows]
        repeated = np.zeros(len(rows), dtype=bool)
        repeated[1:] = (order[1:] == order[:-1]) & (tie[1:] == tie[:-1])
        for dataset, count in Counter(table.column("dataset").take(pa.array(rows[repeated])).to_pylist()).items():
            tallies[dataset].repeats += count
        heldout = table.column("heldout").to_numpy()[rows]
        for split in SPLITS:
            part = _taken(table, rows[~repeated & (heldout == (split == "heldout"))])
            writers[split].write_table(part.replace_schema_metadata(schema.metadata), ROW_GROUP)
            _measure(part, split, tallies)


def _taken(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Some rows in that order. Slices are put together by numpy: Arrow's own take of lists needs ten times as long."""
    lists = {name: _list_of(table.column(name)) for name in ("input_ids", "loss_mask")}
    offsets = _offsets(lists["input_ids"])
    starts, ends = offsets[rows].tolist(), offsets[rows + 1].tolist()
    own = pa.array(np.concatenate([[0], np.cumsum(offsets[rows + 1] - offsets[rows])]).astype(np.int32))
    columns = [table.column(name).take(pa.array(rows)) for name in ("id", "dataset")]
    for column in lists.values():
        values = column.flatten().to_numpy()
        slices = [values[start:end] for start, end in zip(starts, ends, strict=True)]
        columns.append(pa.ListArray.from_arrays(own, np.concatenate([values[:0], *slices])))
    return pa.table(columns, RECORD)


def _measure(table: pa.Table, split: str, tallies: dict[str, Tally]) -> None:
    if not len(table):
        return
    offsets = _offsets(_list_of(table.column("loss_mask")))
    mask = _list_of(table.column("loss_mask")).flatten().to_numpy()
    trained = np.add.reduceat(mask.astype(np.int64), offsets[:-1])
    names = table.column("dataset").to_numpy(zero_copy_only=False)
    for dataset in set(names):
        mine = names == dataset
        tallies[dataset].lengths[split].append(np.diff(offsets)[mine])
        tallies[dataset].trainable[split] += int(trained[mine].sum())


def _statistics(
    settings, sources: list[Source], tallies: dict[str, Tally], ledger: Ledger, tokenizer, vocabulary
) -> dict:
    splits = {}
    for split in SPLITS:
        per = {s.dataset: _split_statistics(tallies[s.dataset], split) for s in sources}
        whole = Tally(lengths={split: [a for s in sources for a in tallies[s.dataset].lengths[split]]})
        whole.trainable[split] = sum(t.trainable[split] for t in tallies.values())
        splits[split] = {**_split_statistics(whole, split), "datasets": per}
    repeats, kept = sum(t.repeats for t in tallies.values()), sum(s["samples"] for s in splits.values())
    logging.info("corpus: %s samples, %s repeats, %s rejects", f"{kept:,}", f"{repeats:,}", f"{ledger.rejected:,}")
    if not splits["train"]["trainable_tokens"]:
        raise EyasError(f"corpus: nothing trains: {ledger.rows_read:,} records were read:\n{ledger.top_reasons()}")
    return {
        "rows_read": ledger.rows_read,
        "kept": kept,
        "duplicates": repeats,
        "rejected": ledger.rejected,
        "reasons": dict(ledger.reasons.most_common()),
        "cut": sum(t.cut for t in tallies.values()),
        "by_dataset": {
            s.dataset: {"read": t.read, "duplicates": t.repeats, "cut": t.cut}
            for s in sources
            for t in [tallies[s.dataset]]
        },
        **splits,
        "tokenizer": tokenizer,
        "vocabulary": vocabulary,
        "settings": settings,
    }


def _split_statistics(tally: Tally, split: str) -> dict:
    lengths = np.concatenate(tally.lengths[split]) if tally.lengths[split] else np.zeros(0, dtype=np.int64)
    return {"samples": len(lengths), "trainable_tokens": tally.trainable[split], **length_statistics(lengths.tolist())}


# Readers of the corpus


def corpus_metadata(path: Path) -> dict:
    """{"tokenizer", "vocabulary"} of a Parquet file of the corpus."""
    try:
        return orjson.loads(pq.read_schema(path).metadata[METADATA])
    except (OSError, pa.ArrowInvalid, KeyError, TypeError) as error:
        raise EyasError(
            f"{path}: not a file of the corpus ({error}): run `snakemake --force corpus/stats.json`"
        ) from None


def sources_of(names: Iterable[str], tokenized: set[str], prepared: Path, responses: Path) -> list[Source]:
    """The record files of datasets, in their order: prepared/ of those in `tokenized`, responses/ of the others."""
    found = []
    for name in names:
        folder, asked = (prepared, "prepared") if name in tokenized else (responses, "responses")
        file = f"{name}/{RECORD_FILES['tokenized_data']}"
        found.append(Source(name, folder / file, f"{asked}/{file}"))
    return found
