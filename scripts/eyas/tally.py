"""The inventory: how many valid records each dataset has, of which class, and what is wrong with the rest.

Every line of a record file is parsed and checked; a count of lines is no count of records. What differs
from today's settings is reported as stale with the command that rebuilds it, and rebuilt by nobody but the user.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson

from eyas import pages
from eyas.config import Config
from eyas.differences import differences
from eyas.generate import COUNTERS
from eyas.progress import Progress, duration
from eyas.records import RECORD_FILES, fault_in_prompt, fault_in_tokenized, is_blank, lines_of_part
from eyas.tally_built import built
from eyas.workers import Workers

TOKENIZED, AWAITING, ANSWERED, ANSWERS = "tokenized", "awaiting inference", "answered", "answers"
JUDGING = "benchmark"
CLASSES = {"tokenized_data": TOKENIZED, "prompts": AWAITING}
NOTES = {
    "prepared": "Each line was parsed and checked. Tokens of prompts are what the target reads; its answers are what "
    "is trained on.",
    "responses": "Each line was parsed and checked. Trainable tokens are those that the target generated.",
}
FAULTS_SHOWN = 3  # for each dataset
PART_BYTES = 32 << 20  # of a file that one process checks in one go
WORKER_KILLED = "tally: a worker process was killed, most likely for memory: run it with --threads 1"
NOTHING = {"records": 0, "tokens": 0, "trainable_tokens": 0}


@dataclass(frozen=True)
class Piece:
    """The records of one dataset at one stage."""

    stage: str
    dataset: str
    kind: str  # of records: a key of RECORD_FILES
    label: str  # the class it counts in
    path: Path
    asked_as: str  # the file's name to Snakemake
    settings: dict  # today's

    @property
    def stats(self) -> Path:
        return self.path.with_name("stats.json")


def tally(
    config: Config,
    prepared: Path,
    responses: Path | None = None,
    state: Path | None = None,
    *,
    command: str = "snakemake",
    processes: int = 1,
) -> dict:
    """Count the valid records of every dataset of `config` in the folders `prepared` and `responses`, as plain JSON.

    state: with the live counters of what is being answered (default: state, beside prepared). command: how Snakemake
    is called in the working directory, for the commands that mend a problem.

    {"settings_fingerprint",
     "stages": {"prepared": {"rows": [{"dataset", "class", "state", "records", "tokens", "trainable_tokens",
                                       "bytes", "what", "command"}],
                             "classes": {class: {"datasets", "records", "tokens", "trainable_tokens"}}}},
     "total": as a class, "problems": [{"stage", "dataset", "state", "what", "command"}],
     "underway": [the live counters (generate.COUNTERS) of each dataset that has no answers yet],
     "together": what was made of all datasets (see built.built)}

    state: ok, missing, empty, damaged or stale; `what` [str]: everything that is wrong; `command`: what rebuilds
    it, None when ok. The first tokens of a prompt dataset are those that the target will read.
    """
    responses = responses or prepared.with_name("responses")
    pieces = [*_prepared(config, prepared, responses), *_responses(config, responses)]
    rows = _rows(pieces, command, processes)
    stages: dict = {}
    for piece, row in zip(pieces, rows, strict=True):
        stages.setdefault(piece.stage, {"rows": []})["rows"].append(row)
    for name, stage in stages.items():
        present = {r["class"] for r in stage["rows"]} | ({TOKENIZED, AWAITING} if name == "prepared" else set())
        labels = [c for c in (TOKENIZED, AWAITING, ANSWERED, ANSWERS, JUDGING) if c in present]
        stage["classes"] = {c: _sum(r for r in stage["rows"] if r["class"] == c) for c in labels}
    return {
        "settings_fingerprint": settings_fingerprint(config),
        "stages": stages,
        "total": _sum(r for r in rows if r["class"] not in (ANSWERED, JUDGING)),  # counted by answers; not trained
        "problems": [
            {"stage": p.stage, **{k: r[k] for k in ("dataset", "state", "what", "command")}}
            for p, r in zip(pieces, rows, strict=True)
            if r["state"] != "ok"
        ],
        "underway": _underway(config, state or prepared.with_name("state"), responses),
        "together": built(config, prepared.parent, command),
    }


def _underway(config: Config, state: Path, responses: Path) -> list[dict]:
    found = []
    for name in config.names():
        path = state / "generate_responses" / name / COUNTERS
        if path.exists() and not _answers(responses, name).exists():
            found.append(orjson.loads(path.read_bytes()))
    return found


def settings_fingerprint(config: Config) -> str:
    """sha256 of every dataset's settings: a tally with another one was made under another configuration."""
    settings = {name: [config.prepare_settings(name), config.generate_settings(name)] for name in config.names()}
    return hashlib.sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()


