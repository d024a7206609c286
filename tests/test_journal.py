"""A journal loses nothing that was finished, and believes nothing that is damaged."""

import os
import signal
import subprocess
import sys
import time

import pytest

from conftest import ROOT
from eyas.errors import EyasError
from eyas.journal import Journal


def keys(path):
    with Journal(path) as journal:
        return list(journal.places)


def test_items_are_found_again(tmp_path):
    path = tmp_path / "deep/j.jsonl"
    with Journal(path) as journal:
        for k in range(5):
            journal.append({"id": f"k{k}", "value": [k]})
        journal.append({"id": "k1", "value": "newer"})
        assert "k3" in journal and "k9" not in journal
    with Journal(path) as journal:
        assert list(journal.items(["k4", "none", "k1"])) == [{"id": "k4", "value": [4]}, {"id": "k1", "value": "newer"}]


@pytest.mark.parametrize("torn", [b'{"id": "torn", "value": [1', b"{", b'{"id": "whole but for its end"}'])
def test_a_torn_last_line_is_dropped_and_its_place_used_again(tmp_path, torn):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"id": "a"}\n' + torn)
    with Journal(path) as journal:
        assert list(journal.places) == ["a"]
        journal.append({"id": "b"})
    assert path.read_bytes() == b'{"id": "a"}\n{"id":"b"}\n'


def test_damaged_lines_in_the_middle_are_dropped_and_counted(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"id": "a"}\n\x00\x00garbage\n[1]\n{"no": "id"}\n{"id": "b"}\n')
    with Journal(path) as journal:
        assert list(journal.places) == ["a", "b"] and journal.dropped == 3
        assert [i["id"] for i in journal.items(["b", "a"])] == ["b", "a"]


def test_one_writer_at_a_time(tmp_path):
    with (
        Journal(tmp_path / "j"),
        pytest.raises(EyasError, match="another process writes this journal"),
        Journal(tmp_path / "j"),
    ):
        pass


def test_a_killed_writer_loses_nothing_that_it_appended(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom eyas.journal import Journal\n"
        "with Journal(Path(sys.argv[1])) as j:\n"
        "    for k in range(10**9):\n"
        "        j.append({'id': str(k), 'x': 'y' * 300})\n"
        "        print(k, flush=True)\n"
    )
    path = tmp_path / "j.jsonl"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    writer = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, env=env)
    time.sleep(1.0)
    writer.send_signal(signal.SIGKILL)
    said = writer.communicate()[0].split(b"\n")
    last = int(said[-2])
    assert last > 100
    found = keys(path)
    assert len(found) in (last + 1, last + 2) and found == [str(k) for k in range(len(found))]


def test_a_full_disk_leaves_whole_lines(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        path = disk / "j.jsonl"
        with pytest.raises(OSError, match="No space left"), Journal(path) as journal:
            for k in range(10_000):
                journal.append({"id": str(k), "x": "y" * 700})
        found = keys(path)
        assert len(found) > 20 and path.read_bytes().endswith(b"}\n")
    finally:
        subprocess.run(["umount", disk], check=True)
