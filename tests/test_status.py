"""One look at a run, at any time: what the files tell, nothing guessed, no rate that is not live."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import orjson
import pytest

from conftest import ROOT, pretend_gpus
from eyas.config import load
from eyas.records import write_json
from eyas.states import Sample, ShardWriter, shard_path
from eyas.status import HEALTH_TIMEOUT_S, health_of, status
from eyas.status_text import LINES, WIDTH, as_text
from waiting import until
from workflow_copy import make_workflow

CONFIG = load([ROOT / "config/demo.yaml"])
NAME = "B5_openthoughts"
JOB = "import time; time.sleep(600)"
HOLDS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from eyas.gpus import lease
with lease(2):
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def host(tmp_path, monkeypatch):
    """Two GPUs, and a folder of leases that only this test knows."""
    pretend_gpus(monkeypatch, 2, tmp_path / "leases")


@pytest.fixture
def root(tmp_path):
    """A working directory in which everything is prepared."""
    root = tmp_path / "run"
    for name in CONFIG.names():
        prepare(root, name, CONFIG)
    return root


@pytest.fixture
def job(root):
    """Start a process that looks as a job does: a script's name and its arguments, in the working directory."""
    started = []

    def start(script, *arguments):
        path = root.parent / script
        path.write_text(JOB)
        started.append(subprocess.Popen([sys.executable, path, *arguments], cwd=root))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def prepare(root, name, config, kept=100):
    produces = config.dataset(name).produces
    write_json(root / f"prepared/{name}/stats.json", {"kept": kept, "tokens": 5000})
    (root / f"prepared/{name}/{produces}.jsonl").write_text("{}\n")


def count(root, name, age_s=0.0, **other):
    """The live counters of a dataset that is being answered, as they were `age_s` ago."""
    updated = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(time.time() - age_s))
    counters = {"dataset": name, "done": 40, "left": 60, "failed": 0, "answer_tokens": 4000, "tokens_per_s": 50.0}
    path = root / f"state/generate_responses/{name}/progress.json"
    write_json(path, {**counters, "seconds_left": 120, "updated": updated, **other})


def measure(root, age_s=0.0, key="abc"):
    """The metrics of a training that is a quarter done."""
    numbers = {"loss": 2.5, "acceptance_length": 2.25, "tokens_per_s": 800.0}
    steps = [{"kind": "train", "step": 20 * k, "progress": k / 8, "seconds": 50.0 * k, **numbers} for k in (1, 2)]
    lines = [*steps, {"kind": "heldout", "step": 40, "acceptance_length": 2.1, "loss": 2.6}]
    path = root / f"state/train_draft/{key}/metrics.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def begin_shard(root, lengths, finished, shard=0):
    """A training shard, some of whose samples are captured."""
    samples = [Sample(f"s{k}", "D", np.arange(n, dtype=np.int32), np.ones(n, np.uint8)) for k, n in enumerate(lengths)]
    path = shard_path(root / "hidden_states/train", shard, CONFIG.capture.shards)
    with ShardWriter(path, samples, 8, {}) as writer:
        for k in range(finished):
            writer.finish(k)
    return path.with_name(f".{path.name}.partial")


def stage(result, name):
    return next(row for row in result["stages"] if row["name"] == name)


def part(result, of, name=None):
    return next(row for row in stage(result, of)["parts"] if name in (None, row["name"]))


def test_of_an_empty_directory_everything_is_left_and_nothing_guessed(tmp_path):
    (tmp_path / "run").mkdir()
    config = load()
    result = status(config, tmp_path / "run")
    counts = {row["name"]: (row["done"], row["of"], row["left"]) for row in result["stages"]}
    assert counts == {
        **{"prepared": (0, 14, 14), "generated": (0, None, None), "corpus": (0, 2, 2), "captured": (0, 65, 65)},
        **{"trained": (0, 100, 100), "evaluated": (0, 2, 2), "deployed": (0, 1, 1)},
    }
    assert [row["rate"] or row["seconds_left"] for row in result["stages"]] == [None] * 7
    assert (result["disk"]["needed_bytes"], result["disk"]["fits"]) == (None, None)
    assert (result["problems"], result["servers"], result["jobs"]) == ([], [], [])
    assert result["gpus"]["devices"] == [{"id": i, "pid": None, "who": None} for i in "01"]
    assert result["snakemake"]["state"] == "none"
    assert list((tmp_path / "run").rglob("*")) == [] and not (tmp_path / "leases").exists(), "nothing was written"
    assert "not known yet" in as_text(result)


