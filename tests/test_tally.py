"""The inventory: only valid records count, and everything that is wrong is named with the command that mends it."""

import json
import subprocess
import sys

import orjson
import pytest

from conftest import ROOT
from eyas import tally as tally_module
from eyas.config import parse
from eyas.differences import differences
from eyas.records import content_id
from eyas.tally import as_page, as_text, settings_fingerprint, tally

SOURCE = {"folder": "x", "files": ["*.jsonl"]}
CONFIG = {
    "target": {"model": "m", "name": "t", "tokenizer": {"folder": "tok", "files": ["*"]}},
    "prepare": {"cap": 5},
    "datasets": {
        "A1": {"adapter": "a", "produces": "tokenized_data", "sources": [SOURCE]},
        "B1": {"adapter": "b", "produces": "prompts", "sources": [SOURCE]},
    },
}
FILES = {"A1": "A1/tokenized_data.jsonl", "B1": "B1/prompts.jsonl"}


def token_record(k: int, **other) -> dict:
    return {"id": f"{k:032x}", "dataset": "A1", "input_ids": [1, 2, k], "loss_mask": [0, 1, 1], **other}


def prompt_record(k: int) -> dict:
    messages = [{"role": "user", "content": f"question {k}"}]
    meta = {"file": "f", "row": k, "prompt_tokens": 10}
    return {"id": content_id(messages), "dataset": "B1", "messages": messages, "meta": meta}


def write(prepared, name: str, records: list, **stats) -> None:
    """Records (bytes are written as they are) and the statistics of a preparation with today's settings."""
    path = prepared / FILES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(r if isinstance(r, bytes) else orjson.dumps(r) + b"\n" for r in records))
    settings = parse(CONFIG).prepare_settings(name)
    stats = {"kept": len(records), "vocabulary": 100, "settings": settings, **stats}
    path.with_name("stats.json").write_bytes(orjson.dumps(stats))


@pytest.fixture
def prepared(tmp_path):
    """Two datasets, both as they should be."""
    write(tmp_path, "A1", [token_record(k) for k in range(4)])
    write(tmp_path, "B1", [prompt_record(k) for k in range(3)])
    return tmp_path


def row(prepared, name: str, **options) -> dict:
    rows = tally(parse(CONFIG), prepared, **options)["stages"]["prepared"]["rows"]
    return next(r for r in rows if r["dataset"] == name)


def test_counts_records_and_tokens_by_class(prepared):
    result = tally(parse(CONFIG), prepared)
    assert result["problems"] == []
    assert result["stages"]["prepared"]["classes"] == {
        "tokenized": {"datasets": 1, "ok": 1, "records": 4, "tokens": 12, "trainable_tokens": 8},
        "awaiting inference": {"datasets": 1, "ok": 1, "records": 3, "tokens": 30, "trainable_tokens": 0},
    }
    assert result["total"] == {"datasets": 2, "ok": 2, "records": 7, "tokens": 42, "trainable_tokens": 8}
    assert json.loads(json.dumps(result)) == result


def test_lines_are_no_records(prepared):
    """A count of lines was once taken for a count of usable records."""
    good, blank, cut = token_record(1), b"\n  \n", b'{"id": "x", "input_ids": [1, 2'
    untrained, beyond = token_record(2, loss_mask=[0, 0, 0]), token_record(3, input_ids=[1, 2, 100])
    write(prepared, "A1", [good, blank, untrained, beyond, b"17\n", cut], kept=5)
    found = row(prepared, "A1")
    assert (found["state"], found["records"], found["tokens"]) == ("damaged", 1, 3)
    bad, count = found["what"]
    assert bad.startswith("4 bad lines: line 4: loss_mask trains no token; line 5: input_ids holds 100, outside")
    assert bad.endswith("line 6: not a JSON object; and 1 more")
    assert count == "1 valid records, stats.json says 5"
    assert found["command"] == "snakemake --force prepared/A1/tokenized_data.jsonl"


def test_a_repeated_id_is_a_fault(prepared):
    write(prepared, "A1", [token_record(1), token_record(2), token_record(1)], kept=2)
    found = row(prepared, "A1")
    assert (found["state"], found["records"], found["tokens"]) == ("damaged", 2, 6)
    assert found["what"] == [f"1 bad line: line 3: id {1:032x} came before"]


def test_altered_prompts_are_found(prepared):
    altered = prompt_record(1)
    altered["messages"][0]["content"] = "another question"
    write(prepared, "B1", [prompt_record(0), altered])
    assert "line 2: id is not the hash of messages and tools" in row(prepared, "B1")["what"][0]


@pytest.mark.parametrize("processes", [1, 3])
def test_parts_of_a_file_add_up(prepared, monkeypatch, processes):
    """Whatever the boundaries of the parts: each line is checked once, under its own number."""
    records = [token_record(k) for k in range(40)]
    records[29] = b"broken\n"
    records[39] = token_record(5)
    write(prepared, "A1", records, kept=38)
    length = len(orjson.dumps(records[0])) + 1
    for size in (7, length - 1, length, length + 1, 3 * length, 10_000):
        monkeypatch.setattr(tally_module, "PART_BYTES", size)
        found = row(prepared, "A1", processes=processes)
        assert found["records"] == 38, size
        (what,) = found["what"]
        assert what.startswith("2 bad lines: line 30: not JSON: "), size
        assert what.endswith(f"; line 40: id {5:032x} came before"), size


