"""Processes and ports of this host, as the keeper and its guardian handle them: Linux, by /proc.

What a server started is found two ways: keeper and guardian adopt orphans, so a process that lost its parent becomes
their child, in whatever group or session it is; and EYAS_SERVER in the environment names folder, server and life.
"""

import ctypes
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

MARK = "EYAS_SERVER"
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on my descendants that lose their parent become my children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_processes(mark: str, grace_s: float, statuses: dict[int, int] | None = None) -> None:
    """End my descendants and whoever carries the mark: SIGTERM, after the grace SIGKILL; returns when none is left.

    statuses takes the wait statuses of children that were reaped.
    """
    statuses = {} if statuses is None else statuses
    kill_at, told = time.monotonic() + grace_s, set()
    while left := processes_of(mark):
        late = time.monotonic() >= kill_at
        for pid in left if late else left - told:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        told |= left
        time.sleep(0.02)
        reap(statuses)
    reap(statuses)


def reap(statuses: dict[int, int]) -> None:
    """Take the wait statuses of my children that have ended."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            statuses[pid] = status


def processes_of(mark: str) -> set[int]:
    """My living descendants, and the living processes whose EYAS_SERVER begins with `mark`; never myself."""
    me, parents, marked = os.getpid(), {}, set()
    wanted = f"\0{MARK}={mark}".encode()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # just ended, or somebody else's
            state, parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state in "ZX":
                continue
            parents[pid] = int(parent)
            if wanted in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                marked.add(pid)
    mine, latest = set(), {me}
    while latest:
        latest = {pid for pid, parent in parents.items() if parent in latest}
        mine |= latest
    return (mine | marked) - {me}


def stat_of(pid: int) -> tuple[int, str] | None:
    """Parent and start time of a living process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), fields[19])


def listens(port: int, mark: str) -> bool:
    """Whether a process with the mark, and nobody else's, listens on the port."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), open(f"/proc/net/{table}") as file:
            for line in list(file)[1:]:
                _, local, _, state, *rest = line.split()
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{rest[5]}]")
    if not sockets:
        return False
    for pid in processes_of(mark):
        with suppress(OSError):
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(fd.path) in sockets:
                        return True
    return False


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def is_free(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger do not count
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