def test_the_real_configuration_fits_on_one_screen_whatever_happens(tmp_path):
    """Ten datasets, four benchmark sets, all that can be told of them at once."""
    config, root = load(), tmp_path / ("a-long-name-of-a-folder" * 3)
    for name in config.names():
        prepare(root, name, config, kept=10_000)
    for name in config.names("prompts"):
        count(root, name, age_s=90_000, done=3_210, left=6_790, failed=12)
    for k in range(12):
        write_json(root / f"hidden_states/train/{k:05}-of-00064.json", [])
        shard_path(root / "hidden_states/train", k, 64).write_bytes(b"x")
        state = {"state": "ready", "message": "ready", "url": None, "time": time.time(), "keeper_pid": 1, "pid": 1}
        write_json(root / f"state/server/host{k}/0123456789ab/server.json", state)
    measure(root, age_s=9_000), measure(root, age_s=9_000, key="other")
    result = status(config, root)
    result["gpus"]["devices"] = [{"id": str(k), "pid": 1000 + k, "who": f"train_draft in {root}"} for k in range(8)]
    lines = as_text(result).splitlines()
    assert len(lines) <= LINES == 40 and max(map(len, lines)) <= WIDTH == 100
    told = " ".join(" ".join(lines).split())
    assert "more (--json has them)" in told and "of 80,000" in told and "simulated acceptance length 2.25" in told
    assert len(result["problems"]) == 12


def test_live_counters_give_rate_and_time_left(root, job):
    pid = job("generate_responses.py", "--dataset", NAME)
    count(root, NAME, failed=3)
    until(lambda: status(CONFIG, root)["jobs"])
    result = status(CONFIG, root)
    assert [(j["pid"], j["name"]) for j in result["jobs"]] == [(pid, f"generate_responses {NAME}")]
    found, prompts = part(result, "generated", NAME), 100 * len(CONFIG.names("prompts"))
    assert (found["done"], found["left"], found["rate"], found["seconds_left"]) == (40, 60, 50.0, 120)
    assert found["note"] == "3 set aside"
    whole = stage(result, "generated")
    assert (whole["done"], whole["of"], whole["left"]) == (40, prompts, prompts - 40)
    assert whole["seconds_left"] == (prompts - 40) * 2, "the target answers one prompt in two seconds"


def test_a_counter_that_stands_still_is_no_live_rate(root, job):
    count(root, NAME, age_s=1260)
    result = status(CONFIG, root)
    found = part(result, "generated", NAME)
    assert (found["rate"], found["seconds_left"], found["left"]) == (None, None, 60)
    assert found["note"] == "stale since 21 min; no job is seen here"
    assert stage(result, "generated")["rate"] is None
    assert "tokens/s" not in as_text(result)
    pid = job("generate_responses.py", "--dataset", NAME)
    until(lambda: status(CONFIG, root)["jobs"])
    assert part(status(CONFIG, root), "generated", NAME)["note"] == f"stale since 21 min; process {pid} lives"
    count(root, NAME, age_s=400, seconds_left=60 * 300)  # an answer takes five minutes: this one is not late
    assert part(status(CONFIG, root), "generated", NAME)["rate"] == 50.0


def test_a_counter_whose_job_has_just_ended_is_no_live_rate_but_on_a_cluster(root):
    count(root, NAME, age_s=10)
    found = part(status(CONFIG, root), "generated", NAME)
    assert found["rate"] is None and found["note"].startswith("stopped 1") and "no job is seen" in found["note"]
    (root / ".snakemake/locks").mkdir(parents=True)
    (root / ".snakemake/locks/0.output.lock").touch()
    result = status(CONFIG, root)
    assert part(result, "generated", NAME)["rate"] == 50.0, "Snakemake holds the folder: the job may be elsewhere"
    assert result["snakemake"]["state"] == "killed" and "`snakemake --unlock`" in as_text(result)


