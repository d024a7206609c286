"""Eight datasets answered through Snakemake: one server for all; a stopped run loses nothing and leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress

import pytest

from eyas.records import fault_in_tokenized
from eyas.states import Shard
from waiting import until
from workflow_copy import Workflow, make_workflow

pytestmark = pytest.mark.xdist_group("stopped")  # what they start from is prepared once

DATASETS = (
    *("B2_opencodeinstruct", "B3_magicoder", "B4_mixturethoughts", "B5_openthoughts"),
    *("B6_ultrachat", "B7_sharegpt", "B8_sweagent", "B9_chitchat"),
)
STOPPED = DATASETS[1:4]  # enough for runs that are stopped
CAP, CONCURRENCY, ANSWER_S, IDLE_S = 24, 4, 0.4, 4
SLACK_S = 8  # on a busy machine


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, smollm2_folder):
    """Eight datasets of a few prompts each, prepared once."""
    root = tmp_path_factory.mktemp("eight")
    flags = {"starts": "starts.txt", "answered": "answered.txt", "answer-s": ANSWER_S}
    workflow = make_workflow(root, DATASETS, smollm2_folder, idle_s=IDLE_S, flags=flags)

    def small(config):
        config["prepare"]["cap"] = CAP
        config["generate"]["concurrency"] = CONCURRENCY
        for dataset in config["datasets"].values():
            dataset.get("prepare", {}).pop("cap", None)

    workflow.config(small)
    workflow.run("prepared", "--cores", "2")
    return workflow


@pytest.fixture
def eight(prepared, tmp_path):
    """The prepared run, in a folder of its own; its server is ended."""
    shutil.copytree(prepared.root, tmp_path / "eight", symlinks=True)
    eight = Workflow(tmp_path / "eight")
    yield eight
    for state in eight.work.glob("state/server/*/*/server.json"):
        with suppress(ProcessLookupError, TypeError):
            os.kill(json.loads(state.read_bytes())["keeper_pid"], signal.SIGTERM)
    until(lambda: not eight.servers())


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def responses(names):
    return [f"responses/{name}/tokenized_data.jsonl" for name in names]


def check_complete(workflow, names):
    """Every prompt has one record or one counted reject, none is there twice; returns how many they are."""
    total = 0
    for name in names:
        ids = [json.loads(line)["id"] for line in lines(workflow.work / f"prepared/{name}/prompts.jsonl")]
        records = (workflow.work / f"responses/{name}/tokenized_data.jsonl").read_bytes().splitlines()
        rejects = lines(workflow.work / f"responses/{name}/rejects.jsonl")
        assert not [fault for record in records if (fault := fault_in_tokenized(record, name, 49152))]
        found = [json.loads(line)["id"] for line in (*records, *rejects)]
        assert len(ids) == CAP and sorted(found) == sorted(ids)
        total += len(ids)
    return total


@pytest.mark.parametrize("cores", [8, 1], ids=["side by side", "one after the other"])
def test_eight_datasets_start_the_server_once(eight, cores):
    eight.config(lambda c: (c["target"]["sglang"].update(idle_s=60), c["target"]["sglang"]["flags"].pop("answer-s")))
    eight.run("--cores", str(cores), "--", *responses(DATASETS))
    assert len(lines(eight.work / "starts.txt")) == 1
    assert len(lines(eight.work / "answered.txt")) == check_complete(eight, DATASETS)


def test_all_shards_are_captured_by_one_server(eight):
    def several(config):
        config["target"]["sglang"].update(idle_s=60)
        config["target"]["sglang"]["flags"].pop("answer-s")
        config["capture"] = {"shards": 5}

    eight.config(several)
    eight.run("captured", "--cores", "4")
    assert len(lines(eight.work / "starts.txt")) == 2, "one server that answers, and another that captures"
    corpus = json.loads((eight.work / "corpus/stats.json").read_bytes())
    shards = sorted((eight.work / "hidden_states/train").glob("*.safetensors"))
    assert len(shards) == 5
    for shard in shards:
        Shard(shard).verify()
    assert sum(len(Shard(shard)) for shard in shards) == corpus["train"]["samples"]
    os.truncate(shards[2], shards[2].stat().st_size - 1)
    shards[3].unlink()
    eight.run("captured", "--cores", "4")
    Shard(shards[2]).verify()
    assert "Nothing to be done" in eight.run("captured")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_run_stopped_in_mid_answering_loses_nothing_and_leaves_nothing(eight, how):
    """The signal goes to all processes of the run, as from a terminal, a scheduler or a machine out of memory."""
    answered, command = eight.work / "answered.txt", ("--cores", "8", "--", *responses(STOPPED))
    run = subprocess.Popen(
        eight.command(*command),
        cwd=eight.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: len(lines(answered)) > CAP)
    finally:
        os.killpg(run.pid, how)
    run.wait(timeout=60)
    until(lambda: not eight.servers(), IDLE_S + SLACK_S)
    assert len(lines(answered)) < CAP * len(STOPPED), "it was stopped in the middle"
    if how == signal.SIGKILL:
        eight.run("--unlock")
    eight.run(*command)
    twice = len(lines(answered)) - check_complete(eight, STOPPED)
    assert 0 <= twice <= CONCURRENCY * len(STOPPED)
    assert "Nothing to be done" in eight.run(*command)
