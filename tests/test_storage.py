"""Folders on other disks: linked to, never moved, and the run works through the links."""

import shutil

import pytest

from eyas.errors import EyasError
from eyas.storage import link_folders
from workflow_copy import make_workflow


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
    """Another file system for the states, where there is one: a rename across the two would fail."""
    other = tmp_path / "other"
    if shutil.disk_usage("/dev/shm").free > 1 << 30:
        other = tmp_path / "shm"
        other.symlink_to("/dev/shm")
    places = {name: str(other / f"eyas-{tmp_path.name}/{name}") for name in ("hidden_states", "state")}
    places["sources"] = str(tmp_path / "sources")
    copy = tmp_path / "copy"
    copy.mkdir()
    workflow = make_workflow(copy, ("B3_magicoder",), smollm2_folder, idle_s=2)
    workflow.config(lambda c: c.update(storage=places))
    try:
        assert "train_draft" in workflow.planned("all") and not (workflow.work / "state").exists(), "a dry run"
        workflow.run("all")
        for name in places:
            assert (workflow.work / name).is_symlink() and any((workflow.work / name).iterdir())
        assert "Nothing to be done" in workflow.run("all")
        shutil.rmtree(workflow.work / ".snakemake")
        assert "Nothing to be done" in workflow.run("all")
    finally:
        shutil.rmtree(other / f"eyas-{tmp_path.name}", ignore_errors=True)
