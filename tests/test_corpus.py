"""The corpus: no repeats, no prompt on both sides, nothing lost; the draft vocabulary that is counted from it."""

import errno
import io
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import datasets
import numpy as np
import orjson
import psutil
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from conftest import ROOT
from eyas import corpus as corpus_module
from eyas.corpus import Source, build_corpus, corpus_metadata
from eyas.describe_corpus import describe_corpus
from eyas.errors import EyasError
from eyas.records import fault_in_tokenized
from eyas.vocabulary import build_vocabulary, by_frequency
from waiting import until

VOCABULARY = 500
SETTINGS = {"max_tokens": 64, "heldout": 0.2, "datasets": ["A", "B"], "tokenized": ["A"]}
VOCABULARY_SETTINGS = {"size": 40, "ladder": [10, 20], "warm_start": None, "warm_start_revision": None}


def record(dataset, number, prompt, answer, mask=None):
    """As the stages write it: an answer of the target comes with what is known about it."""
    loss_mask = [0] * len(prompt) + [1] * len(answer) if mask is None else mask
    made = {"id": f"{dataset}{number}", "dataset": dataset, "input_ids": prompt + answer, "loss_mask": loss_mask}
    return {**made, "meta": {"finish_reason": "stop", "seconds": 0.5}} if number % 3 == 0 else made


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


def test_every_record_is_there_once_whatever_the_order_and_the_parts(two, tmp_path, monkeypatch):
    stats = build_corpus(SETTINGS, two, tmp_path / "one")
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 700)
    monkeypatch.setattr(corpus_module, "BUCKET_BYTES", 5000)
    monkeypatch.setattr(corpus_module, "ROW_GROUP", 30)
    build_corpus(SETTINGS, two[::-1], tmp_path / "two")
    assert pq.ParquetFile(tmp_path / "two/train.parquet").metadata.row_group(1).num_rows == 30
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


@pytest.mark.parametrize("bucket_bytes", [5000, 1 << 20])
def test_the_files_depend_on_neither_processes_nor_parts(two, tmp_path, monkeypatch, bucket_bytes):
    monkeypatch.setattr(corpus_module, "BUCKET_BYTES", bucket_bytes)
    with open(two[1].records, "ab") as file:  # repeats, rejects and a cut one in several parts
        lines = two[1].records.read_bytes().splitlines(keepends=True)
        file.writelines([*lines[::7], *(orjson.dumps(r) + b"\n" for r in rejected("B"))])
    two[1] = write(two[1].records.parents[1], "B", two[1].records.read_bytes().splitlines(keepends=True))
    made = []
    for threads, block_bytes in ((1, 1 << 20), (1, 150), (2, 700), (3, 700), (3, 9000)):
        monkeypatch.setattr(corpus_module, "BLOCK_BYTES", block_bytes)
        out = tmp_path / f"{threads}-{block_bytes}"
        stats = build_corpus(SETTINGS, two, out, threads=threads)
        made.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert sorted(made[0]) == ["heldout.parquet", "rejects.jsonl", "stats.json", "train.parquet"]
    assert all(files == made[0] for files in made)
    assert (stats["duplicates"], stats["rejected"], stats["cut"]) == (29, 2, 1)


def rejected(dataset):
    """Two that train nothing, and one that is cut."""
    return [
        record(dataset, 1000, [1] * 64, [2]),
        record(dataset, 1001, [3] * 64, [4], mask=[0] * 65),
        record(dataset, 1002, [5], [6] * 99),
    ]


