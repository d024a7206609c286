"""The inventory knows what all datasets together were made into: whole, stale, damaged, or in part."""

import os

import orjson
import pytest

from conftest import ROOT
from eyas.config import load
from eyas.records import write_json
from eyas.states import shard_path
from eyas.tally_built import built
from eyas.target.engine import identity_of
from test_eagle3_training import write_shard

CONFIG = load([ROOT / "config/demo.yaml"])


def look(root, config=CONFIG):
    return {row["file"]: row for row in built(config, root, "snakemake")}


def with_changes(part, **changes):
    return CONFIG.model_copy(update={part: getattr(CONFIG, part).model_copy(update=changes)})


@pytest.fixture
def root(tmp_path):
    for file, stats, settings in (
        ("corpus/train.parquet", "corpus/stats.json", CONFIG.corpus_settings()),
        ("draft_vocab/map.safetensors", "draft_vocab/coverage.json", CONFIG.vocabulary_settings()),
        ("draft/model.safetensors", "draft/training.json", CONFIG.train_settings()),
    ):
        write_json(tmp_path / stats, {"settings": settings})
        (tmp_path / file).write_bytes(b"x")
    target = orjson.dumps(identity_of(CONFIG.target), option=orjson.OPT_SORT_KEYS).decode()
    for split, count in CONFIG.capture.counts.items():
        for k in range(count):
            write_shard(shard_path(tmp_path / "hidden_states" / split, k, count), 2, k, target=target, dtype="bf16")
    return tmp_path


def test_what_is_whole_is_ok_and_what_is_not_made_is_no_problem(root, tmp_path_factory):
    assert {row["state"] for row in look(root).values()} == {"ok"} and len(look(root)) == 5
    assert look(tmp_path_factory.mktemp("nothing")) == {}


def test_other_settings_are_stale_with_the_command(root):
    for config, file, what in (
        (with_changes("corpus", max_tokens=77), "corpus/train.parquet", "max_tokens: 1024 → 77"),
        (with_changes("draft_vocabulary", size=100), "draft_vocab/map.safetensors", "size: 8192 → 100"),
        (with_changes("train", lr=1.0), "draft/model.safetensors", "train.lr: 0.002 → 1.0"),
        (with_changes("capture", dtype="fp8"), "hidden_states/train/00000-of-00004.safetensors", "dtype: bf16 → fp8"),
    ):
        row = look(root, config)[file]
        assert row["state"] == "stale" and any(what in line for line in row["what"]), row
        assert row["command"] == f"snakemake --force {file}"
    assert look(root, with_changes("train", log_every=1, gpus=4))["draft/model.safetensors"]["state"] == "ok"


def test_shards_that_are_missing_cut_or_left_over_are_named(root):
    folder = root / "hidden_states/train"
    paths = [shard_path(folder, k, 4) for k in range(4)]
    os.truncate(paths[2], paths[2].stat().st_size - 1)
    row = look(root)["hidden_states/train/00002-of-00004.safetensors"]
    assert row["state"] == "damaged" and "not a whole shard" in row["what"][0]
    paths[2].unlink()
    row = look(root)["hidden_states/train/00002-of-00004.safetensors"]
    assert (row["state"], row["what"]) == ("partly", ["3 of 4 shards are there"])
    assert row["command"] == "snakemake hidden_states/train/00002-of-00004.safetensors"
    (folder / "00000-of-00009.safetensors").write_bytes(b"x")
    assert "another number of shards" in str(look(root))
    (root / "corpus/stats.json").write_text("{")
    assert look(root)["corpus/train.parquet"]["state"] == "damaged"
