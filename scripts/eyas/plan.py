"""Before days are spent: how many tokens there will be, whether the disk holds their states, how many hours it takes.

What is there is counted, what is not is estimated from what is, and each line says from what. Nothing is guessed: where
there is no measure yet, the plan says which small run gives one.
"""

from dataclasses import dataclass
from pathlib import Path

import orjson

from eyas.config import Config
from eyas.generate import COUNTERS
from eyas.states import bytes_per_token
from eyas.storage import SPARE, free_bytes, size

LAYERS = 3


@dataclass(frozen=True)
class Tokens:
    """Of one dataset's records; None: nothing is known of them. at_most: a bound, not an estimate."""

    dataset: str
    tokens: int | None
    answers_left: int  # tokens that the target must still generate
    basis: str
    at_most: bool = False


def plan(config: Config, root: Path, hidden: int) -> dict:
    """As plain JSON; root: the working directory; hidden: the width of the target's states.

    {"datasets": [{"dataset", "tokens", "answers_left", "basis", "at_most"}],
     "tokens", "at_most": bool, "unknown": [datasets], "bytes_per_token", "bytes_needed": of what is not captured yet,
     "bytes_free", "fits", "instead": [str],
     "rates": {"answering", "capturing"}, tokens a second of one job, "hours": of the same: None where nothing was
     measured}
    """
    capture = config.capture
    rows, counted = _tokens(config, root), _corpus_tokens(root)
    known = [r.tokens for r in rows if r.tokens is not None]
    tokens = counted if counted is not None else sum(known)
    per_token = bytes_per_token(hidden, LAYERS, capture.dtype)
    shards = [_json(p) for p in sorted((root / "hidden_states").rglob("*.json"))]
    shards = [s for s in shards if s.get("bytes")]
    states = root / "hidden_states"
    needed = tokens * per_token
    if capture.window is not None:  # never more than so many training shards, beside the held-out ones
        train, held = needed * (1 - config.corpus.heldout), needed * config.corpus.heldout
        needed = int(held + train * min(1, capture.window / capture.shards))
    there = sum(_bytes_on_disk(p) for p in states.rglob("*.safetensors*"))
    needed, free = max(0, needed - there), free_bytes(states)
    left = max(0, tokens - sum(s["tokens"] for s in shards))
    rates = {
        "answering": _answer_rate(config, root),
        "capturing": _rate([(s.get("captured_tokens", 0), s["seconds"]) for s in shards]),
    }
    return {
        "datasets": [vars(r) for r in rows],
        "tokens": tokens,
        "at_most": counted is None and any(r.at_most for r in rows),
        "unknown": [r.dataset for r in rows if r.tokens is None] if counted is None else [],
        "bytes_per_token": per_token,
        "bytes_needed": needed,
        "bytes_free": free,
        "fits": needed <= SPARE * free,
        "instead": what_fits(needed, free, per_token, capture.dtype, capture.shards, hidden),
        "rates": rates,
        "hours": {
            "answering": _hours(sum(r.answers_left for r in rows), rates["answering"]),
            "capturing": _hours(left, rates["capturing"]),
        },
    }


