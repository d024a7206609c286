"""Real SGLang on the CPU, started, shared, killed and ended by the stage itself, through the real script."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import ROOT, SMOLLM2_GGUF
from eyas.config import Generation, load
from eyas.records import content_id, fault_in_tokenized
from sglang_server import PYTHON, cpu_env, cpu_flags, require_sglang_cpu, shared_model

pytestmark = pytest.mark.xdist_group("sglang")  # one real server at a time

CONFIG = load([ROOT / "config/demo.yaml"])
IDLE_S = 3
QUESTIONS = ("Name a river in France.", "What is 7 plus 5?", "Say hello in Spanish.", "What colour is the sky?")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    require_sglang_cpu()
    return shared_model(SMOLLM2_GGUF, tmp_path_factory)


def job(folder, dataset, model, smollm2_folder):
    """The command of one dataset's job, and its prompts."""
    prompts = folder / f"prepared/{dataset}/prompts.jsonl"
    prompts.parent.mkdir(parents=True)
    lines = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": f"{question} ({dataset})"}]
        lines.append(json.dumps({"id": content_id(messages), "dataset": dataset, "messages": messages, "meta": {}}))
    prompts.write_text("\n".join(lines) + "\n")
    served = {"python": str(PYTHON), "flags": cpu_flags(), "env": cpu_env(), "gpus": 0, "idle_s": IDLE_S}
    target = {**CONFIG.target.model_dump(mode="json"), "engine": "sglang", "model": str(model), "weights": None}
    sampling = Generation(temperature=0, max_new_tokens=24, concurrency=4).model_dump()
    settings = {"dataset": dataset, "sampling": sampling, "target": {**target, "sglang": served}}
    return [
        *(sys.executable, ROOT / "scripts/generate_responses.py", "--dataset", dataset),
        *("--settings", json.dumps(settings), "--tokenizer", smollm2_folder),
    ]


def servers(folder):
    """Processes of this test's servers that are alive: pid → command line."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if re.search(r"sglang[.:]", command) and (process / "cwd").resolve() == folder.resolve():
                found[process.name] = command
    return found


def test_jobs_share_one_server_survive_its_death_and_leave_nothing(tmp_path, model, smollm2_folder):
    commands = [job(tmp_path, name, model, smollm2_folder) for name in ("B", "C")]
    jobs = [subprocess.Popen(c, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for c in commands]
    published = {}
    deadline = time.monotonic() + 300
    while published.get("state") != "ready" and time.monotonic() < deadline and any(j.poll() is None for j in jobs):
        time.sleep(0.1)
        for path in tmp_path.glob("state/server/*/*/server.json"):
            published = json.loads(path.read_bytes())
    assert published["state"] == "ready"
    assert servers(tmp_path), "a check that cannot see them proves nothing below"
    os.killpg(published["pgid"], signal.SIGKILL)
    for running in jobs:
        _, said = running.communicate(timeout=400)
        assert running.returncode == 0, said
    for name in ("B", "C"):
        lines = (tmp_path / f"responses/{name}/tokenized_data.jsonl").read_bytes().splitlines()
        assert len(lines) == len(QUESTIONS)
        assert [f for line in lines if (f := fault_in_tokenized(line, name, 49152))] == []
    time.sleep(IDLE_S)
    deadline = time.monotonic() + 20
    while servers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert servers(tmp_path) == {}
