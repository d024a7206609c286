"""Leases of GPUs, held by real processes."""

import subprocess
import sys
import threading
import time

import pytest

from conftest import ROOT, pretend_gpus
from eyas.errors import EyasError
from eyas.gpus import holders, lease, others_wait, visible_gpus
from waiting import until

HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from eyas.gpus import lease
with lease(int(sys.argv[2]), poll_s=0.02) as ids:
    print(",".join(ids), flush=True)
    sys.stdin.read()
"""
SMI = """#!/bin/sh
echo "GPU 0: NVIDIA RTX PRO 6000 (UUID: GPU-aaaa)"
echo "  MIG 1g.24gb     Device  0: (UUID: MIG-1234)"
echo "GPU 1: NVIDIA RTX PRO 6000 (UUID: GPU-bbbb)"
"""


@pytest.fixture(autouse=True)
def host(tmp_path, monkeypatch):
    """Three GPUs, and a folder of leases that only this test knows."""
    pretend_gpus(monkeypatch, 3, tmp_path / "leases")
    return monkeypatch


@pytest.fixture
def holder():
    """Start a process that holds n devices; its first line of output names them."""
    started = []

    def start(n):
        command = [sys.executable, "-c", HOLDER, ROOT / "scripts", str(n)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_two_jobs_get_distinct_devices_and_a_third_waits_until_one_is_killed(holder):
    first, second = holder(1), holder(1)
    taken = {first.stdout.readline().strip(), second.stdout.readline().strip()}
    assert len(taken) == 2 and taken <= {"0", "1", "2"}
    assert not others_wait()
    third = holder(2)
    until(others_wait)
    assert third.poll() is None
    first.kill()
    ids = third.stdout.readline().strip().split(",")
    assert len(ids) == 2 and not set(ids) & (taken - {ids[0], ids[1]})
    assert not others_wait()


def test_a_waiter_that_is_killed_no_longer_waits(holder):
    with lease(3):
        waiter = holder(1)
        until(others_wait)
        waiter.kill()
        waiter.wait()
        assert not others_wait()


def test_who_waits_for_other_devices_is_none_of_my_business(holder):
    with lease(3) as mine:
        assert mine == ["0", "1", "2"]
        holder(1)
        until(lambda: others_wait(ids=["2"]))
        assert not others_wait(ids=["7"])


def test_a_part_is_never_held_while_waiting_for_the_rest(holder):
    with lease(2):
        big = holder(2)
        until(others_wait)
        with lease(1, poll_s=0.01) as small:  # the third device is free all the time
            assert small == ["2"]
    assert big.stdout.readline().strip() == "0,1"


def test_many_in_a_row_never_share_a_device():
    held, shared = set(), []

    def job(n):
        for _ in range(10):
            with lease(n, poll_s=0.002) as ids:
                shared.extend(held & set(ids))
                held.update(ids)
                time.sleep(0.002)
                held.difference_update(ids)

    threads = [threading.Thread(target=job, args=(n,)) for n in (1, 2, 1, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not shared


def test_more_than_exist_is_an_error_and_none_needs_nothing(host):
    with pytest.raises(EyasError, match="4 GPUs are asked for, 3 can be seen"), lease(4):
        pass
    host.delenv("EYAS_GPU_COUNT")
    host.setenv("PATH", "")
    with lease(0) as ids:
        assert ids == []
    with pytest.raises(EyasError, match="0 can be seen"), lease(1):
        pass


def test_holders_and_waiters_are_named_without_a_trace(holder, tmp_path):
    assert holders(visible_gpus()) == ({"0": None, "1": None, "2": None}, {})
    assert not (tmp_path / "leases").exists(), "who asks makes no file"
    first = holder(2)
    first.stdout.readline()
    second = holder(2)
    until(lambda: holders(visible_gpus())[1])
    assert holders(visible_gpus()) == ({"0": first.pid, "1": first.pid, "2": None}, {second.pid: 2})
    (tmp_path / "leases/gpu-0").write_text("?")
    assert holders(["0"])[0] == {"0": 0}, "held, by whom is not known"
    before = sorted(p.name for p in (tmp_path / "leases").iterdir())
    second.kill()
    second.wait()
    assert holders(visible_gpus())[1] == {}
    assert sorted(p.name for p in (tmp_path / "leases").iterdir()) == before
    first.kill()
    first.wait()
    assert holders(visible_gpus()) == ({"0": None, "1": None, "2": None}, {})


def test_what_waits_can_be_stopped():
    def stop():
        raise TimeoutError

    with lease(3), pytest.raises(TimeoutError), lease(1, while_waiting=stop):
        pass
    assert not others_wait()


def test_cuda_visible_devices_limits_the_choice(host):
    host.setenv("CUDA_VISIBLE_DEVICES", "5,2")
    with lease(1) as first, lease(1) as second:
        assert (first, second) == (["5"], ["2"])
    host.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    host.setenv("CUDA_VISIBLE_DEVICES", "1,-1,2")
    assert visible_gpus() == ["1"]


def test_slurm_jobs_keep_the_schedulers_choice(host):
    """Each job's own device may be called 0: leases of two Slurm jobs never meet."""
    host.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    host.setenv("SLURM_JOB_ID", "41")
    with lease(2) as mine:
        assert mine == ["0", "3"]
        host.setenv("SLURM_JOB_ID", "42")
        with lease(2) as other:
            assert other == ["0", "3"]
        with pytest.raises(EyasError, match="3 GPUs"), lease(3):
            pass


def test_nvidia_smi_lists_them_and_a_uuid_is_the_same_device_as_its_index(host, tmp_path):
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin/nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    host.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    host.delenv("EYAS_GPU_COUNT")
    assert visible_gpus() == ["0", "1"]
    with lease(1, ids=["0"]), lease(1, ids=["GPU-aaaa", "GPU-bbbb"]) as ids:
        assert ids == ["GPU-bbbb"]