def test_counters_of_other_prompts_are_said_to_be(root):
    prepare(root, NAME, CONFIG, kept=30)
    count(root, NAME)
    row = stage(status(CONFIG, root), "generated")
    assert row["done"] == 30 and row["parts"] == [], "no more can be done than there are prompts"
    prepare(root, NAME, CONFIG, kept=200)
    found = part(status(CONFIG, root), "generated", NAME)
    assert (found["done"], found["of"], found["left"]) == (40, 200, 160)
    assert "counted when there were 100 prompts" in found["note"]


def test_a_shard_that_is_being_captured_counts_its_samples(root, job):
    write_json(root / "target/tokenizer/config.json", {"num_hidden_layers": 9, "hidden_size": 8})
    write_json(root / "corpus/stats.json", {"train": {"tokens": 90_000}, "heldout": {"tokens": 10_000}})
    for name in ("corpus/train.parquet", "corpus/heldout.parquet"):
        (root / name).write_bytes(b"x")
    partial = begin_shard(root, (10, 20, 30, 40), 2)
    job("capture_states.py", "--split", "train", "--shard", "00000")
    until(lambda: status(CONFIG, root)["jobs"])
    found = part(status(CONFIG, root), "captured")
    assert (found["name"], found["done"], found["left"], found["rate"]) == ("train 00000", 2, 2, None)
    assert found["note"] == "no rate before one shard is finished"
    finished = shard_path(root / "hidden_states/heldout", 0, 1)
    finished.parent.mkdir()
    finished.write_bytes(b"x" * 1000)
    write_json(finished.with_suffix(".json"), {"tokens": 10_000, "captured_tokens": 10_000, "seconds": 20, "bytes": 1})
    result = status(CONFIG, root)
    row, found = stage(result, "captured"), part(result, "captured")
    assert (row["done"], row["of"], row["rate"]) == (1, 5, 500.0)
    assert row["seconds_left"] == round((100_000 - 10_000 - 30) / 500)
    needed = 100_000 * (4 * 8 * 2 + 5) - 1000 - 512 * partial.stat().st_blocks
    assert (result["disk"]["needed_bytes"], result["disk"]["bound"], result["disk"]["fits"]) == (needed, "", True)
    begin_shard(root, (10, 20, 30, 40), 4, shard=1)
    job("capture_states.py", "--split", "train", "--shard", "1")
    until(lambda: len(status(CONFIG, root)["jobs"]) == 2)
    row = stage(status(CONFIG, root), "captured")
    assert (row["rate"], row["seconds_left"]) == (1000.0, round((100_000 - 10_000 - 130) / 1000)), "two at once"
    os.utime(partial, (time.time() - 600,) * 2)
    os.utime(str(partial).replace("00000-of", "00001-of"), (time.time() - 600,) * 2)
    result = status(CONFIG, root)
    assert stage(result, "captured")["rate"] is None and "stale since 10 min" in part(result, "captured")["note"]


def test_a_training_tells_step_share_and_lengths(root, job):
    measure(root)
    found = stage(status(CONFIG, root), "trained")
    assert (found["done"], found["left"], found["rate"]) == (25.0, 75.0, None) and "stopped" in found["note"]
    job("train_draft.py", "--output-dir", "draft")
    until(lambda: status(CONFIG, root)["jobs"])
    found = stage(status(CONFIG, root), "trained")
    assert found["rate"] == 800.0 and 290 <= found["seconds_left"] <= 300
    assert found["note"] == (
        "step 40, loss 2.500, simulated acceptance length 2.25, held out 2.10; state/train_draft/abc"
    )
    measure(root, age_s=4000)
    found = stage(status(CONFIG, root), "trained")
    assert found["rate"] is None and found["note"].startswith("stale since 1 h 6 min; process")


