"""Worker processes: results in the order of the jobs, and never far ahead of who asks."""

import os
import time
from functools import partial

import pytest

from eyas.workers import AHEAD, Workers


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_order(count):
    with Workers(count, "killed") as workers:
        jobs = (partial(_slow_first, k) for k in range(20))
        assert list(workers.results(jobs)) == list(range(20))
        assert list(workers.results(iter([]))) == []


def _slow_first(k):
    time.sleep(0.05 if k == 0 else 0)
    return k


def test_jobs_do_not_run_far_ahead():
    """Else what waits for a slow reader would fill the disk or the memory."""
    asked = []

    def jobs():
        for k in range(100):
            asked.append(k)
            yield partial(_slow_first, k)

    with Workers(2, "killed") as workers:
        for done, _ in enumerate(workers.results(jobs()), start=1):
            assert len(asked) <= done - 1 + 2 * AHEAD


def test_several_processes_do_the_work():
    with Workers(2, "killed") as workers:
        assert os.getpid() not in set(workers.results([os.getpid] * 4))
