"""Folders on other disks: linked to, never moved, and the run works through the links."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from eyas.errors import EyasError
from eyas.storage import link_folders
from workflow_copy import make_workflow

ASKS_TOO_MUCH = """
import fcntl, os
open("a", "w").close()
with open("a") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        pass
    else:
        raise SystemExit("an exclusive lock of a file that is open for reading")
with open("a", "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        os._exit(0)
    os.link("a", "b")
    os.remove("a")
os.mkdir("folder")
os.replace("b", "folder/b")
try:
    os.open(".", os.O_TMPFILE | os.O_RDWR)
except OSError:
    pass
else:
    raise SystemExit("a file without a name")
"""


def test_links_are_made_once_and_nothing_is_moved(tmp_path):
    work, places = tmp_path / "work", {"state": str(tmp_path / "nvme/state")}
    work.mkdir()
    link_folders(places, work)
    (work / "state/journal").write_text("kept")
    link_folders(places, work)
    assert (tmp_path / "nvme/state/journal").read_text() == "kept"
    with pytest.raises(EyasError, match=r"storage\.state: .* is a link to .*nvme/state, expected a link to .*other"):
        link_folders({"state": str(tmp_path / "other")}, work)
    (work / "draft").mkdir()
    with pytest.raises(EyasError, match=r"storage\.draft: .* is a folder, expected a link .*: move what it holds"):
        link_folders({"draft": str(tmp_path / "draft")}, work)
    with pytest.raises(EyasError, match="expected an absolute path, such as /data/sources"):
        link_folders({"sources": "data"}, work)
    (tmp_path / "file").touch()
    with pytest.raises(EyasError, match=r"file/sources cannot be made"):
        link_folders({"sources": str(tmp_path / "file/sources")}, work)


def test_a_run_on_three_disks(tmp_path, smollm2_folder):
    """Another file system for the states, where there is one: a rename across the two would fail.

    All folders are held to what NFSv4 gives (network_folder).
    """
    other = tmp_path / "other"
    if shutil.disk_usage("/dev/shm").free > 1 << 30:
        other = tmp_path / "shm"
        other.symlink_to("/dev/shm")
    places = {name: str(other / f"eyas-{tmp_path.name}/{name}") for name in ("hidden_states", "state")}
    places["sources"] = str(tmp_path / "sources")
    copy, notes, leases = (tmp_path / name for name in ("copy", "notes", "leases"))
    copy.mkdir()
    python_path = f"{ROOT}/tests/network_folder:{ROOT}/tests/fake_sglang"
    workflow = make_workflow(copy, ("B3_magicoder",), smollm2_folder, idle_s=2, env={"PYTHONPATH": python_path})
    workflow.config(lambda c: c.update(storage=places))
    network = [workflow.work, *places.values()]
    env = os.environ | {"PYTHONPATH": f"{ROOT}/tests/network_folder", "EYAS_GPU_LEASES": str(leases)}
    env |= {"EYAS_NETWORK_FOLDERS": ":".join(map(str, network)), "EYAS_NETWORK_NOTES": str(notes)}
    try:
        assert "train_draft" in workflow.planned("all") and not (workflow.work / "state").exists(), "a dry run"
        workflow.run("all", env=env)
        for name in places:
            assert (workflow.work / name).is_symlink() and any((workflow.work / name).iterdir())
        assert "Nothing to be done" in workflow.run("all")
        shutil.rmtree(workflow.work / ".snakemake")
        assert "Nothing to be done" in workflow.run("all")
    finally:
        shutil.rmtree(other / f"eyas-{tmp_path.name}", ignore_errors=True)

    asked = [line.split(" ", 2) for line in notes.read_text().splitlines()]
    ours = [(what, path) for _, what, path in asked if "/.snakemake/" not in path]
    assert {what for what, _ in ours} == {"locks", "renames-within"}
    locked = {Path(path) for what, path in ours if what == "locks"}
    assert {(path.suffix, path.name == ".lock") for path in locked} == {(".jsonl", False), ("", True)}, locked


def test_what_nfs_does_not_give_is_noticed(tmp_path):
    """The check above can fail."""
    env = os.environ | {"PYTHONPATH": f"{ROOT}/tests/network_folder"}
    env |= {"EYAS_NETWORK_FOLDERS": str(tmp_path), "EYAS_NETWORK_NOTES": str(tmp_path / "notes")}
    done = subprocess.run([sys.executable, "-c", ASKS_TOO_MUCH], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    asked = {line.split()[1] for line in (tmp_path / "notes").read_text().splitlines()}
    assert asked == {"locks", "forks-with-lock", "renames-across", "removes-open", "links"}