def test_records_may_be_written_in_another_way(two, tmp_path):
    """Ours are read the faster; what another program wrote says the same."""
    given = [json.loads(line) for line in two[0].records.open()]
    for r, name in zip(given[:12], ("true", "[]", "a[", "]b", '"],"loss_mask":[0', "x"), strict=False):
        r["id"] = name
    ours = write(tmp_path / "ours", "A", given)
    ways = [
        lambda r: json.dumps(r) + "\n",
        lambda r: json.dumps(dict(reversed(r.items())), separators=(",", ":")) + "\r\n",
        lambda r: json.dumps({**r, "meta": {"loss_mask": [2], "kept": True}}, separators=(",", ":")) + "\n",
        lambda r: (
            json.dumps({"meta": {"q": [1], "loss_mask": [0] * len(r["loss_mask"])}, **r}, separators=(",", ":")) + "\n"
        ),
        lambda r: "\n" + json.dumps({"loss_mask": [True], **r}, indent=None) + " \n\n",
    ]
    other = write(tmp_path / "other", "A", [ways[k % len(ways)](r).encode() for k, r in enumerate(given)])
    other.records.write_bytes(other.records.read_bytes().rstrip())
    build_corpus(SETTINGS, [ours], tmp_path / "one")
    build_corpus(SETTINGS, [other], tmp_path / "two")
    for name in ("train.parquet", "heldout.parquet", "stats.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


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


def test_rejects_name_the_line_in_whatever_part_it_stands(tmp_path, monkeypatch):
    records = [*made_up("A", 40, 1), rejected("A")[0], *made_up("A", 40, 2), rejected("A")[1]]
    lines = [orjson.dumps(r) + b"\n" for r in records]
    lines[10], lines[60] = b"\n" + lines[10], lines[60] + b"  \n"
    source = write(tmp_path, "A", lines)
    for threads, block_bytes in ((1, 100), (2, 500), (3, 1 << 20)):
        monkeypatch.setattr(corpus_module, "BLOCK_BYTES", block_bytes)
        stats = build_corpus(SETTINGS, [source], tmp_path / "out", threads=threads)
        rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").open()]
        assert [(r["id"], r["row"]) for r in rejects] == [("A1000", 42), ("A1001", 84)]
        assert stats["rows_read"] == 82


def test_records_without_tokens_are_rejected_by_their_line(tmp_path, monkeypatch):
    """A block of nothing but empty lists once ended in an error that named no line."""
    sound, empty = made_up("A", 3, 1), record("A", 5, [], [])
    for block_bytes in (1, 1 << 20):
        monkeypatch.setattr(corpus_module, "BLOCK_BYTES", block_bytes)
        with pytest.raises(EyasError, match=r"trains_nothing: 2, e\.g\. prepared/A/.* row 1: 0 tokens, none is"):
            build_corpus(SETTINGS, [write(tmp_path, "A", [empty, empty])], tmp_path / "out")
        stats = build_corpus(SETTINGS, [write(tmp_path, "A", [*sound, empty])], tmp_path / "out")
        assert (stats["kept"], stats["reasons"]) == (3, {"trains_nothing": 1})
        assert json.loads((tmp_path / "out/rejects.jsonl").read_bytes())["row"] == 4


def nested(record, *names):
    """The named fields stand in another object, as if they were the record's."""
    others = {k: v for k, v in record.items() if k not in names}
    return {**others, "meta": {"q": [1], **{k: record[k] for k in names}}}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda r: {**r, "loss_mask": r["loss_mask"][:-1]}, "input_ids has .* entries, loss_mask"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], VOCABULARY]}, "outside the vocabulary of 500"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], -1]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], 1.5]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], None]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], 1.0]}, "not a token id"),
        (lambda r: {**r, "input_ids": [True, *r["input_ids"][1:]]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], False]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], "7"]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], [7]]}, "not a token id"),
        (lambda r: {**r, "input_ids": [*r["input_ids"][:-1], 2**40]}, "outside the vocabulary of 500"),
        (lambda r: {**r, "input_ids": {}, "loss_mask": []}, "is not a list"),
        (lambda r: {**r, "input_ids": "", "loss_mask": []}, "is not a list"),
        (lambda r: {**r, "input_ids": None}, "is not a list"),
        (lambda r: {**r, "loss_mask": len(r["input_ids"])}, "is not a list"),
        (lambda r: {**r, "loss_mask": {}, "input_ids": []}, "is not a list"),
        (lambda r: {**r, "loss_mask": [2, *r["loss_mask"][1:]]}, "not 0 or 1"),
        (lambda r: {**r, "loss_mask": [-1, *r["loss_mask"][1:]]}, "not 0 or 1"),
        (lambda r: {**r, "loss_mask": [*r["loss_mask"][:-1], 1.0]}, "not 0 or 1"),
        (lambda r: {**r, "loss_mask": [*r["loss_mask"][:-1], True]}, "not 0 or 1"),
        (lambda r: {**r, "loss_mask": [*r["loss_mask"][:-1], None]}, "not 0 or 1"),
        (lambda r: {**r, "loss_mask": [*r["loss_mask"], 0]}, "input_ids has .* entries, loss_mask"),
        (lambda r: {k: v for k, v in r.items() if k != "loss_mask"}, "is not a list"),
        (lambda r: nested(r, "loss_mask"), "is not a list"),
        (lambda r: nested(r, "input_ids", "loss_mask"), "is not a list"),
        (lambda r: {**r, "id": 7}, "id is missing"),
        (lambda r: {**r, "id": ""}, "id is missing"),
        (lambda r: [r], "not a JSON object"),
        (lambda r: {**r, "dataset": "Z"}, "dataset is 'Z', expected 'A'"),
        (lambda r: {k: v for k, v in r.items() if k != "id"}, "id is missing"),
        (lambda r: orjson.dumps(r)[:-9] + b"\n", "not JSON"),
        (lambda r: orjson.dumps(r)[:-2] + b"\n", "not JSON"),
        (lambda r: orjson.dumps(r)[:-1] + b"\n", "not JSON"),
        (lambda r: orjson.dumps(r) + b"}\n", "not JSON"),
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