def test_a_draft_on_a_part_of_the_corpus_is_not_taken_for_the_draft(root):
    """`snakemake scaling` trains beside it, and writes later."""
    measure(root, age_s=60)
    path = measure(root, key="part")
    script = root.parent / "train_draft.py"
    script.write_text("import sys, time; file = open(sys.argv[1], 'ab'); time.sleep(600)")
    command = [sys.executable, script, path, "--output-dir", "scaling/1-of-4/draft"]
    other = subprocess.Popen(command, cwd=root)
    try:
        until(lambda: "state/train_draft/abc" in stage(status(CONFIG, root), "trained")["note"])
        assert stage(status(CONFIG, root), "trained")["rate"] is None, "no job trains the draft"
    finally:
        other.kill()
        other.wait()


def test_a_window_says_what_lies_there_and_what_comes_next(root):
    config = CONFIG.model_copy(update={"capture": CONFIG.capture.model_copy(update={"window": 2})})
    folder = root / "hidden_states/window/abc/train"
    folder.mkdir(parents=True)
    shard_path(folder, 1, 4).write_bytes(b"x")
    write_json(root / "state/train_draft/abc/window.json", {"next": 5})
    found = stage(status(config, root), "captured")
    assert (found["done"], found["of"]) == (0, 1)
    assert "of a window of 2, 1 lie there, training needs number 6 of 160 next" in found["note"]


def test_the_trial_of_a_draft_counts_what_was_tried(root):
    (root / "draft").mkdir()
    (root / "draft/model.safetensors").write_bytes(b"x")
    os.utime(root / "draft/model.safetensors", (time.time() - 100,) * 2)
    (root / "evaluation").mkdir()
    (root / "evaluation/prompts.jsonl").write_text("{}\n" * 9)
    (root / "state/evaluation").mkdir(parents=True)
    old, new = (root / f"state/evaluation/walk-{key}.jsonl" for key in ("old", "new"))
    old.write_text("{}\n" * 9)
    os.utime(old, (time.time() - 200,) * 2)
    assert stage(status(CONFIG, root), "evaluated")["parts"] == [], "that was another draft"
    new.write_text("{}\n" * 4)
    found = part(status(CONFIG, root), "evaluated")
    assert (found["name"], found["unit"], found["done"], found["left"]) == ("walk", "prompts", 4, 5)