def what_fits(needed: int, free: int, per_token: int, dtype: str, shards: int, hidden: int) -> list[str]:
    """Ways to need less disk, with their numbers."""
    ways, usable = [], SPARE * free
    if dtype == "bf16":
        small = needed * bytes_per_token(hidden, LAYERS, "fp8") // per_token
        fits = "fits" if small <= usable else "does not fit either"
        ways.append(f"capture.dtype: fp8 needs {size(small)}, which {fits}")
    window = int(usable // max(1, needed / shards))
    if 2 <= window < shards:
        ways.append(f"capture.window: {window} keeps at most so many of {shards} training shards on the disk")
    ways.append(f"{int(usable // per_token):,} tokens fit as it is: lower prepare.cap, or name another disk")
    return ways


def as_text(result: dict, target: str, dtype: str) -> str:
    """For a terminal."""
    width = max((len(d["dataset"]) for d in result["datasets"]), default=7)
    lines = [f"{'dataset':{width}}  {'tokens':>14}  from"]
    for row in result["datasets"]:
        tokens = "unknown" if row["tokens"] is None else f"{'≤ ' if row['at_most'] else ''}{row['tokens']:,}"
        lines.append(f"{row['dataset']:{width}}  {tokens:>14}  {row['basis']}")
    bound = "at most " if result["at_most"] else ""
    lines += [f"{'together':{width}}  {bound}{result['tokens']:,}", ""]
    if result["unknown"]:
        lines += [f"Not counted, since nothing is known of them yet: {', '.join(result['unknown'])}", ""]
    lines += [
        f"Hidden states of {target} in {dtype}: {result['bytes_per_token']:,} bytes a token, "
        f"{size(result['bytes_needed'])} still needed, {size(result['bytes_free'])} free"
    ]
    for what, remedy in (
        ("answering", "answer one dataset first (`snakemake generated`)"),
        ("capturing", "capture one shard first (`snakemake hidden_states/heldout/00000-of-00001.safetensors`)"),
    ):
        hours = result["hours"][what]
        told = f"unknown: nothing was measured here yet; {remedy}" if hours is None else f"{hours:,.1f} h left"
        lines.append(f"{what.capitalize()}: {told}")
    if not result["fits"]:
        lines += ["", "The states do not fit on the disk. Instead:", *(f"  {way}" for way in result["instead"])]
    return "\n".join(lines) + "\n"


def _corpus_tokens(root: Path) -> int | None:
    stats = _json(root / "corpus/stats.json")
    return stats["train"]["tokens"] + stats["heldout"]["tokens"] if stats else None


def _tokens(config: Config, root: Path) -> list[Tokens]:
    prepared = {name: _json(root / f"prepared/{name}/stats.json") for name in config.names()}
    answered = {name: _json(root / f"responses/{name}/stats.json") for name in config.names("prompts")}
    kept = sum(s["kept"] for s in answered.values() if s)
    length = sum(s["trainable_tokens"] for s in answered.values() if s) / kept if kept else None  # of an answer
    rows = []
    for name in config.names("prompts", "tokenized_data"):
        stats, dataset = prepared[name], config.datasets[name]
        if answered.get(name):
            rows.append(Tokens(name, answered[name]["tokens"], 0, "its answers"))
        elif not stats:
            rows.append(Tokens(name, None, 0, "nothing: it is not prepared"))
        elif dataset.produces == "tokenized_data":
            rows.append(Tokens(name, stats["tokens"], 0, "its token records"))
        else:
            most = config.generation(name).max_new_tokens
            each = most if length is None else min(most, length)
            answers = int(stats["kept"] * each)
            how = "the limit of an answer" if length is None else f"answers as elsewhere, {each:,.0f} tokens each"
            left = max(0, answers - _said(root, name))
            basis = f"{stats['kept']:,} prompts and {how}"
            rows.append(Tokens(name, stats["tokens"] + answers, left, basis, length is None))
    return rows


def _said(root: Path, name: str) -> int:
    """Tokens that were answered so far, of a dataset that is being answered."""
    return _json(root / "state/generate_responses" / name / COUNTERS).get("answer_tokens", 0)


def _answer_rate(config: Config, root: Path) -> float | None:
    """Tokens a second of one job."""
    known = []
    for name in config.names("prompts"):
        stats = _json(root / f"responses/{name}/stats.json")
        if stats.get("asked_tokens"):
            known.append((stats["asked_tokens"], stats["seconds"]))
        elif live := _json(root / "state/generate_responses" / name / COUNTERS):
            known.append((live["answer_tokens"], live["answer_tokens"] / max(live["tokens_per_s"], 1e-9)))
    return _rate(known)


def _rate(known: list[tuple[float, float]]) -> float | None:
    """Of (count, seconds) pairs."""
    seconds = sum(s for _, s in known)
    return sum(count for count, _ in known) / seconds if seconds and any(count for count, _ in known) else None


def _hours(count: int, rate: float | None) -> float | None:
    return 0.0 if not count else None if rate is None else round(count / rate / 3600, 2)


def _bytes_on_disk(path: Path) -> int:
    """What a shard takes up; one that is being captured is a file with holes, and takes less than its size."""
    try:
        stat = path.stat()
    except FileNotFoundError:  # published, or dropped from a window, since it was listed
        return 0
    return 512 * stat.st_blocks if path.suffix == ".partial" else stat.st_size


def _json(path: Path) -> dict:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