def test_the_first_fault_is_named_wherever_it_stands(tmp_path, monkeypatch):
    """In every place of a part, beside another in the next part, with several processes too."""
    sound = [orjson.dumps(r) + b"\n" for r in made_up("A", 30, 1)]
    for where in range(30):
        lines = [*sound[:where], b"7\n", *sound[where + 1 :], b"8\n"]
        source = write(tmp_path, "A", lines)
        for threads, block_bytes in ((1, 100), (1, 450), (1, 10_000), *([(3, 450)] if where % 10 == 9 else [])):
            monkeypatch.setattr(corpus_module, "BLOCK_BYTES", block_bytes)
            with pytest.raises(EyasError, match=rf"tokenized_data\.jsonl, line {where + 1}: not a JSON object"):
                build_corpus(SETTINGS, [source], tmp_path / "out", threads=threads)
            assert not list((tmp_path / "out").iterdir())


def test_a_file_that_was_cut_within_its_last_line_is_found(tmp_path):
    source = write(tmp_path, "A", made_up("A", 4, 1))
    whole = source.records.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for size in range(last + 1, len(whole) - 1):
        source.records.write_bytes(whole[:size])
        with pytest.raises(EyasError, match=r"tokenized_data\.jsonl, line 4: not JSON"):
            build_corpus(SETTINGS, [source], tmp_path / "out")


@pytest.mark.parametrize("seed", range(8))
def test_bytes_that_changed_are_judged_as_line_by_line(tmp_path, seed, monkeypatch):
    """The fast way to read agrees with `fault_in_tokenized` on what is a record, and with json on what it says."""
    rng, settings = random.Random(seed), {**SETTINGS, "heldout": 0.0}
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", rng.choice((100, 300, 10_000)))
    text = b"".join(orjson.dumps(r) + b"\n" for r in made_up("A", 8, seed))
    outcomes = Counter()
    for _ in range(40):
        at, length = rng.randrange(len(text)), rng.choice((0, 1, 1, 2))
        new = rng.choice((b"", b"0", b"1", b"2", b",", b"[", b"]", b"}", b'"', b" ", b"-", b".", b"true", b"\n", b"r"))
        changed = text[:at] + new + text[at + length :]
        lines = io.BytesIO(changed).readlines()
        source = write(tmp_path, "A", [changed], kept=sum(bool(line.strip()) for line in lines))
        faults = [fault_in_tokenized(line, "A", VOCABULARY) if line.strip() else None for line in lines]
        bad = [(k, f) for k, f in enumerate(faults, start=1) if f not in (None, "loss_mask trains no token")]
        if bad:
            with pytest.raises(EyasError) as error:
                build_corpus(settings, [source], tmp_path / "out")
            assert f"line {bad[0][0]}: {bad[0][1]}: run" in str(error.value)
        else:
            build_corpus(settings, [source], tmp_path / "out")
            kept = [json.loads(line) for line, fault in zip(lines, faults, strict=True) if line.strip() and not fault]
            expected = {tuple(r["input_ids"][:64]): r["loss_mask"][:64] for r in reversed(kept)}
            assert {tuple(r["input_ids"]): r["loss_mask"] for r in rows(tmp_path / "out", "train")} == expected
        outcomes["bad" if bad else "sound"] += 1
    assert len(outcomes) == 2


@pytest.mark.parametrize("step", ["spill_part", "gather_bucket"])
def test_a_killed_worker_is_named(two, tmp_path, monkeypatch, step):
    monkeypatch.setattr(corpus_module, step, _die)
    with pytest.raises(EyasError, match="a worker process was killed.*resources.prepare_mem_mb"):
        build_corpus(SETTINGS, two, tmp_path / "out", threads=2)
    assert not list((tmp_path / "out").iterdir())


