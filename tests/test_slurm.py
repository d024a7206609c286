"""The workflow under a real Slurm of one node with eight pretended GPUs (slurm_cluster.py)."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, SNAKEMAKE
from slurm_cluster import missing, slurm_cluster
from test_eagle3_training import Run as TrainingRun
from test_eagle3_training import close
from waiting import until
from workflow_copy import make_workflow

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.skipif(bool(missing()), reason=missing())]

DATASETS = ("A2_kimik25", "B3_magicoder", "B5_openthoughts")
# There is no accounting here, and slurm_cluster's squeue answers when jobs have ended.
HERE = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "1")
DEVICES = """
rule all:
    input:
        expand("{k}.json", k=range(3)),


rule take:
    output:
        "{k}.json",
    resources:
        gpu=3,
    shell:
        "PYTHON TAKER {output}"
"""
TRAINING = """
rule train:
    output:
        "draft/model.safetensors",
    resources:
        nodes=2,
        tasks=2,
        gpu=4,
        mpi="srun",
    shell:
        "bash train.sh"
"""
TAKER = """
import json, os, subprocess, sys, time
sys.path.insert(0, SCRIPTS)
from eyas.gpus import lease
with lease(3) as leased:
    began = time.time()
    job = os.environ["SLURM_JOB_ID"]
    details = subprocess.run(["scontrol", "show", "job", "--details", job], env=ENV, capture_output=True, text=True)
    time.sleep(4)
    taken = {"leased": leased, "visible": os.environ["CUDA_VISIBLE_DEVICES"], "details": details.stdout, "job": job}
    with open(sys.argv[1], "x") as file:
        json.dump({**taken, "began": began, "ended": time.time()}, file)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as env:
        yield env


def jobs(env, name=""):
    """The properties of Slurm's jobs of a rule or a group (their comment: "rule_<its name>…"), in turn."""
    shown = subprocess.run(["scontrol", "--oneliner", "show", "job"], env=env, capture_output=True, text=True).stdout
    found = [dict(re.findall(r"(\S+?)=(\S+)", line)) for line in shown.splitlines()]
    return [job for job in found if job.get("Comment", "").startswith(f"rule_{name}")]


def snakemake(folder, env):
    """Run the Snakefile of a folder with profiles/slurm."""
    command = [SNAKEMAKE, "--profile", ROOT / "profiles/slurm", *HERE]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def test_slurms_devices_are_what_a_job_uses_and_no_two_jobs_share_one(slurm, tmp_path):
    taker, snakefile = tmp_path / "taker.py", tmp_path / "Snakefile"
    taker.write_text(TAKER.replace("SCRIPTS", repr(str(ROOT / "scripts"))).replace("ENV", repr(slurm)))
    snakefile.write_text(DEVICES.replace("PYTHON", sys.executable).replace("TAKER", str(taker)))
    snakemake(tmp_path, slurm)
    taken = [json.loads((tmp_path / f"{k}.json").read_bytes()) for k in range(3)]
    assert len({one["job"] for one in taken}) == 3
    for one in taken:
        first, last = re.search(r"GRES=gpu:3\(IDX:(\d+)-(\d+)\)", one["details"]).groups()
        given = [str(k) for k in range(int(first), int(last) + 1)]
        assert one["visible"].split(",") == one["leased"] == given and len(given) == 3
    pairs = [(a, b) for a in taken for b in taken if a["job"] < b["job"]]
    together = [(a, b) for a, b in pairs if a["began"] < b["ended"] and b["began"] < a["ended"]]
    assert 0 < len(together) < len(pairs), "eight devices are enough for two jobs, not for three"
    assert not [1 for a, b in together if set(a["leased"]) & set(b["leased"])]