DAMAGED = (
    *(f"prepared/{NAME}/stats.json", f"state/generate_responses/{NAME}/progress.json", "corpus/stats.json"),
    "hidden_states/heldout/00000-of-00001.json",
    "hidden_states/train/.00000-of-00004.safetensors.partial",
    "state/train_draft/abc/metrics.jsonl",
    f"state/server/{socket.gethostname()}/abc/server.json",
)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kept": "x"}\n', b"\xff\x00" * 40], ids=repr)
@pytest.mark.parametrize("path", DAMAGED)
def test_a_damaged_file_is_named_and_ends_nothing(root, path, content):
    write_json(root / "target/tokenizer/config.json", {"num_hidden_layers": 9, "hidden_size": 8})
    write_json(root / "corpus/stats.json", {"train": {"tokens": 90_000}, "heldout": {"tokens": 10_000}})
    for name in ("corpus/train.parquet", "corpus/heldout.parquet", "hidden_states/heldout/00000-of-00001.safetensors"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    count(root, NAME)
    measure(root)
    begin_shard(root, (10, 20), 1)
    stats = {"tokens": 10_000, "captured_tokens": 10_000, "seconds": 20, "bytes": 1}
    write_json(root / "hidden_states/heldout/00000-of-00001.json", stats)
    assert status(CONFIG, root)["problems"] == []
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    result = status(CONFIG, root)
    if (path.endswith("metrics.jsonl") and b"\n" not in content) or (content == b"" and path.startswith("corpus")):
        assert result["problems"] == []  # a line that is being written; a file that Snakemake takes for missing
    else:
        named = [problem for problem in result["problems"] if problem.startswith(f"{path}: ")]
        assert len(named) == 1, result["problems"]
        assert path in " ".join(as_text(result).split())


def test_a_partial_shard_that_is_cut_while_it_is_read_is_named(root):
    partial = begin_shard(root, (10, 20), 1)
    os.truncate(partial, partial.stat().st_size - 1)
    (problem,) = status(CONFIG, root)["problems"]
    assert problem.startswith("hidden_states/train/.00000-of-00004.safetensors.partial: ") and "expected" in problem


def test_a_server_whose_keeper_was_killed_is_not_alive(root):
    gone = subprocess.Popen(["true"])
    gone.wait()
    state = {"state": "ready", "message": "ready", "url": "http://127.0.0.1:1", "time": time.time(), "restarts": 2}
    path = root / f"state/server/{socket.gethostname()}/abc/server.json"
    write_json(path, {**state, "pid": gone.pid, "keeper_pid": gone.pid, "gpus": ["0"]})
    result = status(CONFIG, root)
    (server,) = result["servers"]
    assert (server["alive"], server["health"], server["restarts"]) == (False, None, 2)
    assert f"abc on {socket.gethostname()}: ready, but its keeper (process {gone.pid}) is dead" in as_text(result)
    # Its keeper is about to be started; or was, long ago.
    for age_s, alive in ((1, True), (3600, False)):
        begun = {"state": "starting", "message": "starting the keeper", "url": None, "time": time.time() - age_s}
        write_json(path, {**begun, "deaths": [], "keeper": "x", "keeper_pid": None, "fingerprint": {}})
        assert status(CONFIG, root)["servers"][0]["alive"] is alive
    # Another process may have got the number since.
    write_json(path, {**state, "pid": os.getpid(), "keeper_pid": os.getpid(), "time": 1.0})
    assert status(CONFIG, root)["servers"][0]["alive"] is False


def test_a_server_that_does_not_answer_holds_nobody_up():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url, started = f"http://127.0.0.1:{mute.getsockname()[1]}", time.monotonic()
        assert health_of(url) == "no answer within 2 s: busy, or hanging"
        assert time.monotonic() - started < HEALTH_TIMEOUT_S + 2
    assert health_of(url).startswith("no answer (")
    assert health_of("nonsense").startswith("no answer (")


def test_a_server_that_is_named_by_url_is_asked(root):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    sglang = CONFIG.target.sglang.model_copy(update={"url": url})
    target = CONFIG.target.model_copy(update={"engine": "sglang", "sglang": sglang})
    result = status(CONFIG.model_copy(update={"target": target}), root)
    assert [(s["state"], s["url"]) for s in result["servers"]] == [("named", url)]
    assert f"named, {url}/health: no answer" in as_text(result)


def test_who_holds_and_who_waits_is_said_in_words(root, job):
    held = root.parent / "train_draft.py"
    pid = job("generate_responses.py", "--dataset", NAME)
    held.write_text(HOLDS)
    holder = subprocess.Popen([sys.executable, held, ROOT / "scripts"], cwd=root, stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        waiter = subprocess.Popen([sys.executable, held, ROOT / "scripts"], cwd=root.parent)
        try:
            until(lambda: status(CONFIG, root)["gpus"]["waiting"])
            result = status(CONFIG, root)
        finally:
            waiter.kill()
            waiter.wait()
        assert result["gpus"]["devices"] == [{"id": i, "pid": holder.pid, "who": "train_draft"} for i in "01"]
        assert result["gpus"]["waiting"] == [{"pid": waiter.pid, "who": f"train_draft in {root.parent}", "gpus": 2}]
        text = as_text(result)
        assert "2: 0 free" in text and f"0, 1: held by process {holder.pid} (train_draft)" in text
        assert {j["pid"] for j in result["jobs"]} == {pid, holder.pid}, "the other one works in another folder"
        assert status(CONFIG, root)["gpus"]["waiting"] == []
    finally:
        holder.kill()
        holder.wait()


def test_the_command_answers_in_both_forms_without_torch(root):
    command = [sys.executable, ROOT / "scripts/status.py", "--configfile", ROOT / "config/demo.yaml"]
    text = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert text.startswith("SmolLM2-135M-Instruct in ") and "prepared" in text
    done = subprocess.run([*command, "--json", "--root", root], cwd="/", capture_output=True, check=True)
    assert stage(json.loads(done.stdout), "prepared")["left"] == 0
    seen = "import sys; sys.path.insert(0, sys.argv[1]); import eyas.status; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", seen, ROOT / "scripts"], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "snakemake"} & set(modules.stdout.split())


