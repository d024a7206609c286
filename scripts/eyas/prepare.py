"""One dataset: from its source files to prepared/<ds>/ (records, rejects, statistics).

rows read = kept + rejected + duplicates + beyond the cap, always. Memory does not grow with the rows
(only with what is kept of a capped dataset, and 100 bytes for each row of an uncapped one).
"""

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import orjson

from eyas.adapters.base import Filtered, Rejected
from eyas.chat import Chat
from eyas.errors import EyasError
from eyas.ledger import Ledger, length_statistics
from eyas.prepare_lines import Encoder, Encoders, Turned
from eyas.prepare_rows import Settings, candidate_of, candidates, rows_of
from eyas.prepare_shards import Shard, merged
from eyas.readers import FilePart
from eyas.records import RECORD_FILES, whole_file


def prepare_dataset(
    raw_settings: dict,
    files: list[Path],
    tokenizer: Path,
    out: Path,
    *,
    threads: int = 1,
    origin: Sequence[dict] = (),
    shards: int = 1,
) -> dict:
    """Write out/{prompts|tokenized_data}.jsonl, rejects.jsonl and stats.json; returns the statistics.

    files: the dataset's files, in order. tokenizer: folder of the target's tokenizer. threads: processes that encode.
    origin: where the files come from (a manifest's "sources"), for the record. shards: above 1, the files were read by
    so many jobs (prepare_shards.prepare_shard), and what these wrote to out/shards/ is put together; the result is the
    same.
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
        selection = settings.selection()
        with Encoders(settings, chat, threads) as encoders:
            if shards > 1:
                of_shards = [Shard(k, shards, out) for k in range(shards)]
                judged = merged(settings, files, of_shards, selection, ledger, encoders)
            else:
                parts = [FilePart(path) for path in files]
                judged = encoders.encode(candidates(settings, parts, selection, ledger))
            counts = _write_records(settings.preparation.cap, judged, records, ledger)
        counts.duplicates += selection.duplicates
        counts.beyond_cap += selection.beyond_cap
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
        for where, value in rows_of(path, settings.adapter):
            if ledger.rows_read >= rows * number // len(files):
                break
            ledger.rows_read += 1
            try:
                encoded = encoder.encode([candidate_of(settings, where, value)[2]])[0]
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


def _write_records(cap: int | None, judged: Iterable[tuple], records, ledger: Ledger) -> Counts:
    """judged: (Candidate, Encoded or Turned) in order."""
    counts, late = Counts(), Ledger(BytesIO())
    for candidate, encoded in judged:
        if cap and counts.kept == cap:
            counts.beyond_cap += candidate.count
        elif isinstance(encoded, Turned):
            where, row = candidate.payload.where, candidate.payload.content
            late.reject(encoded.reason, where, encoded.detail, row, count=candidate.count)
        else:
            records.write(encoded.line)
            counts.kept += 1
            counts.duplicates += candidate.count - 1
            counts.trainable += encoded.trainable
            counts.reasoning_left_out += encoded.left_out
            counts.lengths.append(encoded.tokens)
    # Listed after all that was rejected before: when a chunk is encoded depends on the number of workers.
    ledger.add(late, late.file.getvalue().splitlines(keepends=True))
    return counts


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