def _die(*args):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("step", ["spill_part", "gather_bucket"])
def test_what_a_worker_raises_ends_the_build(two, tmp_path, monkeypatch, step, threads):
    monkeypatch.setattr(corpus_module, step, _fail)
    with pytest.raises(OSError, match="No space left"):
        build_corpus(SETTINGS, two, tmp_path / "out", threads=threads)
    assert not list((tmp_path / "out").iterdir())


def _fail(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


HANGS = """
import sys, time
from pathlib import Path
from eyas import corpus
def hang(part, plan):
    (plan.spill / f"{part.number}").touch()
    time.sleep(600)
corpus.BLOCK_BYTES, corpus.spill_part = 5000, hang
source = corpus.Source("A", Path(sys.argv[1]), "x")
corpus.build_corpus({"max_tokens": 64, "heldout": 0.2}, [source], Path(sys.argv[2]), threads=2)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_killed_build_leaves_no_process_and_the_next_one_clears_up(two, tmp_path, how):
    out = tmp_path / "out"
    command = [sys.executable, "-c", HANGS, two[0].records, out]
    build = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")})
    until(lambda: (out / ".spill/1").exists())
    workers = psutil.Process(build.pid).children()
    assert len(workers) == 2
    build.send_signal(how)
    build.wait(timeout=30)
    until(lambda: not any(worker.is_running() for worker in workers))
    build_corpus(SETTINGS, two, out)
    assert sorted(p.name for p in out.iterdir()) == ["heldout.parquet", "rejects.jsonl", "stats.json", "train.parquet"]


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
    (tmp_path / "draft").mkdir()
    save_file({"d2t": kept - np.arange(3), "t2d": t2d}, tmp_path / "draft/model.safetensors")
    settings = {**VOCABULARY_SETTINGS, "warm_start": str(tmp_path / "draft")}
    assert build_vocabulary(settings, corpus, tmp_path / "vocab")["size"] == 3
    assert np.array_equal(load_file(tmp_path / "vocab/map.safetensors")["t2d"], t2d)
    save_file({"d2t": kept, "t2d": t2d}, tmp_path / "draft/model.safetensors")
    with pytest.raises(EyasError, match=r"draft/model\.safetensors: d2t and t2d belong to .*not to each other"):
        build_vocabulary(settings, corpus, tmp_path / "vocab")
    (tmp_path / "draft/model.safetensors").write_bytes(b"cut")
    with pytest.raises(EyasError, match=r"draft/model\.safetensors: d2t and t2d cannot be read .*draft\.warm_start"):
        build_vocabulary(settings, corpus, tmp_path / "vocab")


# The page of the report


def test_the_page_shows_samples_coverage_and_states(corpus, tmp_path):
    build_vocabulary(VOCABULARY_SETTINGS, corpus, tmp_path / "vocab")
    shard = {"samples": 3, "tokens": 40, "bytes": 5_000_000, "seconds": 2.0, "shards": 2}
    shard["quarantined"] = {"not_finite": ["x"], "disagrees": []}
    shard["agreement"] = {"greedy": {"checked": 30, "agreed": 29}, "sampled": {"checked": 10, "agreed": 5}}
    paths = []
    for k in range(2):
        paths.append(tmp_path / f"hidden_states/train/0000{k}-of-00002.json")
        paths[k].parent.mkdir(parents=True, exist_ok=True)
        metadata = {"target": "t", "layers": "2,4,6", "dtype": "bf16", "shard": f"{k} of 2"}
        paths[k].write_bytes(orjson.dumps({**shard, "shard": k, "metadata": metadata}))
    text = describe_corpus(corpus / "stats.json", tmp_path / "vocab/coverage.json", paths).html()
    stats = json.loads((corpus / "stats.json").read_bytes())
    assert f"{stats['train']['tokens']:,}" in text and "<polyline" in text and "layers 2,4,6" in text
    assert "85.0\xa0%" in text, "of both kinds of answers"
    paths[1].write_bytes(orjson.dumps({**shard, "shard": 1, "metadata": {**metadata, "layers": "3,4,6"}}))
    with pytest.raises(EyasError, match=r"00001-of-00002\.json: layers is '3,4,6', expected '2,4,6' as in .*--force"):
        describe_corpus(corpus / "stats.json", tmp_path / "vocab/coverage.json", paths)
    with pytest.raises(EyasError, match=r"none\.json: cannot be read"):
        describe_corpus(tmp_path / "none.json", tmp_path / "vocab/coverage.json", [])
