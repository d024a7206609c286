"""The corpus: no repeats, no prompt on both sides, nothing lost; the draft vocabulary that is counted from it."""

import json
import random

import datasets
import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from eyas import corpus as corpus_module
from eyas.corpus import Source, build_corpus, corpus_metadata
from eyas.describe_corpus import describe_corpus
from eyas.errors import EyasError
from eyas.vocabulary import build_vocabulary, by_frequency

VOCABULARY = 500
SETTINGS = {"max_tokens": 64, "heldout": 0.2, "datasets": ["A", "B"], "tokenized": ["A"]}
VOCABULARY_SETTINGS = {"size": 40, "ladder": [10, 20], "warm_start": None}


def record(dataset, number, prompt, answer, mask=None):
    loss_mask = [0] * len(prompt) + [1] * len(answer) if mask is None else mask
    return {"id": f"{dataset}{number}", "dataset": dataset, "input_ids": prompt + answer, "loss_mask": loss_mask}


def write(folder, dataset, records, **stats):
    path = folder / dataset / "tokenized_data.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(r if isinstance(r, bytes) else orjson.dumps(r) + b"\n" for r in records))
    stats = {"kept": len(records), "tokenizer": "abc", "vocabulary": VOCABULARY, **stats}
    path.with_name("stats.json").write_bytes(orjson.dumps(stats))
    return Source(dataset, path, f"prepared/{dataset}/tokenized_data.jsonl")


def made_up(dataset, count, seed):
    rng = random.Random(seed)

    def ids(low, high):
        return [min(int(rng.paretovariate(0.6)), VOCABULARY - 1) for _ in range(rng.randint(low, high))]

    return [record(dataset, k, ids(3, 20), ids(1, 30)) for k in range(count)]


def rows(out, split):
    return pq.read_table(out / f"{split}.parquet").to_pylist()


@pytest.fixture
def two(tmp_path):
    return [write(tmp_path, "A", made_up("A", 300, 1)), write(tmp_path, "B", made_up("B", 200, 2))]


def test_every_record_is_there_once_whatever_the_order_and_the_blocks(two, tmp_path, monkeypatch):
    stats = build_corpus(SETTINGS, two, tmp_path / "one")
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 700)
    monkeypatch.setattr(corpus_module, "BUCKET_BYTES", 5000)
    build_corpus(SETTINGS, two[::-1], tmp_path / "two")
    given = {(tuple(r["input_ids"]), tuple(r["loss_mask"])) for s in two for r in map(json.loads, s.records.open())}
    found = []
    for split in ("train", "heldout"):
        one, other = rows(tmp_path / "one", split), rows(tmp_path / "two", split)
        assert one == other
        found += [(tuple(r["input_ids"]), tuple(r["loss_mask"])) for r in one]
        assert stats[split]["samples"] == len(one)
        assert stats[split]["tokens"] == sum(len(r["input_ids"]) for r in one)
        assert stats[split]["trainable_tokens"] == sum(sum(r["loss_mask"]) for r in one)
        for name, of_dataset in stats[split]["datasets"].items():
            mine = [len(r["input_ids"]) for r in one if r["dataset"] == name]
            assert (of_dataset["samples"], of_dataset["tokens"]) == (len(mine), sum(mine))
    assert len(found) == len(set(found)) and set(found) == given
    assert 0.1 < stats["heldout"]["samples"] / 500 < 0.3
    assert stats["rows_read"] == 500 == stats["kept"] + stats["duplicates"] + stats["rejected"]
    assert not list((tmp_path / "one").glob(".*")), "nothing is left behind"


def test_datasets_reads_it(two, tmp_path):
    build_corpus(SETTINGS, two, tmp_path / "out")
    files = {split: str(tmp_path / f"out/{split}.parquet") for split in ("train", "heldout")}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert loaded["train"].column_names == ["id", "dataset", "input_ids", "loss_mask"]
    assert loaded["heldout"][0] == rows(tmp_path / "out", "heldout")[0]


