"""A host with eight pretended GPUs: the whole workflow under profiles/blackwell, watched from outside.

What a process may use stands in its own environment (CUDA_VISIBLE_DEVICES): that is what is compared, many times a
second, for all processes of the run.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import ROOT, SNAKEMAKE, pretend_gpus
from eyas.gpus import lease
from waiting import until
from workflow_copy import make_workflow

DATASETS = ("B3_magicoder", "B5_openthoughts", "E3_humaneval")
GPUS, SERVER_GPUS, TRAIN_GPUS = 8, 6, 4
BLACKWELL = ROOT / "profiles/blackwell"


class Watch(threading.Thread):
    """Looks at all processes of a run until it is stopped: which of them had which devices, and who shared any."""

    def __init__(self, leases):
        super().__init__(daemon=True)
        self.leases, self.stopped = leases, threading.Event()
        self.held: Counter = Counter()  # (program, devices) → looks
        self.shared: set = set()

    def run(self):
        while not self.stopped.wait(0.05):
            holders = {}
            for path in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # gone meanwhile
                    if found := devices_of(path, self.leases):
                        holders.setdefault(found, path.name)
            self.held.update(holders.keys())
            for one in holders:
                for other in holders:
                    if one[0] != other[0] and set(one[1]) & set(other[1]):
                        self.shared.add((one, other))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.stopped.set()
        self.join()


def devices_of(process, leases):
    """((program, its server's port), devices) of a process of the run that holds some."""
    env = dict(pair.partition("=")[::2] for pair in (process / "environ").read_text().split("\0"))
    if env.get("EYAS_GPU_LEASES") != str(leases) or "CUDA_VISIBLE_DEVICES" not in env:
        return None
    command = (process / "cmdline").read_text().split("\0")
    program = next((word for word in command if re.search(r"sglang\.launch_server|train_draft\.py", word)), None)
    if program is None:
        return None
    port = command[command.index("--port") + 1] if "--port" in command else ""
    return (program, port), tuple(env["CUDA_VISIBLE_DEVICES"].split(","))


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Eight devices, and where their leases are kept."""
    leases = tmp_path / "leases"
    pretend_gpus(monkeypatch, GPUS, leases)
    return leases


def make(tmp_path, tokenizer, **flags):
    """Servers that stay warm far longer than the run: they must give way by themselves."""
    root = tmp_path / "copy"
    root.mkdir()
    workflow = make_workflow(root, DATASETS, tokenizer, idle_s=600, flags=flags)
    workflow.config(lambda c: c["target"]["sglang"].update(gpus=SERVER_GPUS))
    workflow.config(lambda c: c["train"].update(gpus=TRAIN_GPUS, batch_tokens=256, batches_per_step=TRAIN_GPUS))
    return workflow


def test_jobs_of_a_whole_run_never_share_a_device_and_none_starves(tmp_path, smollm2_folder, host):
    workflow = make(tmp_path, smollm2_folder)
    with Watch(host) as watch:
        workflow.run("--profile", BLACKWELL, "all")
    assert watch.shared == set()
    programs = {program.rpartition("/")[2]: devices for (program, _), devices in watch.held}
    assert len(programs["train_draft.py"]) == TRAIN_GPUS and len(programs["sglang.launch_server"]) == SERVER_GPUS
    servers = {port for (program, port), _ in watch.held if "launch_server" in program}
    assert len(servers) >= 4, "one that answers, one that captures, one with the draft, one without it"
    used = {device for _, devices in watch.held for device in devices}
    assert used <= {str(k) for k in range(GPUS)}
    with lease(GPUS) as devices:
        assert len(devices) == GPUS, "nothing is held when the run is over"


def test_a_server_that_is_killed_lets_go_of_its_devices_and_the_run_goes_on(tmp_path, smollm2_folder, host):
    workflow = make(tmp_path, smollm2_folder, **{"answer-s": 0.2})
    workflow.config(lambda c: c["generate"].update(concurrency=4))
    command = workflow.command("--profile", BLACKWELL, "generated")
    running = subprocess.Popen(command, cwd=workflow.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until(lambda: servers(host), 120)
        time.sleep(1)  # in the midst of answering
        before = servers(host)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        said, _ = running.communicate(timeout=200)
    finally:
        running.kill()
    assert running.returncode == 0, said
    assert before and not set(before) & set(servers(host)), "another one was started"
    for name in ("B3_magicoder", "B5_openthoughts"):
        assert (workflow.work / f"responses/{name}/tokenized_data.jsonl").stat().st_size > 0
    with lease(GPUS, while_waiting=lambda: None) as devices:  # the server that is warm yet gives way
        assert len(devices) == GPUS


def servers(leases):
    """Process ids of the run's servers."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            holder = devices_of(path, leases)
            if holder and "launch_server" in holder[0][0]:
                found.append(int(path.name))
    return found


def test_a_count_that_is_missing_or_too_small_is_refused_before_anything_starts(tmp_path, smollm2_folder, host):
    workflow = make(tmp_path, smollm2_folder)
    said = workflow.run("all", expect=1)
    assert f"asks for {SERVER_GPUS} GPUs, this run has no count of them: use a profile of your host" in said
    said = workflow.run("all", "--resources", "gpu=5", expect=1)
    assert f"asks for {SERVER_GPUS} GPUs, this run has 5 (resources: gpu)" in said
    assert list(workflow.work.rglob("*.jsonl")) == [], "nothing was started"
    workflow.run("prepared", "--until", "fetch_tokenizer")  # what needs no GPU needs no count


def test_the_plan_of_the_real_run_on_eight_gpus(tmp_path):
    """Which rule gets how many devices, and that what needs them comes one after the other."""
    command = [SNAKEMAKE, "--snakefile", ROOT / "Snakefile", "--profile", BLACKWELL, "--directory", tmp_path]
    done = subprocess.run([*command, "-n", "all"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs: dict = {}
    for rule, body in re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", done.stdout, re.MULTILINE):
        asked = re.search(r"resources: .*\bgpu=(\d+)", body)
        jobs.setdefault(rule, []).append(int(asked[1]) if asked else 0)
    with_gpus = {rule: asked for rule, asked in jobs.items() if any(asked)}
    assert with_gpus == {
        "generate_responses": [8] * 8,
        "capture_states": [8] * 65,  # 64 shards of training states, one of held-out ones
        "train_draft": [8],
        "evaluate_sglang": [8],
    }
    assert len(jobs["prepare_prompts"]) == 8 + 4 and len(jobs["prepare_tokenized"]) == 2
    dag = subprocess.run([*command, "--rulegraph", "--", "all"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    names = dict(re.findall(r'(\d+)\[label ?= ?"(\w+)', dag.stdout))
    edges = {(names[a], names[b]) for a, b in re.findall(r"(\d+) -> (\d+)", dag.stdout)}

    def reaches(start, end):
        seen, todo = set(), [start]
        while todo:
            rule = todo.pop()
            seen.add(rule)
            todo += [b for a, b in edges if a == rule and b not in seen]
        return end in seen

    order = ["prepare_prompts", "generate_responses", "build_corpus", "capture_states", "train_draft"]
    for first, then in zip(order, [*order[1:], "evaluate_sglang"], strict=True):
        assert reaches(first, then), f"{then} needs what {first} made"


def test_copies_of_a_small_target_stand_side_by_side():
    """Their GPUs are counted together, and the server spreads the requests."""
    from eyas.config import Sglang
    from eyas.target.launch import arguments

    served = Sglang(gpus=2, replicas=4, flags={"tp": 2})
    assert served.all_gpus == 8 and arguments(served) == ["--dp-size", "4", "--tp", "2"]
    assert arguments(Sglang(gpus=8, flags={"tp": 8})) == ["--tp", "8"]
