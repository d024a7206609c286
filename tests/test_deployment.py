"""deploy/: a command that never serves a slowdown, a draft that loads, a card that tells what was measured."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import yaml  # noqa: E402

from conftest import ROOT  # noqa: E402
from eyas.config import load  # noqa: E402
from eyas.deployment import deploy, launch_script  # noqa: E402
from eyas.eagle3.export import check_export  # noqa: E402
from eyas.errors import EyasError  # noqa: E402
from eyas.evaluation.prompts import heldout_prompts, write_prompts  # noqa: E402
from eyas.evaluation.summary import summarize  # noqa: E402
from eyas.target.launch import Drafting, drafting_target  # noqa: E402
from stand_in_hub import StandInHub  # noqa: E402
from test_evaluation import corpus, folder, trial  # noqa: E402, F401

CONFIG = load([ROOT / "config/demo.yaml"])
FAST, SLOW = [10, 6, 4], [80, 15, 5]
EVALUATION = CONFIG.evaluate.model_copy(update={"chain": 2, "max_gap": 0.9})


def target(**changes):
    flags = {"mem-fraction-static": 0.8, "json-model-override-args": '{"a": 1}', **changes.pop("flags", {})}
    sglang = CONFIG.target.sglang.model_copy(update={"flags": flags, "env": {"NCCL_DEBUG": "a b"}, **changes})
    return CONFIG.target.model_copy(update={"sglang": sglang, "model": "owner/some model"})


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
    script = launch_script(target(), EVALUATION, summary(folder, FAST), tmp_path)
    said = asked_of(script, tmp_path, "--log-level", "debug")
    assert said[:3] == ["a b", "-m", "sglang.launch_server"] and said[-2:] == ["--log-level", "debug"]
    pairs = dict(zip(said, said[1:], strict=False))
    assert pairs["--model-path"] == "owner/some model" and pairs["--port"] == "1234"
    assert pairs["--json-model-override-args"] == '{"a": 1}'
    assert pairs["--speculative-algorithm"] == "EAGLE3"
    assert pairs["--speculative-draft-model-path"] == str(tmp_path / "draft")
    assert (pairs["--speculative-num-steps"], pairs["--speculative-num-draft-tokens"]) == ("2", "3")


def test_a_slower_draft_is_left_out_and_the_script_says_so(folder, tmp_path):  # noqa: F811
    script = launch_script(target(), EVALUATION, summary(folder, SLOW), tmp_path)
    assert "WITHOUT the draft" in script and "0.89 times the speed" in script
    assert "The flags were not checked: SmolLM2-135M-Instruct was evaluated without SGLang" in script
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
        drafting_target(target(), tmp_path, Drafting.whole(3), flags)
    with pytest.raises(EyasError, match=said):
        drafting_target(target(flags=flags), tmp_path, Drafting.whole(3), {})


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
    write_prompts(tmp_path / "prompts.jsonl", heldout_prompts(heldout, 9, 99))
    settings = {"evaluate": EVALUATION.model_dump(mode="json"), "target": target().model_dump(mode="json")}
    out = tmp_path / "deploy"
    deploy({**settings, "licenses": {"A1": "mit"}}, folder, tmp_path, heldout.parent, out, tmp_path / "state")
    check_export(out / "draft")
    card = (out / "draft/README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["base_model"] == "owner/some model" and "eagle3" in front["tags"]
    assert "| A1 | 3 | 1,200 | mit |" in card and "B9" not in card and "1.21 times the speed" in card
    asked = json.loads((out / "prompts.json").read_text())
    assert asked["floor"] == round(1 + 0.8 * 0.7, 3) and len(asked["prompts"]) == 6
    done = subprocess.run([out / "check", "http://127.0.0.1:9"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "http://127.0.0.1:9 does not answer a prompt of" in done.stderr


def pushed(hub, folder, tmp_path, token):  # noqa: F811
    """scripts/push_draft.py, as Snakemake calls it."""
    card = folder / "README.md"
    card.write_text("---\nlibrary_name: sglang\n---\n# A draft\n")
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    settings = {"deploy": {"repo": None, "private": True}, "target": {"name": "SmolLM2 (135M)"}}
    command = [sys.executable, ROOT / "scripts/push_draft.py", "--draft", folder, "--settings", json.dumps(settings)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
    env |= {"HF_TOKEN": token} if token else {}
    asked = [*command, "--out", tmp_path / "pushed.json"]
    return subprocess.run(asked, env=env, capture_output=True, text=True, timeout=120)


def test_pushing_needs_a_token_and_nothing_else(folder, tmp_path):  # noqa: F811
    with StandInHub(tmp_path / "hub") as hub:
        (tmp_path / "hub").mkdir()
        hub.writer = ("somebody", "hf_writes")
        for token, said in ((None, "HF_TOKEN: not set"), ("hf_reads", "the Hub does not take it")):
            done = pushed(hub, folder, tmp_path, token)
            assert done.returncode == 1 and said in done.stderr, done.stderr
            assert not (tmp_path / "pushed.json").exists()
        done = pushed(hub, folder, tmp_path, "hf_writes")
        assert done.returncode == 0, done.stderr
        repo = "somebody/SmolLM2-135M-eagle3"
        told = json.loads((tmp_path / "pushed.json").read_text())
        assert told == {"repo": repo, "commit": hub.commit(repo), "url": f"{hub.url}/{repo}"}
        assert hub.private[repo] and check_export(tmp_path / "hub" / repo) is None
        assert (tmp_path / "hub" / repo / "README.md").exists()
        assert pushed(hub, folder, tmp_path, "hf_writes").returncode == 0, "a repository that is there is pushed to"
