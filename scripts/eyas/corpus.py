"""The corpus: every dataset's token records in one order, without repeats, split into what trains and what judges.

Record files are read in parts, checked, and spread over buckets by the hash of their tokens; then each bucket is sorted
and written. So memory is bounded by a part and a bucket of each process, repeats always meet in one bucket, and the
order is that of the hashes, whatever the order of the files and the number of processes.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from eyas.corpus_spill import RECORD, SPLITS, Part, Plan, gather_bucket, spill_part
from eyas.errors import EyasError
from eyas.ledger import Ledger, length_statistics
from eyas.progress import Progress
from eyas.records import RECORD_FILES, whole_file
from eyas.workers import Workers

BLOCK_BYTES = 16 << 20  # of a record file that one process reads in one go
BUCKET_BYTES = 64 << 20  # of record files for each bucket; a bucket is sorted in memory
ROW_GROUP = 4096  # samples
METADATA = b"eyas"  # of the Parquet files: the tokenizer's fingerprint and the vocabulary, as JSON
WORKER_KILLED = (
    "corpus: a worker process was killed, most likely for memory: "
    "raise resources.prepare_mem_mb or lower resources.prepare_threads"
)
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


def build_corpus(settings: dict, sources: list[Source], out: Path, *, threads: int = 1) -> dict:
    """Write out/{train,heldout}.parquet, rejects.jsonl and stats.json; returns the statistics.

    settings: config.Config.corpus_settings. threads: processes that parse and sort; the files do not depend on it.
    A Parquet file's columns: id, dataset (strings), input_ids (list of int32), loss_mask (list of int8), of equal
    lengths. EyasError when a record file is damaged or holds another number of records than its stats.json says, when
    two were made with different tokenizers, or when nothing trains.
    """
    tokenizer, vocabulary = one_tokenizer(sources)
    ledger, tallies = Ledger(), {source.dataset: Tally() for source in sources}
    parts, total = _parts(sources), sum(source.records.stat().st_size for source in sources)
    buckets = -(-total // BUCKET_BYTES)
    plan = Plan(out / ".spill", buckets, vocabulary, settings["max_tokens"], settings["heldout"])
    shutil.rmtree(plan.spill, ignore_errors=True)  # of a build that was killed
    plan.spill.mkdir(parents=True)
    try:
        with Workers(threads, WORKER_KILLED) as workers, ExitStack() as files:
            write_stats = files.enter_context(whole_file(out / "stats.json"))
            ledger.file = files.enter_context(whole_file(out / "rejects.jsonl"))
            schema = RECORD.with_metadata({METADATA: orjson.dumps({"tokenizer": tokenizer, "vocabulary": vocabulary})})
            tables = {}
            for split in SPLITS:
                file = files.enter_context(whole_file(out / f"{split}.parquet"))
                tables[split] = files.enter_context(RowGroups(file, schema))
            _spill(sources, parts, plan, workers, ledger, tallies)
            _gather(sum(map(len, parts.values())), plan, workers, tables, tallies)
            stats = _statistics(settings, sources, tallies, ledger, tokenizer, vocabulary)
            write_stats.write(orjson.dumps(stats, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    finally:
        shutil.rmtree(plan.spill, ignore_errors=True)
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


# Record files → spills


def _parts(sources: list[Source]) -> dict[str, list[Part]]:
    """dataset → the parts of its record file."""
    parts, count = {}, 0
    for source in sources:
        starts = range(0, source.records.stat().st_size, BLOCK_BYTES)
        parts[source.dataset] = [
            Part(count + k, source.dataset, source.records, start, BLOCK_BYTES) for k, start in enumerate(starts)
        ]
        count += len(starts)
    return parts


def _spill(
    sources: list[Source],
    parts: dict[str, list[Part]],
    plan: Plan,
    workers: Workers,
    ledger: Ledger,
    tallies: dict[str, Tally],
) -> None:
    progress, count = Progress("corpus, reading", "records"), sum(map(len, parts.values()))
    results = workers.results(partial(spill_part, part, plan) for of_one in parts.values() for part in of_one)
    for source in sources:
        tally, line = tallies[source.dataset], 1
        for part, result in zip(parts[source.dataset], results, strict=False):
            if result.fault:
                where = f"{source.records}, line {line + result.fault.line}"
                raise EyasError(f"{where}: {result.fault.what}: {DAMAGE.format(source.asked_as)}")
            for number, identity, reason, detail in result.rejects:
                where = {"file": source.asked_as, "row": line + number, "id": identity}
                ledger.reject(reason, where, detail)
            ledger.rows_read += result.records
            tally.read += result.records
            tally.cut += result.cut
            line += result.lines
            progress.update(ledger.rows_read, (part.number + 1) / count, source.dataset)
        expected = source.stats["kept"]
        if tally.read != expected:
            raise EyasError(
                f"{source.records}: {tally.read:,} records, stats.json beside it says {expected:,}: the file was "
                f"cut or altered: {DAMAGE.format(source.asked_as)}"
            )
    progress.close()


# Spills → Parquet


class RowGroups:
    """A Parquet file whose row groups have ROW_GROUP samples each, however many come at once."""

    def __init__(self, file, schema: pa.Schema):
        texts = ["id", "dataset"]  # nobody asks for the lowest token
        self.writer = pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=["dataset"], write_statistics=texts
        )
        self.waiting = RECORD.empty_table()

    def add(self, table: pa.Table) -> None:
        self.waiting = pa.concat_tables([self.waiting, table])
        whole = len(self.waiting) // ROW_GROUP * ROW_GROUP
        if whole:
            self.writer.write_table(self.waiting[:whole], ROW_GROUP)
            self.waiting = self.waiting[whole:]

    def __enter__(self) -> "RowGroups":
        return self

    def __exit__(self, kind, *exc) -> None:
        if kind is None and len(self.waiting):
            self.writer.write_table(self.waiting)
        self.writer.close()


def _gather(parts: int, plan: Plan, workers: Workers, files: dict[str, RowGroups], tallies: dict[str, Tally]) -> None:
    progress, samples = Progress("corpus, writing", "samples"), 0
    results = workers.results(partial(gather_bucket, bucket, parts, plan) for bucket in range(plan.buckets))
    for bucket, result in enumerate(results):
        for split, file in files.items():
            path = plan.gathered(bucket, split)
            with pa.memory_map(str(path)) as spilled, pa.ipc.open_file(spilled) as reader:
                file.add(reader.read_all())
            path.unlink()  # what still waits for its row group stays mapped
        for dataset, count in result.repeats.items():
            tallies[dataset].repeats += count
        for (split, dataset), lengths in result.lengths.items():
            tallies[dataset].lengths[split].append(lengths)
            tallies[dataset].trainable[split] += result.trainable[split, dataset]
            samples += len(lengths)
        progress.update(samples, (bucket + 1) / plan.buckets)
    progress.close()


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
    return {
        "samples": len(lengths),
        "trainable_tokens": tally.trainable[split],
        **length_statistics(np.sort(lengths).tolist()),
    }


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
