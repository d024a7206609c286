"""The workflow under a real Slurm of one node with eight pretended GPUs (slurm_cluster.py)."""

import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT, SNAKEMAKE
from slurm_cluster import missing, slurm_cluster
from waiting import until
from workflow_copy import make_workflow

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.skipif(bool(missing()), reason=missing())]

DATASETS = ("A2_kimik25", "B3_magicoder", "B5_openthoughts")
# No accounting here, and jobs of seconds.
HERE = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "6")
DEVICES = """
rule all:
    input:
        expand("{k}.json", k=range(4)),


rule take:
    output:
        "{k}.json",
    resources:
        gpu=3,
    shell:
        "PYTHON TAKER {output}"
"""
TAKER = """
import json, os, subprocess, sys, time
sys.path.insert(0, SCRIPTS)
from eyas.gpus import lease
with lease(3) as leased:
    began = time.time()
    job = os.environ["SLURM_JOB_ID"]
    details = subprocess.run(["scontrol", "show", "job", "--details", job], env=ENV, capture_output=True, text=True)
    time.sleep(3)
    taken = {"leased": leased, "visible": os.environ["CUDA_VISIBLE_DEVICES"], "details": details.stdout, "job": job}
    with open(sys.argv[1], "x") as file:
        json.dump({**taken, "began": began, "ended": time.time()}, file)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as env:
        yield env


def jobs(env):
    """{comment of a job ("rule_prepare_prompts_wildcards_…"): its properties}."""
    shown = subprocess.run(["scontrol", "--oneliner", "show", "job"], env=env, capture_output=True, text=True).stdout
    found = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in shown.splitlines()]
    return {job["Comment"]: job for job in found}


def test_slurms_devices_are_what_a_job_uses_and_no_two_jobs_share_one(slurm, tmp_path):
    taker, snakefile = tmp_path / "taker.py", tmp_path / "Snakefile"
    taker.write_text(TAKER.replace("SCRIPTS", repr(str(ROOT / "scripts"))).replace("ENV", repr(slurm)))
    snakefile.write_text(DEVICES.replace("PYTHON", sys.executable).replace("TAKER", str(taker)))
    command = [SNAKEMAKE, "--snakefile", snakefile, "--profile", ROOT / "profiles/slurm", *HERE]
    done = subprocess.run(command, cwd=tmp_path, env=slurm, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    taken = [json.loads((tmp_path / f"{k}.json").read_bytes()) for k in range(4)]
    assert len({one["job"] for one in taken}) == 4
    for one in taken:
        first, last = re.search(r"GRES=gpu:3\(IDX:(\d+)-(\d+)\)", one["details"]).groups()
        given = [str(k) for k in range(int(first), int(last) + 1)]
        assert one["visible"].split(",") == one["leased"] == given and len(given) == 3
    pairs = [(a, b) for a in taken for b in taken if a["job"] < b["job"]]
    together = [(a, b) for a, b in pairs if a["began"] < b["ended"] and b["began"] < a["ended"]]
    assert 0 < len(together) < len(pairs), "eight devices are enough for two jobs of three, not for four"
    assert not [1 for a, b in together if set(a["leased"]) & set(b["leased"])]


def test_the_workflow_runs_from_sources_to_a_deployed_draft(slurm, tmp_path, smollm2_folder):
    workflow = make_workflow(
        tmp_path, DATASETS, smollm2_folder, gpus=1, idle_s=600, flags={"starts": "starts.txt", "answer-s": 0.01}
    )
    workflow.config(lambda c: c["train"].update(gpus=2))
    workflow.run("deployed", "--profile", "profiles/slurm", *HERE, env=slurm)
    ran = jobs(slurm)
    print("\n".join(f"{k} {v}" for k, v in ran.items()))
    assert (workflow.work / "deploy/check").exists()
    until(lambda: not workflow.servers())