# Pieces → rows


def _prepared(config: Config, folder: Path, responses: Path) -> list[Piece]:
    pieces = []
    for name in config.names():
        kind = config.dataset(name).produces
        below = f"{name}/{RECORD_FILES[kind]}"
        answered = kind == "prompts" and _answers(responses, name).exists()
        label = ANSWERED if answered else JUDGING if config.dataset(name).benchmark else CLASSES[kind]
        settings = config.prepare_settings(name)
        pieces.append(Piece("prepared", name, kind, label, folder / below, f"prepared/{below}", settings))
    return pieces


def _responses(config: Config, folder: Path) -> list[Piece]:
    """Of the prompt datasets that are answered; the others await it, and nothing is wrong with that."""
    kind, pieces = "tokenized_data", []
    for name in config.names("prompts"):
        path = _answers(folder, name)
        if path.exists():
            asked_as, settings = f"responses/{name}/{path.name}", config.generate_settings(name)
            pieces.append(Piece("responses", name, kind, ANSWERS, path, asked_as, settings))
    return pieces


def _answers(folder: Path, name: str) -> Path:
    return folder / name / RECORD_FILES["tokenized_data"]


def _rows(pieces: list[Piece], command: str, processes: int) -> list[dict]:
    stats = [_read_stats(p.stats) for p in pieces]
    counts = _count(pieces, stats, processes)
    return [_row(*each, command) for each in zip(pieces, stats, counts, strict=True)]


def _read_stats(path: Path) -> dict | str:
    """The statistics, or why there are none."""
    try:
        stats = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return "stats.json is missing"
    except OSError as error:
        return f"stats.json cannot be read: {error.strerror}"
    except orjson.JSONDecodeError as error:
        return f"stats.json is not JSON: {error}"
    wanted = {"kept": int, "vocabulary": int, "settings": dict}
    if not isinstance(stats, dict) or not all(isinstance(stats.get(k), t) for k, t in wanted.items()):
        return f"stats.json lacks one of {', '.join(wanted)}"
    return stats


def _row(piece: Piece, stats: dict | str, count: "Count", command: str) -> dict:
    row = {"dataset": piece.dataset, "class": piece.label, "state": "ok", **count.sums, "bytes": count.bytes}
    damage, stale = count.damage(), []
    if isinstance(stats, str):
        damage.append(stats)
    else:
        if stats["kept"] != count.valid:
            damage.append(f"{count.valid:,} valid records, stats.json says {stats['kept']:,}")
        stale = differences(stats["settings"], piece.settings)
    mend = (
        f"{command} --force {' '.join([*_upstream(piece, stale), piece.asked_as])}"  # a file that exists needs --force
    )
    if count.state in ("missing", "empty"):
        mend = f"{command} {piece.asked_as}"
        row |= {"state": count.state, "what": ["no such file" if count.state == "missing" else "the file is blank"]}
    elif damage:
        row |= {"state": "damaged", "what": damage + stale}
    elif stale:
        row |= {"state": "stale", "what": stale}
    else:
        row |= {"what": []}
    return {**row, "command": None if row["state"] == "ok" else mend}


def _upstream(piece: Piece, stale: list[str]) -> list[str]:
    """What must be fetched anew before a stale file is rebuilt: the sources or the tokenizer, when they changed."""
    keys = ("sources", f"sources/{piece.dataset}/manifest.json"), ("target.tokenizer", "target/tokenizer/manifest.json")
    return [path for key, path in keys if any(s.startswith((f"{key}.", f"{key}:")) for s in stale)]


def _sum(rows: Iterable[dict]) -> dict:
    rows = list(rows)
    return {
        "datasets": len(rows),
        "ok": sum(r["state"] == "ok" for r in rows),
        **{k: sum(r[k] for r in rows) for k in NOTHING},
    }


# Files → counts