def test_a_prompt_stands_on_one_side_only(tmp_path):
    records = [record("A", k, [7, 8, k // 4], [50 + k, 2]) for k in range(400)]
    build_corpus(SETTINGS, [write(tmp_path, "A", records)], tmp_path / "out")
    sides = [{r["input_ids"][2] for r in rows(tmp_path / "out", split)} for split in ("train", "heldout")]
    assert sides[0] and sides[1] and not sides[0] & sides[1]


def test_repeats_are_dropped_across_datasets_and_counted_where_they_came_last(tmp_path):
    records = made_up("A", 50, 3)
    again = [{**r, "id": f"B{k}", "dataset": "B"} for k, r in enumerate(records[:20])]
    sources = [write(tmp_path, "A", [*records, records[0]]), write(tmp_path, "B", again)]
    stats = build_corpus(SETTINGS, sources, tmp_path / "out")
    assert {d: s["duplicates"] for d, s in stats["by_dataset"].items()} == {"A": 1, "B": 20}
    assert {r["dataset"] for split in ("train", "heldout") for r in rows(tmp_path / "out", split)} == {"A"}


def test_long_samples_are_cut_where_something_still_trains(tmp_path):
    records = [
        record("A", 0, [1] * 10, [2] * 100),
        record("A", 1, [3] * 64, [4] * 10),
        record("A", 2, [5] * 5, [6] * 5, mask=[0] * 10),
        record("A", 3, [7] * 32, [8] * 32),
        record("A", 4, [9] * 10, [10] * 5),
    ]
    settings = {**SETTINGS, "heldout": 0.0}
    stats = build_corpus(settings, [write(tmp_path, "A", records)], tmp_path / "out")
    found = {
        r["id"]: (len(r["input_ids"]), len(r["loss_mask"]), sum(r["loss_mask"]))
        for r in rows(tmp_path / "out", "train")
    }
    assert found == {"A0": (64, 64, 54), "A3": (64, 64, 32), "A4": (15, 15, 5)}
    assert stats["cut"] == stats["by_dataset"]["A"]["cut"] == 1
    assert stats["reasons"] == {"trains_nothing_within_limit": 1, "trains_nothing": 1}
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert [(r["id"], r["row"]) for r in rejects] == [("A1", 2), ("A2", 3)]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda r: {**r, "loss_mask": r["loss_mask"][:-1]}, "input_ids has .* entries, loss_mask"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], VOCABULARY]}, "outside the vocabulary of 500"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], -1]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], 1.5]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], None]}, "not a token id"),
        (lambda r: {**r, "loss_mask": [2, *r["loss_mask"][1:]]}, "not 0 or 1"),
        (lambda r: {**r, "dataset": "Z"}, "dataset is 'Z', expected 'A'"),
        (lambda r: {k: v for k, v in r.items() if k != "id"}, "id is missing"),
        (lambda r: orjson.dumps(r)[:-9] + b"\n", "not JSON"),
    ],
)
@pytest.mark.parametrize("where", [0, 150, 299])
def test_damage_names_file_line_and_remedy(tmp_path, damage, said, where, monkeypatch):
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 5000)
    records = made_up("A", 300, 1)
    records[where] = damage(records[where])
    source = write(tmp_path, "A", records)
    remedy = "run `snakemake --force prepared/A/tokenized_data.jsonl`"
    with pytest.raises(EyasError, match=rf"tokenized_data\.jsonl, line {where + 1}: .*{said}.*{remedy}"):
        build_corpus(SETTINGS, [source], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir()), "nothing half-made is left"


def test_a_file_that_was_cut_between_two_lines_is_found(tmp_path):
    source = write(tmp_path, "A", made_up("A", 30, 1), kept=31)
    with pytest.raises(EyasError, match=r"30 records, stats\.json beside it says 31"):
        build_corpus(SETTINGS, [source], tmp_path / "out")


def test_two_tokenizers_are_refused(tmp_path):
    sources = [write(tmp_path, "A", made_up("A", 3, 1)), write(tmp_path, "B", made_up("B", 3, 1), tokenizer="xyz")]
    with pytest.raises(EyasError, match="tokenizer xyz of 500 tokens, expected abc of 500"):
        build_corpus(SETTINGS, sources, tmp_path / "out")


def test_a_corpus_that_trains_nothing_fails(tmp_path):
    source = write(tmp_path, "A", [record("A", 0, [1, 2], [3], mask=[0, 0, 0])])
    with pytest.raises(EyasError, match="nothing trains: 1 records were read:\n  trains_nothing: 1"):
        build_corpus(SETTINGS, [source], tmp_path / "out")


# The draft vocabulary


@pytest.fixture
def corpus(two, tmp_path):
    build_corpus(SETTINGS, two, tmp_path / "corpus")
    return tmp_path / "corpus"


