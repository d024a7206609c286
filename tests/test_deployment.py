"""deploy/: a command that never serves a slowdown, a draft that loads, a card that tells what was measured."""

import json
import subprocess

import pytest

torch = pytest.importorskip("torch")
import yaml  # noqa: E402

from conftest import ROOT  # noqa: E402
from eyas.config import load  # noqa: E402
from eyas.deployment import deploy, launch_script  # noqa: E402
from eyas.eagle3.checkpoint import check_export  # noqa: E402
from eyas.errors import EyasError  # noqa: E402
from eyas.evaluation.summary import summarize  # noqa: E402
from eyas.target.launch import drafting_target  # noqa: E402
from test_evaluation import corpus, folder, trial  # noqa: E402, F401

CONFIG = load([ROOT / "config/demo.yaml"])
FAST, SLOW = [10, 6, 4], [80, 15, 5]
EVALUATION = CONFIG.evaluate.model_copy(update={"chain": 2, "max_gap": 0.9})


def target(**changes):
    flags = {"mem-fraction-static": 0.8, "json-model-override-args": '{"a": 1}', **changes.pop("flags", {})}
    sglang = CONFIG.target.sglang.model_copy(update={"flags": flags, "env": {"NCCL_DEBUG": "a b"}, **changes})
    return CONFIG.target.model_copy(update={"engine": "sglang", "sglang": sglang, "model": "owner/some model"})


def summary(folder, accepted):  # noqa: F811
    found = summarize(EVALUATION, {"walk": [trial("a", accepted)]}, folder)
    return {**found, "settings": {"evaluate": EVALUATION.model_dump(mode="json")}}


def asked_of(script, tmp_path, *more):
    """The arguments that the server would get."""
    path, python = tmp_path / "launch_server.sh", tmp_path / "python"
    path.write_text(script)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$NCCL_DEBUG" "$@"\n')
    python.chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "PORT": "1234"}
    done = subprocess.run(["bash", path, *more], env=env, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.splitlines()


def test_a_faster_draft_is_served_with_its_best_chain(folder, tmp_path):  # noqa: F811
    script = launch_script(target(), EVALUATION, summary(folder, FAST))
    said = asked_of(script, tmp_path, "--log-level", "debug")
    assert said[:3] == ["a b", "-m", "sglang.launch_server"] and said[-2:] == ["--log-level", "debug"]
    pairs = dict(zip(said, said[1:], strict=False))
    assert pairs["--model-path"] == "owner/some model" and pairs["--port"] == "1234"
    assert pairs["--json-model-override-args"] == '{"a": 1}'
    assert pairs["--speculative-algorithm"] == "EAGLE3"
    assert pairs["--speculative-draft-model-path"] == str(tmp_path / "draft")
    assert (pairs["--speculative-num-steps"], pairs["--speculative-num-draft-tokens"]) == ("2", "3")


def test_a_slower_draft_is_left_out_and_the_script_says_so(folder, tmp_path):  # noqa: F811
    script = launch_script(target(), EVALUATION, summary(folder, SLOW))
    assert "WITHOUT the draft" in script and "0.89 times the speed" in script
    assert not any("speculative" in argument for argument in asked_of(script, tmp_path))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"speculative-algorithm": "EAGLE"}, r"EAGLE: a draft of three layers needs EAGLE3; with another one it runs"),
        ({"speculative_algorithm": "NEXTN"}, r"NEXTN: a draft of three layers needs EAGLE3"),
        ({"speculative-num-steps": 5}, r"evaluate\.flags\.speculative-num-steps: eyas sets this itself"),
    ],
)
def test_a_flag_that_would_accept_nothing_is_refused_before_the_start(tmp_path, flags, said):
    with pytest.raises(EyasError, match=said):
        drafting_target(target(), tmp_path, 3, flags)
    with pytest.raises(EyasError, match=said):
        drafting_target(target(flags=flags), tmp_path, 3, {})


def test_the_folder_is_whole(folder, tmp_path):  # noqa: F811
    heldout = corpus(tmp_path)
    datasets = {"A1": {"samples": 3, "trainable_tokens": 1200}, "B9": {"samples": 0, "trainable_tokens": 0}}
    stats = {"train": {"samples": 3, "trainable_tokens": 1200, "datasets": datasets}}
    training = {
        "steps": 7,
        "tokens": 900,
        "settings": {"train": {"steps": 3, "loss": "kl", "optimizer": "adamw", "seed": 0}},
    }
    for path, content in (
        (heldout.with_name("stats.json"), stats),
        (folder / "training.json", training),
        (tmp_path / "summary.json", summary(folder, FAST)),
    ):
        path.write_text(json.dumps(content))
    settings = {"evaluate": EVALUATION.model_dump(mode="json"), "target": target().model_dump(mode="json")}
    out = tmp_path / "deploy"
    deploy(settings, folder, tmp_path / "summary.json", heldout.parent, {"A1": "mit"}, out)
    check_export(out / "draft")
    card = (out / "draft/README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["base_model"] == "owner/some model" and "eagle3" in front["tags"]
    assert "| A1 | 3 | 1,200 | mit |" in card and "B9" not in card and "1.21 times the speed" in card
    asked = json.loads((out / "prompts.json").read_text())
    assert asked["floor"] == round(1 + 0.8 * 0.7, 3) and len(asked["prompts"]) == 6
    done = subprocess.run([out / "check", "http://127.0.0.1:9"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "http://127.0.0.1:9 does not answer a prompt of" in done.stderr