@dataclass
class Count:
    """What one record file holds."""

    state: str = "present"  # missing, empty or present
    bytes: int = 0
    lines: int = 0
    valid: int = 0
    bad: int = 0
    faults: list[str] = field(default_factory=list)  # of the first bad lines
    sums: dict = field(default_factory=lambda: dict(NOTHING))
    unreadable: str | None = None
    ids: set = field(default_factory=set)

    def add(self, part: "PartCount") -> None:
        """The next part of the file; a record whose id came before is a fault."""
        if part.unreadable:
            self.unreadable = part.unreadable
        faults = list(part.faults)
        for line, identity, tokens, trainable in part.records:
            if identity in self.ids:
                faults.append((line, f"id {identity} came before"))
                continue
            self.ids.add(identity)
            self.valid += 1
            for key, value in zip(NOTHING, (1, tokens, trainable), strict=True):
                self.sums[key] += value
        self.bad += part.bad + len(faults) - len(part.faults)
        room = FAULTS_SHOWN - len(self.faults)
        self.faults += [f"line {self.lines + line:,}: {fault}" for line, fault in sorted(faults)[:room]]
        self.lines += part.lines

    def damage(self) -> list[str]:
        lines = [f"cannot be read: {self.unreadable}"] if self.unreadable else []
        if self.bad:
            more = [f"and {self.bad - len(self.faults):,} more"] if self.bad > len(self.faults) else []
            lines.append(f"{self.bad:,} bad line{'s' if self.bad > 1 else ''}: {'; '.join(self.faults + more)}")
        return lines


@dataclass
class PartCount:
    """Of a part of a file; line numbers count from the part's first line, 1."""

    lines: int = 0
    bad: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)
    records: list[tuple[int, str, int, int]] = field(default_factory=list)  # line, id, tokens, trainable tokens
    unreadable: str | None = None


def _count(pieces: list[Piece], stats: list, processes: int) -> list[Count]:
    """A Count for each piece; `processes` check parts of files at once, and the parts are added in order."""
    counts = [_look(p.path) for p in pieces]
    jobs = [
        (k, start, partial(count_part, piece.path, piece.kind, piece.dataset, _vocabulary(stats[k]), start))
        for k, piece in enumerate(pieces)
        if counts[k].state == "present"
        for start in range(0, counts[k].bytes, PART_BYTES)
    ]
    whole = sum(counts[k].bytes for k in {k for k, _, _ in jobs}) or 1
    progress, done, records = Progress("tally", "records"), 0, 0
    with Workers(min(processes, len(jobs)), WORKER_KILLED) as workers:
        for (k, start, _), part in zip(jobs, workers.results(job for _, _, job in jobs), strict=True):
            counts[k].add(part)
            done += min(PART_BYTES, counts[k].bytes - start)
            records += len(part.records)
            progress.update(records, done / whole)
    progress.close()
    return counts


def _look(path: Path) -> Count:
    try:
        if not path.is_file():
            return Count("missing")
        return Count("empty" if is_blank(path) else "present", path.stat().st_size)
    except OSError as error:
        return Count("present", unreadable=error.strerror)


def _vocabulary(stats: dict | str) -> int | None:
    return None if isinstance(stats, str) else stats["vocabulary"]


def count_part(path: Path, kind: str, dataset: str, vocabulary: int | None, start: int) -> PartCount:
    """Check the lines that begin within PART_BYTES from byte `start` of a record file."""
    count = PartCount()
    try:
        for line in lines_of_part(path, start, PART_BYTES):
            count.lines += 1
            if not line.strip():
                continue
            if kind == "prompts":
                fault = fault_in_prompt(line, dataset)
            else:
                fault = fault_in_tokenized(line, dataset, vocabulary)
            if fault is None:
                count.records.append((count.lines, *_measure(orjson.loads(line), kind)))
            else:
                count.bad += 1
                if len(count.faults) < FAULTS_SHOWN:
                    count.faults.append((count.lines, fault))
    except OSError as error:
        count.unreadable = error.strerror
    return count


def _measure(record: dict, kind: str) -> tuple[str, int, int]:
    """(id, tokens, trainable tokens) of a valid record."""
    if kind == "tokenized_data":
        return record["id"], len(record["input_ids"]), sum(record["loss_mask"])
    meta = record.get("meta")
    tokens = meta.get("prompt_tokens") if isinstance(meta, dict) else None
    return record["id"], tokens if type(tokens) is int else 0, 0


# Rows → what a person reads

HEADS = ("dataset", "state", "records", "tokens", "trainable")


