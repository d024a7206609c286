"""One dataset read by several jobs: what each hands over, and how that is put together.

The source files, end to end, are cut into as many ranges of bytes as there are shards; a shard has the rows within its
range (readers.FilePart). An uncapped shard hands over lines that are ready to be published, each beside its key: which
copy came first, only the whole knows. A capped one hands over the conversations that may enter the sample: those that
enter the sample of all rows are among them, and only they are encoded. No row is parsed twice.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import orjson

from eyas.differences import differences
from eyas.errors import EyasError
from eyas.ledger import EXCERPT, Ledger
from eyas.prepare_lines import Encoded, Encoders, Turned
from eyas.prepare_rows import Payload, Settings, candidates
from eyas.progress import Progress
from eyas.readers import FilePart
from eyas.records import read_json, whole_file
from eyas.selection import Candidate, Everything, Sample

ROWS, REJECTS, COUNTS = "rows.jsonl", "rejects.jsonl", "counts.json"  # in a shard's folder


@dataclass(frozen=True)
class Shard:
    """One of the shards of a dataset, counted from 0, and the folder of what it hands over."""

    number: int
    count: int
    out: Path  # prepared/<ds>

    @property
    def folder(self) -> Path:
        return self.out / "shards" / f"{self.number:05}-of-{self.count:05}"

    def parts(self, files: Sequence[Path]) -> list[FilePart]:
        """The shard's share of the files; shares are equal in bytes, and none when there is nothing to share."""
        sizes = [max(1, path.stat().st_size) for path in files]  # an empty file is read, too: it may be damaged
        begin, end = (sum(sizes) * k // self.count for k in (self.number, self.number + 1))
        parts, at = [], 0  # at: byte where a file begins
        for path, size in zip(files, sizes, strict=True):
            first, last = max(begin - at, 0), min(end - at, size)
            if first < last:
                parts.append(FilePart(path, first, last - first))
            at += size
        return parts


def prepare_shard(raw_settings: dict, files: list[Path], tokenizer: Path, shard: Shard, *, threads: int = 1) -> None:
    """Read one shard's rows and write shard.folder: the rows that may be kept, rejects, counts; all or nothing.

    files: all of the dataset's files, in order. tokenizer, threads: as of prepare.prepare_dataset. EyasError when a
    file is damaged.
    """
    settings = Settings.of(raw_settings)
    chat = settings.load_chat(tokenizer)
    ledger, selection = Ledger(), settings.selection()
    with ExitStack() as stack:
        counts, rows, ledger.file = (
            stack.enter_context(whole_file(shard.folder / name)) for name in (COUNTS, ROWS, REJECTS)
        )
        stream = candidates(settings, shard.parts(files), selection, ledger)
        if isinstance(selection, Everything):
            stream = stack.enter_context(Encoders(settings, chat, threads)).encode(stream)
        else:
            stream = ((candidate, None) for candidate in stream)
        for candidate, encoded in stream:
            rows.writelines(_entry(candidate, encoded))
        told = {
            **_made_of(settings, files, chat.fingerprint),
            "bytes": {ROWS: rows.tell(), REJECTS: ledger.file.tell()},
            "duplicates": selection.duplicates,
            "beyond_cap": selection.beyond_cap,
            **{key: getattr(ledger, key) for key in ("rows_read", "reasons", "examples")},
            "filters": sorted(ledger.filters),
        }
        counts.write(orjson.dumps(told, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def merged(
    settings: Settings,
    files: list[Path],
    shards: Sequence[Shard],
    selection: Sample | Everything,
    ledger: Ledger,
    encoders: Encoders,
) -> Iterator[tuple[Candidate, Encoded | Turned]]:
    """What one job would make of all rows: candidates with what the encoder says of them, in order.

    selection, ledger: get what the shards counted. EyasError when what a shard handed over is missing, damaged, or made
    of other files or under other settings.
    """
    made_of = _made_of(settings, files, encoders.encoder.chat.fingerprint)
    told = [_told(shard, made_of) for shard in shards]
    for shard, counts in zip(shards, told, strict=True):
        part = Ledger(None, counts["rows_read"], Counter(counts["reasons"]), set(counts["filters"]), counts["examples"])
        with open(shard.folder / REJECTS, "rb") as rejects:
            ledger.add(part, rejects)
        selection.duplicates += counts["duplicates"]
        selection.beyond_cap += counts["beyond_cap"]
    entries = _entries(settings, shards)
    if isinstance(selection, Everything):
        for candidate, encoded in entries:
            if selection.offer(candidate.place, candidate.key, candidate.tag, candidate.payload) is not None:
                yield candidate, encoded
        return
    for c, _ in entries:
        selection.offer(c.place, c.key, c.tag, c.payload, c.count)
    yield from encoders.encode(selection.ranked())


def _made_of(settings: Settings, files: Sequence[Path], tokenizer: str) -> dict:
    """What shards must have in common to be put together."""
    return {
        "settings": settings.raw,
        "files": [[path.name, path.stat().st_size] for path in files],
        "tokenizer": tokenizer,
    }


def _told(shard: Shard, made_of: dict) -> dict:
    """The counts of a shard that is made of what it should be."""
    path, remedy = shard.folder / COUNTS, f"delete {shard.folder} and run again to read that shard anew"
    told = read_json(path, remedy)
    for key, now in made_of.items():
        if differing := differences(told[key], now, "" if key == "settings" else key):
            raise EyasError(f"{path}: made of other files or under other settings ({'; '.join(differing)}): {remedy}")
    for name, expected in told["bytes"].items():
        file = shard.folder / name
        found = file.stat().st_size if file.exists() else "no file"
        if found != expected:
            raise EyasError(f"{file}: expected {expected:,} bytes as {COUNTS} beside it says, found {found}: {remedy}")
    return told


# Entries: a head and a body, each on a line of its own


def _entry(candidate: Candidate, encoded: Encoded | Turned | None) -> list[bytes]:
    """The lines of a row that is handed over; the body is the record's line, or the conversation, not encoded yet."""
    payload = candidate.payload
    head = {"place": candidate.place, "key": candidate.key, "count": candidate.count}
    head |= {"where": payload.where, "id": payload.id}
    if encoded is None:
        body = payload.content + b"\n"
    elif isinstance(encoded, Turned):
        head["turned"] = [encoded.reason, encoded.detail]
        body = payload.content[:EXCERPT] + b"\n"
    else:
        head["encoded"] = [encoded.tokens, encoded.trainable, encoded.left_out]
        body = encoded.line
    return [orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE), body]


def _entries(settings: Settings, shards: Sequence[Shard]) -> Iterator[tuple[Candidate, Encoded | Turned | None]]:
    """The rows that the shards handed over, shard by shard."""
    progress, count = Progress(f"{settings.dataset}, merging", "rows"), 0
    for shard in shards:
        with open(shard.folder / ROWS, "rb") as file:
            for head in file:
                yield _read(head, next(file))
                count += 1
                progress.update(count, shard.number / len(shards))
    progress.close()


def _read(head: bytes, body: bytes) -> tuple[Candidate, Encoded | Turned | None]:
    """The inverse of `_entry`; of a row that the encoder turned down, the content is only its beginning."""
    told, encoded = orjson.loads(head), None
    if "turned" in told:
        encoded = Turned(*told["turned"])
    elif "encoded" in told:
        encoded = Encoded(body, *told["encoded"])
    payload = Payload(told["where"], told["id"], b"" if isinstance(encoded, Encoded) else body.removesuffix(b"\n"))
    return Candidate(told["place"], told["key"], payload.id, payload, told["count"]), encoded