def counted(corpus, split):
    counts = np.zeros(VOCABULARY, dtype=int)
    for r in rows(corpus, split):
        for token, trained in zip(r["input_ids"], r["loss_mask"], strict=True):
            counts[token] += trained
    return counts


def test_the_most_frequent_trainable_tokens_are_kept(corpus, tmp_path):
    coverage = build_vocabulary(VOCABULARY_SETTINGS, corpus, tmp_path / "vocab")
    counts = counted(corpus, "train")
    kept = sorted(sorted(range(VOCABULARY), key=lambda t: (-counts[t], t))[:40])
    maps = load_file(tmp_path / "vocab/map.safetensors")
    assert maps["d2t"].dtype == np.int64 and maps["t2d"].dtype == bool
    assert [i + d for i, d in enumerate(maps["d2t"])] == kept == np.flatnonzero(maps["t2d"]).tolist()
    for split in ("train", "heldout"):
        of_split = counted(corpus, split)
        assert coverage[split]["share"] == pytest.approx(of_split[kept].sum() / of_split.sum(), abs=1e-6)
    ladder = {step["size"]: step["train"]["share"] for step in coverage["ladder"]}
    assert list(ladder) == [10, 20, 40] and ladder[10] < ladder[20] < ladder[40] == coverage["train"]["share"]
    assert corpus_metadata(corpus / "train.parquet") == {"tokenizer": "abc", "vocabulary": VOCABULARY}


def test_ties_go_by_id_and_unseen_tokens_fill_up():
    assert by_frequency(np.array([0, 3, 5, 3, 0])).tolist() == [2, 1, 3, 0, 4]


def test_a_warm_start_keeps_its_drafts_map(corpus, tmp_path):
    kept = np.array([3, 5, 400])
    t2d = np.zeros(VOCABULARY, dtype=bool)
    t2d[kept] = True
    save_file({"d2t": kept - np.arange(3), "t2d": t2d}, tmp_path / "draft.safetensors")
    settings = {**VOCABULARY_SETTINGS, "warm_start": str(tmp_path / "draft.safetensors")}
    assert build_vocabulary(settings, corpus, tmp_path / "vocab")["size"] == 3
    assert np.array_equal(load_file(tmp_path / "vocab/map.safetensors")["t2d"], t2d)
    save_file({"d2t": kept, "t2d": t2d}, tmp_path / "draft.safetensors")
    with pytest.raises(EyasError, match=r"draft\.safetensors: d2t and t2d belong to .*not to each other"):
        build_vocabulary(settings, corpus, tmp_path / "vocab")
    settings["warm_start"] = str(tmp_path / "none.safetensors")
    with pytest.raises(EyasError, match=r"none\.safetensors: d2t and t2d cannot be read"):
        build_vocabulary(settings, corpus, tmp_path / "vocab")


# The page of the report


def test_the_page_shows_samples_coverage_and_states(corpus, tmp_path):
    build_vocabulary(VOCABULARY_SETTINGS, corpus, tmp_path / "vocab")
    shard = {"samples": 3, "tokens": 40, "bytes": 5_000_000, "quarantined": ["x"], "seconds": 2.0, "shards": 2}
    paths = []
    for k in range(2):
        paths.append(tmp_path / f"hidden_states/train/0000{k}-of-00002.json")
        paths[k].parent.mkdir(parents=True, exist_ok=True)
        metadata = {"target": "t", "layers": "2,4,6", "shard": f"{k} of 2"}
        paths[k].write_bytes(orjson.dumps({**shard, "shard": k, "metadata": metadata}))
    text = describe_corpus(corpus / "stats.json", tmp_path / "vocab/coverage.json", paths)
    stats = json.loads((corpus / "stats.json").read_bytes())
    assert f"{stats['train']['tokens']:,}" in text and "<polyline" in text and "layers 2,4,6" in text
    paths[1].write_bytes(orjson.dumps({**shard, "shard": 1, "metadata": {**metadata, "layers": "3,4,6"}}))
    with pytest.raises(EyasError, match=r"00001-of-00002\.json: layers is '3,4,6', expected '2,4,6' as in .*--force"):
        describe_corpus(corpus / "stats.json", tmp_path / "vocab/coverage.json", paths)
    with pytest.raises(EyasError, match=r"none\.json: cannot be read"):
        describe_corpus(tmp_path / "none.json", tmp_path / "vocab/coverage.json", [])