def test_the_workflow_runs_from_sources_to_a_trained_draft(slurm, tmp_path, smollm2_folder):
    workflow = make_workflow(tmp_path, DATASETS, smollm2_folder, gpus=1, idle_s=600, flags={"starts": "starts.txt"})

    def changed(config):
        config["train"].update(gpus=2)
        config["capture"].update(shards=1)

    workflow.config(changed)
    # As users have it: Snakemake passes a config file on to Slurm's jobs, but not --replace-workflow-config.
    shutil.copy(workflow.root / "test.yaml", workflow.root / "config/config.yaml")
    (workflow.root / "config/datasets.yaml").write_text("{}\n")
    asked = ("--profile", "profiles/slurm", *HERE, "--")
    responses = [workflow.work / f"responses/{name}/tokenized_data.jsonl" for name in DATASETS[1:]]

    # One allocation is to answer both datasets; it ends when it has answered one.
    with subprocess.Popen(
        workflow.command(*asked, *(path.relative_to(workflow.work) for path in responses)),
        **{"cwd": workflow.root, "env": slurm, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
    ) as run:
        until(lambda: any(path.exists() for path in responses), 120)
        subprocess.run(["scancel", jobs(slurm, "answers")[0]["JobId"]], env=slurm, check=True)
        output = run.communicate(timeout=120)[0].decode()
    (first,) = (path for path in responses if path.exists())
    kept = first.stat().st_mtime_ns
    assert run.returncode == 1, output
    until(lambda: not workflow.servers())

    # What it made stays, the rest is made, and jobs that ask the same server share an allocation and the server in it.
    workflow.run(*asked, "trained", env=slurm)
    assert all(path.exists() for path in responses) and first.stat().st_mtime_ns == kept
    (cut_short, answers), (states,) = jobs(slurm, "answers"), jobs(slurm, "states")
    assert cut_short["TresPerJob"] == "gres:gpu:1" and cut_short["TimeLimit"] == "08:00:00", "for two jobs, in turns"
    (training,) = jobs(slurm, "train_draft")
    prepared = jobs(slurm, "prepare_prompts") + jobs(slurm, "prepare_tokenized")
    assert len(prepared) == len(DATASETS), "each is a job of Slurm's"
    assert not jobs(slurm, "fetch"), "downloads run where Snakemake runs"
    asked_for = [(answers, 1, "2"), (states, 1, "2"), (training, 2, "1"), *((job, 0, "1") for job in prepared)]
    for job, gpus, tasks in asked_for:
        assert (job["JobState"], job["NumNodes"], job["NumTasks"]) == ("COMPLETED", "1", tasks)
        assert job.get("TresPerJob") == (f"gres:gpu:{gpus}" if gpus else None)
    captured = sorted(path.parent.name for path in workflow.work.glob("hidden_states/*/*.safetensors"))
    assert captured == ["heldout", "train"], "two jobs of one allocation"
    assert len((workflow.work / "starts.txt").read_text().splitlines()) == 3, "a server for each allocation"

    # It is gone with the allocation, long before idle_s.
    until(lambda: not workflow.servers())

    # torchrun's two processes, each of which says what it trains; without CUDA they speak by gloo.
    log = (workflow.work / "logs/train_draft.log").read_text()
    assert log.count("M parameters") == 2, log
    assert json.loads((workflow.work / "draft/training.json").read_bytes())["steps"] > 0


def test_a_job_that_fails_leaves_the_others_of_its_allocation(slurm, tmp_path, smollm2_folder):
    workflow = make_workflow(tmp_path, DATASETS[1:], smollm2_folder, gpus=1)
    shutil.copy(workflow.root / "test.yaml", workflow.root / "config/config.yaml")
    (workflow.root / "config/datasets.yaml").write_text("{}\n")
    workflow.run("prepared")
    (workflow.work / "prepared/B5_openthoughts/prompts.jsonl").write_text("no JSON\n")
    output = workflow.run("--profile", "profiles/slurm", *HERE, "--", "generated", env=slurm, expect=1)
    asked = re.findall(
        r"^rule generate_responses:\n(?:    .*\n)*?    wildcards: dataset=(\w+)", allocation(output), re.M
    )
    assert asked == ["B5_openthoughts", "B3_magicoder"], "the one that fails came first"
    assert [path.parent.name for path in workflow.work.glob("responses/*/stats.json")] == ["B3_magicoder"]


def allocation(output):
    """The log of the allocation that a run's output names."""
    return Path(re.search(r"\(log: (\S+/group_answers\S*\.log)\)", output).group(1)).read_text()


def test_two_nodes_of_a_job_give_the_losses_of_one(tmp_path, tmp_path_factory):
    """Through Snakemake and its plugin, with the resources that the rule asks for (see below)."""
    runs = [TrainingRun(tmp_path / name) for name in ("one", "two")]
    assert runs[0].start().wait(timeout=120) == 0
    command = shlex.join(map(str, runs[1].command(nodes=2)))
    (runs[1].folder / "train.sh").write_text(f"{command} > log 2>&1\n")
    (runs[1].folder / "Snakefile").write_text(TRAINING)
    with slurm_cluster(tmp_path_factory.mktemp("nodes"), nodes=2) as env:
        snakemake(runs[1].folder, env)
        (job,) = jobs(env)
    assert (job["NumNodes"], job["NumTasks"], job["TresPerJob"]) == ("2", "2", "gres:gpu:4")
    log = (runs[1].folder / "log").read_text()
    assert log.count("M parameters") == 2, log
    close(runs[1].losses(), runs[0].losses())


def test_a_training_on_two_nodes_is_asked_for_as_one_job(tmp_path, smollm2_folder):
    """What the Slurm plugin is told: both nodes, the devices of both, a task for each node."""
    workflow = make_workflow(tmp_path, DATASETS, smollm2_folder)
    workflow.config(lambda c: c["train"].update(gpus=2, nodes=2))
    output = workflow.run("-n", "--profile", "profiles/slurm", "--", "trained")
    (asked,) = re.findall(r"^rule train_draft:\n(?:    .*\n)*?    resources: (.*)", output, re.MULTILINE)
    asked = dict(one.split("=") for one in asked.split(", "))
    found = {key: asked[key] for key in ("nodes", "tasks", "gpu", "mpi", "tasks_per_gpu")}
    assert found == {"nodes": "2", "tasks": "2", "gpu": "4", "mpi": "srun", "tasks_per_gpu": "0"}
