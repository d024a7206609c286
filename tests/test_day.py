"""A day in the life of a run: started, watched, stopped for the night, started again, an adapter mended, looked at.

docs/operations.md tells it; the steps here are those of its sections.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from waiting import until
from workflow_copy import make_workflow

DATASETS = ("A2_kimik25", "B3_magicoder", "B5_openthoughts")
STOPS_WITHIN_S = 15


def started(workflow, *targets):
    """The run in a session of its own, as a terminal has it."""
    return subprocess.Popen(
        workflow.command("--", *targets),
        cwd=workflow.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_over(workflow):
    """Processes that work in the run's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            cwd = (process / "cwd").resolve()
            if workflow.work.resolve() in (cwd, *cwd.parents):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
    return found


def metrics(workflow):
    """The training's lines so far."""
    return [
        json.loads(line) for path in workflow.work.glob("state/train_draft/*/metrics.jsonl") for line in path.open()
    ]


def test_stopped_for_the_night_mended_and_looked_at(tmp_path, smollm2_folder):
    workflow = make_workflow(tmp_path, DATASETS, smollm2_folder, idle_s=2, flags={"answered": "answered.txt"})
    workflow.config(lambda c: c["train"].update(max_minutes=0.5, log_every=1, batch_tokens=256))

    # Start it; stop it for the night, in the midst of training.
    run = started(workflow, "all")
    try:
        until(lambda: len(metrics(workflow)) >= 3, 200)
    finally:
        stopped = time.monotonic()
        os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=60)
    until(lambda: not left_over(workflow), STOPS_WITHIN_S)
    assert time.monotonic() - stopped < STOPS_WITHIN_S, "everything has ended"
    night = [line["step"] for line in metrics(workflow) if line["kind"] == "train"]
    answered = (workflow.work / "answered.txt").read_text()

    # Start it again: nothing is answered twice, and the training goes on.
    workflow.run("all")
    assert (workflow.work / "answered.txt").read_text().startswith(answered)
    assert "going on at step" in (workflow.work / "logs/train_draft.log").read_text()
    day = [line["step"] for line in metrics(workflow) if line["kind"] == "train"]
    assert day[: len(night)] == night and len(day) > len(night) and len(set(day)) == len(day)

    # Mend an adapter, and rerun its dataset alone.
    adapter = workflow.root / "scripts/eyas/adapters/openthoughts.py"
    adapter.write_text(adapter.read_text().replace("return Conversation(", "return _mended(") + MENDED)
    assert "Nothing to be done" in workflow.run("all"), "edited code rebuilds nothing by itself"
    prompts = "prepared/B5_openthoughts/prompts.jsonl"
    before = workflow.snapshot()
    workflow.run("--force", prompts)
    changed = {path for path, state in workflow.snapshot().items() if before.get(path) != state}
    assert {path for path in changed if path.startswith(("prepared/", "responses/"))} == {
        f"prepared/B5_openthoughts/{name}" for name in ("prompts.jsonl", "rejects.jsonl", "stats.json")
    }
    assert "in one sentence" in (workflow.work / prompts).read_text()
    asked = len((workflow.work / "answered.txt").read_text().splitlines())
    workflow.run("generated")
    again = len((workflow.work / "answered.txt").read_text().splitlines()) - asked
    kept = json.loads((workflow.work / "prepared/B5_openthoughts/stats.json").read_bytes())["kept"]
    assert again == kept, "what was mended is asked anew, the others are not"

    # Look at it.
    assert "B5_openthoughts" in workflow.run("tally")


MENDED = """

def _mended(messages):
    for message in messages:
        if message["role"] == "user":
            message["content"] += " (in one sentence)"
    return Conversation(messages)
"""
