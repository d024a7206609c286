"""The plan counts what is there, estimates what is not, and stops a run that the disk cannot hold."""

import json
import subprocess
import sys

import pytest

from conftest import ROOT
from eyas import plan as plan_module
from eyas.config import load
from eyas.plan import as_text, plan
from eyas.records import write_json
from eyas.storage import size

CONFIG = load([ROOT / "config/demo.yaml"])
TOKENIZED, PROMPTS = CONFIG.names("tokenized_data"), CONFIG.names("prompts")
HIDDEN = 576
PER_TOKEN = 4 * HIDDEN * 2 + 5


@pytest.fixture
def prepared(tmp_path):
    for name in CONFIG.names():
        write_json(tmp_path / f"prepared/{name}/stats.json", {"kept": 10, "tokens": 1000})
    return tmp_path


def answer(root, name, seconds=50.0):
    write_json(
        root / f"responses/{name}/stats.json",
        {"kept": 10, "tokens": 1500, "trainable_tokens": 500, "asked_tokens": 500, "seconds": seconds},
    )


def of(result, name):
    return next(d for d in result["datasets"] if d["dataset"] == name)


def with_capture(**changes):
    return CONFIG.model_copy(update={"capture": CONFIG.capture.model_copy(update=changes)})


def test_nothing_is_guessed_of_what_is_not_there(tmp_path):
    result = plan(CONFIG, tmp_path, HIDDEN)
    assert result["tokens"] == 0 and result["unknown"] == CONFIG.names("prompts", "tokenized_data")
    assert result["hours"] == {"answering": 0.0, "capturing": 0.0}


def test_answers_are_bounded_until_one_dataset_has_them(prepared):
    result = plan(CONFIG, prepared, HIDDEN)
    most = CONFIG.generation(PROMPTS[0]).max_new_tokens
    assert of(result, TOKENIZED[0])["tokens"] == 1000
    assert of(result, PROMPTS[0]) | {"basis": ""} == {
        **{"dataset": PROMPTS[0], "tokens": 1000 + 10 * most, "answers_left": 10 * most},
        **{"basis": "", "at_most": True},
    }
    assert result["at_most"] and result["hours"]["answering"] is None
    assert "answer one dataset first" in as_text(result, "T", "bf16")
    answer(prepared, PROMPTS[0])
    result = plan(CONFIG, prepared, HIDDEN)
    assert of(result, PROMPTS[1])["tokens"] == 1500, "50 tokens each, as the answered one has"
    assert not result["at_most"] and result["tokens"] == 1000 * len(TOKENIZED) + 1500 * len(PROMPTS)
    left = 500 * (len(PROMPTS) - 1)
    assert result["hours"]["answering"] == pytest.approx(left / 10 / 3600, abs=0.01)


def test_the_corpus_is_counted_and_what_is_captured_is_not_needed_again(prepared):
    write_json(prepared / "corpus/stats.json", {"train": {"tokens": 90_000}, "heldout": {"tokens": 10_000}})
    result = plan(CONFIG, prepared, HIDDEN)
    assert result["tokens"] == 100_000 and result["bytes_needed"] == 100_000 * PER_TOKEN
    shard = {"tokens": 20_000, "captured_tokens": 18_000, "seconds": 36.0, "bytes": 123}
    write_json(prepared / "hidden_states/train/00000-of-00004.json", shard)
    (prepared / "hidden_states/train/00000-of-00004.safetensors").write_bytes(bytes(1_000_000))
    result = plan(CONFIG, prepared, HIDDEN)
    assert result["bytes_needed"] == 100_000 * PER_TOKEN - 1_000_000
    assert result["hours"]["capturing"] == pytest.approx(80_000 / 500 / 3600, abs=0.01)


def test_what_would_fit_is_said_with_its_numbers(prepared, monkeypatch):
    write_json(prepared / "corpus/stats.json", {"train": {"tokens": 95_000}, "heldout": {"tokens": 5_000}})
    monkeypatch.setattr(plan_module, "free_bytes", lambda folder: int(100_000 * PER_TOKEN * 0.6))
    result = plan(with_capture(shards=10), prepared, HIDDEN)
    assert not result["fits"]
    text = as_text(result, "T", "bf16")
    for said in ("capture.dtype: fp8 needs 232.5 MB, which fits", "capture.window: 5 keeps", "57,000 tokens fit"):
        assert said in text
    for changes in ({"dtype": "fp8"}, {"window": 5, "shards": 10}):
        assert plan(with_capture(**changes), prepared, HIDDEN)["fits"]
    assert not plan(with_capture(window=8, shards=10), prepared, HIDDEN)["fits"]


def test_sizes_read_well():
    assert [size(n) for n in (11.7e12, 2.35e9, 1.2e6, 900)] == ["11.7 TB", "2.4 GB", "1.2 MB", "900 bytes"]


def test_the_command_fails_when_the_states_do_not_fit(prepared):
    (prepared / "target/tokenizer").mkdir(parents=True)
    (prepared / "target/tokenizer/config.json").write_text(json.dumps({"num_hidden_layers": 61, "hidden_size": 7168}))
    command = [sys.executable, ROOT / "scripts/plan_run.py", "--configfile", ROOT / "config/demo.yaml"]

    def run():
        return subprocess.run(command, cwd=prepared, capture_output=True, text=True, timeout=60)

    assert run().returncode == 0
    write_json(prepared / "corpus/stats.json", {"train": {"tokens": 10**12}, "heldout": {"tokens": 0}})
    done = run()
    assert done.returncode == 1 and "do not fit on the disk. Instead:" in done.stdout
    assert "57,349 bytes a token" in done.stdout
