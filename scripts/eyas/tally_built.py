"""What all datasets together were made into: corpus, vocabulary, hidden states, draft; whole, stale or damaged."""

from pathlib import Path

import orjson

from eyas.config import DECIDES_NO_TRAINING, Config
from eyas.differences import differences
from eyas.errors import EyasError
from eyas.states import Shard, shard_path
from eyas.target.engine import identity_of


def built(config: Config, root: Path, command: str) -> list[dict]:
    """[{"file", "state", "what": [str], "command"}] of what is there below `root`; what is not made yet is left out.

    state: ok, stale, damaged, or partly (some shards are missing). command: what mends it, None when ok.
    """
    rows = []

    def row(file: str, damage: list[str], stale: list[str], missing: list[str] = ()) -> None:
        state = "damaged" if damage else "partly" if missing else "stale" if stale else "ok"
        mend = f"{command} {file}" if state == "partly" else f"{command} --force {file}"
        rows.append(
            {
                "file": file,
                "state": state,
                "what": [*damage, *missing, *stale],
                "command": None if state == "ok" else mend,
            }
        )

    for file, stats, now in (
        ("corpus/train.parquet", "corpus/stats.json", config.corpus_settings()),
        ("draft_vocab/map.safetensors", "draft_vocab/coverage.json", config.vocabulary_settings()),
        ("draft/model.safetensors", "draft/training.json", config.train_settings()),
    ):
        if (root / file).exists():
            was, damage = _settings(root / stats)
            row(file, damage, differences(_deciding(was), _deciding(now)) if was else [])
    for split, count in config.capture.counts.items():
        row_of_shards = _shards(config, root, split, count)
        if row_of_shards is not None:
            row(*row_of_shards)
    return rows


def _settings(path: Path) -> tuple[dict | None, list[str]]:
    """(the settings that a file of statistics holds, what is wrong with it)"""
    try:
        return orjson.loads(path.read_bytes())["settings"], []
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        return None, [f"{path.name} beside it cannot be read ({error})"]


def _deciding(settings: dict) -> dict:
    """Without what decides nothing of the result."""
    if "train" not in settings:
        return settings
    train = {k: v for k, v in settings["train"].items() if k not in DECIDES_NO_TRAINING}
    capture = {k: settings["capture"][k] for k in ("layers", "dtype")}
    return {"train": train, "draft": settings["draft"], "capture": capture}


def _shards(config: Config, root: Path, split: str, count: int) -> tuple | None:
    """(the file to ask for, damage, stale, missing) of a split's shards; None when there are none."""
    folder = root / "hidden_states" / split
    paths = [shard_path(folder, k, count) for k in range(count)]
    present = [path for path in paths if path.exists()]
    others = sorted(p.name for p in folder.glob("*.safetensors") if p not in paths and not p.name.startswith("."))
    if not present and not others:
        return None
    damage, stale = [], [f"{name}: of another number of shards; nothing reads it" for name in others]
    now = {"target": orjson.dumps(identity_of(config.target), option=orjson.OPT_SORT_KEYS).decode()}
    now["dtype"] = config.capture.dtype
    if config.capture.layers is not None:
        now["layers"] = ",".join(map(str, config.capture.layers))
    first = None
    for path in present:
        try:
            metadata = Shard(path).metadata
        except EyasError as error:
            damage.append(str(error))
            first = first or path
            continue
        changed = [f"{path.name}: {k}: {metadata.get(k)} → {v}" for k, v in now.items() if metadata.get(k) != v]
        if changed:
            stale += changed
            first = first or path
    missing = [f"{len(present):,} of {count:,} shards are there"] if 0 < len(present) < count else []
    if split == "train" and config.capture.window is not None:
        missing = []
    path = first or next((p for p in paths if not p.exists()), paths[0])
    return str(path.relative_to(root)), damage, stale, missing
