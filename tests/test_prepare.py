"""One dataset from files to records: every row accounted for, nothing half published."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import ROOT
from eyas import ledger, prepare_lines
from eyas.config import load
from eyas.errors import EyasError
from eyas.prepare import prepare_dataset
from eyas.records import content_id, fault_in_prompt, fault_in_tokenized, is_blank, whole_file

CONFIG = load([ROOT / "config/demo.yaml"])


def settings_of(name, **changes):
    return {**CONFIG.prepare_settings(name), "cap": None, **changes}


def chats(n):
    rng = random.Random(0)
    words = "alpha beta gamma delta epsilon zeta eta theta".split()
    return [
        {
            "messages": [
                {"role": r, "content": " ".join(rng.choices(words, k=rng.randint(3, 60))) + f" {k}"}
                for r in ("user", "assistant")
            ]
        }
        for k in range(n)
    ]


def write_lines(path, rows):
    path.write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in rows))
    return path


def balanced(stats):
    return stats["rows_read"] == stats["kept"] + stats["rejected"] + stats["duplicates"] + stats["beyond_cap"]


def test_threads_change_nothing(tmp_path, smollm2_folder, monkeypatch):
    """Neither records nor rejects, whether a row was turned down when it was read or when it was encoded."""
    monkeypatch.setattr(prepare_lines, "CHUNK_BYTES", 4096)
    rows = chats(400)
    for k in range(0, 400, 7):
        rows[k] = {"messages": None}
    source = write_lines(tmp_path / "x.jsonl", rows)
    settings = settings_of("A1_deepswekimi", max_tokens=150, max_rejected=1.0)
    for threads in (1, 3):
        stats = prepare_dataset(settings, [source], smollm2_folder, tmp_path / str(threads), threads=threads)
    for name in ("tokenized_data.jsonl", "rejects.jsonl"):
        one, three = ((tmp_path / str(t) / name).read_bytes() for t in (1, 3))
        assert one == three
    assert set(stats["reasons"]) == {"no_messages", "too_long"} and stats["kept"] + stats["rejected"] == 400


def test_a_cap_takes_the_same_rows_whatever_the_order(tmp_path, smollm2_folder):
    rows = [{"problem": f"Write program number {k} in C."} for k in range(3000)]
    rows += rows[:500]
    found = []
    for seed in range(2):
        random.Random(seed).shuffle(rows)
        sources = [write_lines(tmp_path / f"{seed}-{part}.jsonl", rows[part::2]) for part in range(2)]
        out = tmp_path / f"out{seed}"
        stats = prepare_dataset(settings_of("B3_magicoder", cap=100), sources, smollm2_folder, out)
        records = [orjson.loads(line) for line in (out / "prompts.jsonl").read_bytes().splitlines()]
        found.append(([r["id"] for r in records], stats["duplicates"], stats["beyond_cap"]))
        assert stats["kept"] == 100 and balanced(stats)
    assert found[0] == found[1]


def opencode_rows(n):
    rng = random.Random(1)
    rows = [
        {
            "id": f"{k:x}",
            "input": f"Task {k}: reverse a list.",
            "average_test_score": rng.choice(["1", "1", "0.5", None]),
        }
        for k in range(n)
    ]
    return (
        rows + [{**r, "id": "again"} for r in rows[: n // 10]] + [{"id": "z", "input": " ", "average_test_score": "1"}]
    )


def test_a_preselected_sample_equals_the_sample_row_by_row(tmp_path, smollm2_folder, monkeypatch):
    """The batch path and the row path keep as many, count alike; and order does not matter to the batch path."""
    results = []
    for seed in range(2):
        rows = opencode_rows(5000)
        random.Random(seed).shuffle(rows)
        path = tmp_path / f"{seed}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=700)
        out = tmp_path / f"out{seed}"
        stats = prepare_dataset(settings_of("B2_opencodeinstruct", cap=50), [path], smollm2_folder, out)
        ids = [orjson.loads(line)["id"] for line in (out / "prompts.jsonl").read_bytes().splitlines()]
        assert balanced(stats) and stats["kept"] == 50
        results.append((ids, stats["reasons"], stats["duplicates"], stats["beyond_cap"]))
    assert results[0] == results[1]
    whole = prepare_dataset(settings_of("B2_opencodeinstruct"), [path], smollm2_folder, tmp_path / "whole")
    assert whole["reasons"] == results[0][1] and balanced(whole)


def test_longer_than_the_limit_is_counted_and_replaced_from_the_reserve(tmp_path, smollm2_folder):
    rows = [{"problem": f"Program {k}. " + "long " * (500 if k % 10 == 0 else 1)} for k in range(1000)]
    source = write_lines(tmp_path / "x.jsonl", rows)
    stats = prepare_dataset(
        settings_of("B3_magicoder", cap=200, max_tokens=100), [source], smollm2_folder, tmp_path / "out"
    )
    assert stats["kept"] == 200 and stats["reasons"]["too_long"] > 0 and balanced(stats)


def test_too_many_rejects_fail_with_reasons_and_a_row_and_publish_nothing(tmp_path, smollm2_folder):
    rows = chats(10) + [{"messages": [{"role": "critic", "content": "x"}]}] * 5
    source = write_lines(tmp_path / "x.jsonl", rows)
    with pytest.raises(EyasError) as caught:
        prepare_dataset(settings_of("A1_deepswekimi", max_rejected=0.3), [source], smollm2_folder, tmp_path / "out")
    message = str(caught.value)
    assert "5 of 15 rows are rejected (33.3%), the limit is 30.0%" in message
    assert "unknown_role: 5, e.g. x.jsonl row 11" in message and "'critic'" in message
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_kept_fails(tmp_path, smollm2_folder):
    source = write_lines(tmp_path / "x.jsonl", [{"messages": []}] * 3)
    with pytest.raises(EyasError, match="none of 3 rows is kept"):
        prepare_dataset(settings_of("A1_deepswekimi", max_rejected=1.0), [source], smollm2_folder, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_filters_are_not_held_against_a_dataset(tmp_path, smollm2_folder):
    rows = [{"id": str(k), "input": f"task {k}", "average_test_score": "1" if k < 5 else "0"} for k in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    stats = prepare_dataset(
        settings_of("B2_opencodeinstruct", max_rejected=0.0), [tmp_path / "x.parquet"], smollm2_folder, tmp_path / "out"
    )
    assert (stats["kept"], stats["rejected"], stats["filters"]) == (5, 95, ["below_min_score"])


def test_a_damaged_file_publishes_nothing(tmp_path, smollm2_folder):
    good = write_lines(tmp_path / "a.jsonl", chats(5))
    (tmp_path / "b.json").write_text('[{"messages": [')
    with pytest.raises(EyasError, match=r"b\.json: damaged at item 1"):
        prepare_dataset(settings_of("A1_deepswekimi"), [good, tmp_path / "b.json"], smollm2_folder, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_rejects_are_listed_up_to_a_bound_and_counted_beyond(tmp_path, smollm2_folder, monkeypatch):
    monkeypatch.setattr(ledger, "REJECTS_LISTED", 10)
    rows = chats(5) + [{"messages": None}] * 30
    source = write_lines(tmp_path / "x.jsonl", rows)
    stats = prepare_dataset(settings_of("A1_deepswekimi", max_rejected=1.0), [source], smollm2_folder, tmp_path / "out")
    assert stats["reasons"] == {"no_messages": 30} and stats["rejects_listed"] == 10
    assert (tmp_path / "out/rejects.jsonl").read_text().count("\n") == 10


def test_output_is_valid_utf8_and_ids_are_stable(tmp_path, smollm2_folder):
    (tmp_path / "x.jsonl").write_text('{"problem": "a \\ud83d b \\u0000 é"}\n')
    prepare_dataset(settings_of("B3_magicoder"), [tmp_path / "x.jsonl"], smollm2_folder, tmp_path / "out")
    record = json.loads((tmp_path / "out/prompts.jsonl").read_bytes().decode("utf-8"))
    assert record["messages"] == [{"role": "user", "content": "a � b \0 é"}]
    assert record["id"] == content_id(record["messages"]) == "b1252d5e7ee967f397f5450f299366c4"


def test_a_job_killed_at_any_moment_leaves_no_half_file(tmp_path, smollm2_folder):
    """The real script, killed -9 at many moments; then it runs to its end."""
    folder = tmp_path / "sources/A1_deepswekimi"
    folder.mkdir(parents=True)
    source = write_lines(folder / "x.jsonl", chats(6000))
    manifest = {
        "sources": [{"place": "x"}],
        "files": [{"path": "x.jsonl", "name": "x.jsonl", "source": 0, "bytes": source.stat().st_size}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    command = [sys.executable, ROOT / "scripts/prepare_dataset.py", "--dataset", "A1_deepswekimi", "--threads", "2",
               "--tokenizer", smollm2_folder, "--settings", json.dumps(settings_of("A1_deepswekimi"))]  # fmt: skip
    out = tmp_path / "prepared/A1_deepswekimi"
    records, waits, caught_writing = out / "tokenized_data.jsonl", iter([0.05, 0.2, 0.35, 0.5]), 0
    for wait in waits:
        job = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 60
        while (
            not (out / ".tokenized_data.jsonl.partial").exists() and job.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        time.sleep(wait)
        caught_writing += job.poll() is None
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        assert not records.exists() or records.read_bytes().count(b"\n") == 6000
        records.unlink(missing_ok=True)
    assert caught_writing, "every job ended before it could be killed"
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert records.read_bytes().count(b"\n") == 6000
    assert sorted(p.name for p in out.iterdir()) == ["rejects.jsonl", "stats.json", "tokenized_data.jsonl"]


def test_a_killed_worker_is_named(tmp_path, smollm2_folder, monkeypatch):
    monkeypatch.setattr(prepare_lines, "_encode_in_worker", _die)
    source = write_lines(tmp_path / "x.jsonl", chats(50))
    with pytest.raises(EyasError, match="prepare_mem_mb"):
        prepare_dataset(settings_of("A1_deepswekimi"), [source], smollm2_folder, tmp_path / "out", threads=2)


def _die(payloads):
    os.kill(os.getpid(), signal.SIGKILL)


def test_whole_files_appear_only_when_they_are_whole(tmp_path):
    path = tmp_path / "f"
    with pytest.raises(RuntimeError), whole_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with whole_file(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"


def test_blank_files(tmp_path):
    for content, blank in ((b"", True), (b"\n \r\n\t", True), (b" " * 200_000, True), (b"\n{}", False)):
        (tmp_path / "f").write_bytes(content)
        assert is_blank(tmp_path / "f") is blank
    assert not is_blank(tmp_path / "missing")


RECORD = {"id": "x", "dataset": "A", "input_ids": [1, 2], "loss_mask": [0, 1]}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"loss_mask": [1]}, "2 entries"),
        ({"loss_mask": [0, 0]}, "trains no token"),
        ({"loss_mask": [0, 2]}, "not 0 or 1"),
        ({"loss_mask": [False, True]}, "not 0 or 1"),
        ({"input_ids": [1, -2]}, "not a token id"),
        ({"input_ids": [1, 1.5]}, "not a token id"),
        ({"input_ids": [1, 10]}, "outside the vocabulary"),
        ({"dataset": "B"}, "expected 'A'"),
        ({"id": ""}, "id is missing"),
    ],
)
def test_faults_of_token_records(change, fault):
    found = fault_in_tokenized(orjson.dumps({**RECORD, **change}), "A", vocabulary=10)
    assert found is None if fault is None else fault in found


def test_faults_of_prompts():
    messages = [{"role": "user", "content": "q"}]
    good = {"id": content_id(messages), "dataset": "B", "messages": messages, "meta": {}}
    assert fault_in_prompt(orjson.dumps(good), "B") is None
    for change, fault in (
        ({"messages": []}, "not a list with messages"),
        ({"messages": [{"role": "user", "content": "other"}]}, "altered"),
        ({"messages": [{"role": "user", "content": None}]}, "not text"),
        ({"messages": [*messages, {"role": "assistant", "content": "a"}]}, "nothing is left to answer"),
        ({"dataset": "C"}, "expected 'B'"),
    ):
        assert fault in fault_in_prompt(orjson.dumps({**good, **change}), "B")
    assert "not JSON" in fault_in_prompt(orjson.dumps(good)[:-3], "B")