def test_watching_looks_again_until_it_is_interrupted(root):
    command = [sys.executable, ROOT / "scripts/status.py", "--configfile", ROOT / "config/demo.yaml"]
    watching = subprocess.Popen([*command, "--json", "--watch", "0.1"], cwd=root, stdout=subprocess.PIPE, text=True)
    looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
    assert looks[0]["time"] < looks[1]["time"] < looks[2]["time"]
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=20)
    assert watching.returncode in (0, -signal.SIGINT)


# A real run

DATASETS, CAP, IDLE_S = ("A2_kimik25", "B3_magicoder", "B5_openthoughts"), 40, 2


@pytest.fixture
def slow(tmp_path, smollm2_folder):
    """A workflow whose server takes its time, on one of two GPUs."""
    flags = {"answer-s": 0.4}
    (tmp_path / "slow").mkdir()
    workflow = make_workflow(tmp_path / "slow", DATASETS, smollm2_folder, idle_s=IDLE_S, flags=flags, gpus=1)

    def small(config):
        config["prepare"]["cap"], config["generate"]["concurrency"] = CAP, 2
        for dataset in config["datasets"].values():
            dataset.get("prepare", {}).pop("cap", None)

    workflow.config(small)
    return workflow


def test_a_run_in_mid_answering_and_after_it(slow):
    config = load([slow.root / "test.yaml"])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    run = subprocess.Popen(slow.command("generated", "--cores", "8", "--resources", "gpu=2"), cwd=slow.root, **quiet)
    looks = []

    def half_way():
        assert run.poll() is None, "it ended before it was seen in the middle"
        looks.append(status(config, slow.work))
        parts = stage(looks[-1], "generated")["parts"]
        return len(parts) == 2 and all(p["rate"] and p["done"] < CAP for p in parts)

    try:
        until(half_way)
    finally:
        os.killpg(run.pid, signal.SIGTERM)
    run.wait(timeout=60)
    seen = looks[-1]
    assert seen["snakemake"]["state"] == "running" and run.pid in seen["snakemake"]["pids"]
    assert {j["name"] for j in seen["jobs"]} == {f"generate_responses {name}" for name in DATASETS[1:]}
    prepared = stage(seen, "prepared")
    assert (prepared["done"], prepared["left"]) == (2, 1), "`generated` asks for prompts alone"
    row = stage(seen, "generated")
    assert row["of"] == 2 * CAP == row["done"] + row["left"] and 0 < row["done"] < 2 * CAP
    assert row["rate"] == pytest.approx(sum(p["rate"] for p in row["parts"]), abs=0.1) and row["seconds_left"] > 0
    (server,) = seen["servers"]
    assert (server["state"], server["alive"], server["gpus"]) == ("ready", True, ["0"])
    assert server["health"].startswith("ok in ") and server["since"] < seen["time"]
    holder = {"pid": server["keeper_pid"], "who": f"server {server['key']}"}
    assert seen["gpus"] == {"devices": [{"id": "0", **holder}, {"id": "1", "pid": None, "who": None}], "waiting": []}
    text = as_text(seen)
    assert f"0: held by process {server['keeper_pid']} (server {server['key']})" in text
    assert f"/health: {server['health']}" in text and seen["problems"] == []
    until(lambda: status(config, slow.work)["gpus"]["devices"][0]["pid"] is None)
    after = status(config, slow.work)
    assert after["snakemake"]["state"] == "none" and after["jobs"] == []
    assert all(p["rate"] is None and "stopped" in p["note"] for p in stage(after, "generated")["parts"])
    assert stage(after, "generated")["seconds_left"] is None and stage(after, "generated")["done"] >= row["done"]
    assert [s["alive"] for s in after["servers"]] == [False] and after["servers"][0]["health"] is None
    slow.config(lambda c: c["target"]["sglang"]["flags"].pop("answer-s"))
    slow.run("generated", "--cores", "8", "--resources", "gpu=2")
    before = slow.snapshot()
    done = stage(status(config, slow.work), "generated")
    assert (done["done"], done["left"], done["rate"], done["parts"]) == (2 * CAP, 0, None, [])
    assert {p: s for p, s in slow.snapshot().items() if p in before and "state/server" not in p} == {
        p: s for p, s in before.items() if "state/server" not in p
    }