def test_stale_settings_are_named(prepared):
    settings = parse(CONFIG).prepare_settings("B1")
    settings["cap"] = 10000
    settings["target"]["tokenizer"]["folder"] = "old"
    write(prepared, "B1", [prompt_record(0)], settings=settings)
    found = row(prepared, "B1", command="snakemake --profile profiles/demo")
    assert found["state"] == "stale"
    assert found["what"] == ["cap: 10000 → 5", 'target.tokenizer.folder: "old" → "tok"']
    anew = "target/tokenizer/manifest.json prepared/B1/prompts.jsonl"  # the tokenizer is another one
    assert found["command"] == f"snakemake --profile profiles/demo --force {anew}"


def test_differences_of_lists_and_absent_keys():
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ["a.1.b: 2 → 3"]
    assert differences({"a": [1]}, {"a": [1, 2]}) == ["a: [1] → [1,2]"]
    assert differences({"a": None}, {"b": 0}) == ["a: null → absent", "b: absent → 0"]
    assert differences({"a": 0.0, "b": 1}, {"a": 0, "b": True}) == ["b: 1 → true"]


def test_missing_and_empty_are_rebuilt_without_force(prepared):
    (prepared / FILES["A1"]).unlink()
    (prepared / FILES["B1"]).write_text(" \n\n")
    a, b = row(prepared, "A1"), row(prepared, "B1")
    assert (a["state"], a["command"]) == ("missing", "snakemake prepared/A1/tokenized_data.jsonl")
    assert (b["state"], b["command"]) == ("empty", "snakemake prepared/B1/prompts.jsonl")
    assert a["records"] == b["records"] == 0


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"kept": 4}'])
def test_records_without_statistics_are_damaged(prepared, content):
    stats = prepared / "A1/stats.json"
    stats.unlink() if content is None else stats.write_bytes(content)
    found = row(prepared, "A1")
    assert (found["state"], found["records"]) == ("damaged", 4)
    assert found["what"][0].startswith("stats.json")
    assert "--force" in found["command"]


def test_text_and_page_show_rows_sums_and_problems(prepared):
    write(prepared, "B1", [prompt_record(0), b'{"<script>alert(1)</script>\n'], kept=1)
    result = tally(parse(CONFIG), prepared)
    text = as_text(result)
    assert [line.split() for line in text.splitlines() if "A1" in line] == [["A1", "ok", "4", "12", "8"]]
    assert ["total", "1", "of", "2", "ok", "5", "22", "8"] in [line.split() for line in text.splitlines()]
    assert "snakemake --force prepared/B1/prompts.jsonl" in text
    html = as_page(result).html()
    assert html.count("<script") == 1
    assert "snakemake --force prepared/B1/prompts.jsonl" in html


def test_fingerprint_follows_what_decides_the_records():
    def changed(key: str, value) -> str:
        return settings_fingerprint(parse({**CONFIG, key: value}))

    now = settings_fingerprint(parse(CONFIG))
    assert now == changed("probe_rows", 7)
    assert now != changed("prepare", {"cap": 6})


def test_command_writes_both_forms_and_fails_only_when_strict(prepared):
    (prepared / FILES["A1"]).unlink()
    out = prepared / "reports"
    command = [
        sys.executable,
        ROOT / "scripts/tally_records.py",
        "--prepared-dir",
        prepared,
        "--config",
        json.dumps(CONFIG),
    ]
    command += ["--json", out / "tally.json", "--html", out / "tally.html", "--command-prefix", "snakemake --profile p"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "snakemake --profile p prepared/A1/tokenized_data.jsonl" in done.stdout
    result = json.loads((out / "tally.json").read_text())
    assert result["settings_fingerprint"] == settings_fingerprint(parse(CONFIG))
    assert result["problems"][0]["state"] == "missing"
    assert (out / "tally.html").read_text().startswith("<!doctype html>")
    assert subprocess.run([*command, "--strict"], capture_output=True).returncode == 1


def test_what_is_being_answered_is_told(prepared, tmp_path):
    counters = {"dataset": "B1", "done": 2, "left": 1, "failed": 1, "answer_tokens": 50, "tokens_per_s": 12.5}
    counters |= {"seconds_left": 65, "updated": "2026-11-30T06:44:07+0000"}
    path = tmp_path / "state/generate_responses/B1/progress.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(orjson.dumps(counters))
    result = tally(parse(CONFIG), prepared, tmp_path / "responses", tmp_path / "state")
    told = "2 of 3, 1 set aside, 12 tokens/s, 1 min 5 s left (at 2026-11-30T06:44:07+0000)"
    assert f"  B1: {told}" in as_text(result) and told in as_page(result).html()