def as_text(result: dict) -> str:
    """A table for a terminal: a row for each dataset, a sum for each class and for all, then the problems."""
    lines: list[tuple[str, ...] | None] = []  # None: a rule
    for name, stage in result["stages"].items():
        lines += [(name, *HEADS[1:]), None]
        for label, sums in stage["classes"].items():
            rows = [r for r in stage["rows"] if r["class"] == label]
            lines += [(f"  {r['dataset']}", r["state"], *_numbers(r, label)) for r in rows]
            lines += [(label, _how_many_ok(sums), *_numbers(sums, label)), None]
    lines.append(("total", _how_many_ok(result["total"]), *_numbers(result["total"], "")))
    widths = [max(len(line[k]) for line in lines if line) for k in range(len(HEADS))]
    text = []
    for line in lines:
        if line is None:
            text.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
        else:
            cells = [c.ljust(w) if k < 2 else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True))]
            text.append("  ".join(cells).rstrip())
    if result["underway"]:
        text += ["", "Being answered, or stopped while it was:", *(f"  {_counters(c)}" for c in result["underway"])]
    if result["together"]:
        text += ["", "Made of all datasets:", *(f"  {r['file']}: {r['state']}" for r in result["together"])]
    problems = [{**p, "file": f"{p['stage']}/{p['dataset']}"} for p in result["problems"]]
    problems += [r for r in result["together"] if r["state"] != "ok"]
    if problems:
        text += ["", "Not as it should be; the line below each rebuilds it:"]
    for problem in problems:
        text += [f"  {problem['file']} is {problem['state']}"]
        text += [f"    {what}" for what in problem["what"]]
        text += [f"      {problem['command']}"]
    return "\n".join(text) + "\n"


def as_page(result: dict) -> pages.Page:
    """The same for the report."""
    body, total = [], result["total"]
    tiles = [
        ("datasets", total["datasets"]),
        ("valid records", total["records"]),
        ("tokens", total["tokens"]),
        ("trainable tokens", total["trainable_tokens"]),
        ("datasets that need attention", len(result["problems"])),
    ]
    body.append(pages.tiles(tiles))
    if result["problems"]:
        rows = [
            [p["dataset"], pages.badge(p["state"]), pages.lines(p["what"], pages.code(p["command"]))]
            for p in result["problems"]
        ]
        note = "Nothing below is rebuilt by itself. Each command rebuilds one dataset."
        body.append(
            pages.section(
                "Needs attention", pages.table(["dataset", "state", "what, and the command"], rows), note=note
            )
        )
    if result["underway"]:
        note = "Live counters; those of a run that was stopped stand still, and the next run goes on from there."
        rows = [[c["dataset"], _counters(c).partition(": ")[2]] for c in result["underway"]]
        body.append(pages.section("Being answered", pages.table(["dataset", "how far"], rows), note=note))
    for name, stage in result["stages"].items():
        rows = []
        for label, sums in stage["classes"].items():
            mine = [r for r in stage["rows"] if r["class"] == label]
            if not mine:
                continue
            rows.append(pages.Row([label], "group"))
            rows += [[r["dataset"], pages.badge(r["state"]), *_numbers(r, label)] for r in mine]
            rows.append(pages.Row([f"{label}, together", _how_many_ok(sums), *_numbers(sums, label)], "subtotal"))
        together = _sum(stage["rows"])
        rows.append(pages.Row(["total", _how_many_ok(together), *_numbers(together, "")], "total"))
        note = NOTES[name]
        heads = ["dataset", "state", "valid records", "tokens", "trainable tokens"]
        body.append(pages.section(f"{name}/", pages.table(heads, rows, numeric={2, 3, 4}), note=note))
    return pages.page("Inventory of the records", *body)


def _counters(c: dict) -> str:
    left = "" if c["seconds_left"] is None else f", {duration(c['seconds_left'])} left"
    failed = f", {c['failed']:,} set aside" if c["failed"] else ""
    rate = f"{c['tokens_per_s']:,.0f} tokens/s"
    return f"{c['dataset']}: {c['done']:,} of {c['done'] + c['left']:,}{failed}, {rate}{left} (at {c['updated']})"


def _numbers(sums: dict, label: str) -> tuple[str, str, str]:
    trainable = "–" if label in (AWAITING, ANSWERED) else f"{sums['trainable_tokens']:,}"
    return f"{sums['records']:,}", f"{sums['tokens']:,}", trainable


def _how_many_ok(sums: dict) -> str:
    return f"{sums['ok']} of {sums['datasets']} ok"
