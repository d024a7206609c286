"""Worker processes: jobs are called in them, results come back in the order of the jobs."""

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context

from eyas.errors import EyasError

AHEAD = 2  # jobs for each process that are underway or done before the result that is asked for
PR_SET_PDEATHSIG = 1


class Workers:
    """`count` forked processes within a `with` block; one: this process.

    killed: what an EyasError says when a worker process is killed, with the remedy.
    """

    def __init__(self, count: int, killed: str):
        self.count, self.killed, self.pool = count, killed, None

    def __enter__(self) -> "Workers":
        if self.count > 1:
            # Forked, so that a worker has the loaded modules at once.
            context, parent = get_context("fork"), os.getpid()
            self.pool = ProcessPoolExecutor(self.count, context, end_with_parent, (parent,))
        return self

    def __exit__(self, *exc) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def results(self, jobs: Iterable[Callable]) -> Iterator:
        """What each job returns, in order; what a job raises is raised here. At most AHEAD of each process wait."""
        if self.pool is None:
            yield from (job() for job in jobs)
            return
        try:
            jobs, waiting = iter(jobs), deque()
            while True:
                waiting.extend(self.pool.submit(job) for job in islice(jobs, AHEAD * self.count - len(waiting)))
                if not waiting:
                    return
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise EyasError(self.killed) from None


def end_with_parent(parent: int) -> None:
    """Call it in a child: it is killed when its parent dies, however that dies.

    A worker that waits at a pipe, which its siblings hold open too, would outlive it; a trainer would keep its GPU.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # gone before
        os._exit(1)
