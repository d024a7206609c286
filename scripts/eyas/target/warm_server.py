"""The client's side of a warm server: one server for all jobs that need the same target.

    with WarmServer(command=["python", "-m", "sglang.launch_server", "--port", "{port}"], …, probe=probe) as server:
        ask(server.url)          # and when requests fail: ask(server.wait_ready())

The first client starts a keeper (eyas.target.keeper), which starts the server, and outlives the client; the others find
it. A client that dies, however it dies, is gone for the keeper at once: its place is an flock.
"""

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import orjson

from eyas.errors import EyasError
from eyas.gpus import hold
from eyas.records import write_json
from eyas.target import keeper
from eyas.target.keeper import Files, Settings
from eyas.target.processes import stat_of

POLL_S = 0.05


class WarmServer:
    """A place among the clients of one server, which is started when none lives.

    command: what starts the server; {port} stands for a free port, on which it must listen at 127.0.0.1.
    env: variables added to this process's own, for the server. gpus: how many it takes (leased, eyas.gpus).
    fingerprint: plain JSON; servers with equal fingerprints are one and the same to their clients.
    folder: where server and clients meet; it must belong to this host alone.
    probe: asks the server at a URL for a real answer and raises while there is none; it needs a timeout of its own. Its
        EyasError is final (say, the wrong version answers).
    ready_timeout_s: how long the server may take to its first answer. idle_s: it ends so long after its last client.
    restarts: a server that dies is started again so often within restart_window_s.
    grace_s: what it started has so long between SIGTERM and SIGKILL.

    The client that starts the server decides idle_s, restarts and the like; those that follow take it as it is.
    """

    def __init__(
        self,
        *,
        command: list[str],
        env: dict[str, str],
        gpus: int,
        fingerprint: dict,
        folder: Path,
        probe: Callable[[str], object],
        ready_timeout_s: float,
        idle_s: float,
        restarts: int,
        restart_window_s: float,
        grace_s: float = 10.0,
    ):
        key = blake2b(orjson.dumps(fingerprint, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()
        self.files = Files(Path(folder).resolve(), key)
        self.probe, self.ready_timeout_s = probe, ready_timeout_s
        self.url = ""
        self._settings = {
            "folder": str(self.files.folder),
            "key": key,
            "fingerprint": fingerprint,
            "command": [str(part) for part in command],
            "env": env,
            "gpus": gpus,
            "ready_timeout_s": ready_timeout_s,
            "idle_s": idle_s,
            "restarts": restarts,
            "restart_window_s": restart_window_s,
            "grace_s": grace_s,
        }
        self._one_at_a_time = threading.Lock()
        self._stack = ExitStack()
        self._waiting = None  # the held file, while another server lives
        self._keeper = None  # the keeper that was seen alive
        self._said = None

    def __enter__(self) -> "WarmServer":
        self.files.home.mkdir(parents=True, exist_ok=True)
        self.files.locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        with ExitStack() as stack:
            stack.enter_context(_ends_with_snakemake())
            self._entered = time.time()
            stack.enter_context(hold(self.files.clients, shared=True))
            os.utime(self.files.clients)
            stack.callback(self._stop_waiting)
            self.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_) -> None:
        with self._stack, suppress(FileNotFoundError):
            os.utime(self.files.clients)  # the keeper counts its idle time from here

    def wait_ready(self) -> str:
        """Block until the server answers the probe; its URL, which changes when the server is started again.

        EyasError, with the end of the server's log, when it will not: it failed too often, or gave no answer in time.
        May be called from several threads.
        """
        with self._one_at_a_time:
            since, problem, asked = time.monotonic(), None, None
            while True:
                state = self._look()
                if state["state"] != "ready":
                    since = time.monotonic()  # the keeper measures how long it takes to start
                if url := state["url"]:
                    try:
                        self.probe(url)
                    except EyasError:
                        raise
                    except Exception as error:
                        problem = error
                        if state["state"] == "starting" and asked != state["life"]:
                            asked = state["life"]
                            self.files.asked.write_text(asked)
                    else:
                        if state["state"] == "starting":
                            self.files.answered.write_text(state["life"])
                        self.url = url
                        return url
                if time.monotonic() - since > self.ready_timeout_s:
                    raise self._error(
                        f"the server at {url} gives no answer since {self.ready_timeout_s:g} s ({problem!r})"
                    )
                time.sleep(POLL_S)

    def _look(self) -> dict:
        """What the keeper says; starts a keeper when none lives. EyasError when it gave up."""
        lock = hold(self.files.keeper_lock, wait=False)
        if lock is None:  # a keeper lives (or another client looks, for a moment)
            living = self.files.keeper_lock.read_text()
            if living not in ("", self.files.key):
                self._wait_for_other(living)
                return {"state": "gone", "url": None}
            self._stop_waiting()
            state = self.files.read_state()
            if not living or not state:
                return {"state": "gone", "url": None}
            if state["state"] in ("starting", "ready"):
                self._keeper = state["keeper"]
        else:  # none lives, and none can be started but by me
            with lock:
                self._stop_waiting()
                state = self.files.read_state()
                if not self._gave_up(state):
                    state = self._start_keeper(lock, state)
        self._say(state["message"])
        if self._gave_up(state):
            raise self._error(f"the server is not to be had: {state['message']}")
        return state

    def _gave_up(self, state: dict) -> bool:
        """Whether a keeper gave up since I came; what failed before is tried again."""
        return state.get("state") == "failed" and state["time"] >= self._entered

    def _start_keeper(self, lock, before: dict) -> dict:
        """Start a keeper, who takes over the lock."""
        deaths = []
        if before and before["keeper"] == self._keeper and before["state"] in ("starting", "ready"):
            deaths = [*before["deaths"], time.time()]
            window = self._settings["restart_window_s"]
            deaths = [t for t in deaths if time.time() - t < window]
            logging.info("the server's keeper (process %s) was killed; starting another", before["keeper_pid"])
            if len(deaths) > self._settings["restarts"]:
                raise self._error(f"server or keeper died {len(deaths)} times within {window:g} s")
        self._keeper = secrets.token_hex(6)
        step = list(_up_to(b"slurmstepd").items())[-1:]
        settings = Settings(**self._settings, keeper=self._keeper, deaths=deaths, step=step)
        lock.truncate(0)
        lock.write(self.files.key)
        lock.flush()
        state = {
            "state": "starting",
            "message": "starting the keeper",
            "url": None,
            "deaths": deaths,
            "time": time.time(),
            "keeper": self._keeper,
            "keeper_pid": None,
            "fingerprint": settings.fingerprint,
        }
        write_json(self.files.state, state)
        keeper.start(settings, lock.fileno())
        return state

    def _wait_for_other(self, key: str) -> None:
        """Another server lives: show its keeper that someone waits, and say in the log what for."""
        self._waiting = self._waiting or hold(self.files.waiting, shared=True)
        other = Files(self.files.folder, key).read_state()
        differs = "; ".join(_differences(self._settings["fingerprint"], other.get("fingerprint", {})))
        self._say(f"waiting until the clients of another server ({key}) are done; it differs in {differs}")

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting.close()
            self._waiting = None

    def _say(self, message: str) -> None:
        if message != self._said:
            self._said = message
            logging.info("server %s: %s", self.files.key, message)

    def _error(self, message: str) -> EyasError:
        command = " ".join(self._settings["command"])
        end = keeper.tail(self.files.server_log) or "(nothing)"
        return EyasError(f"{message}\n  command: {command}\n  the end of {self.files.server_log}:\n{end}")


def _differences(mine, other, path: str = "") -> Iterator[str]:
    """Where two fingerprints differ, as `key: wanted (there: found)`."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in {**mine, **other}:
            yield from _differences(mine.get(key), other.get(key), f"{path}.{key}" if path else str(key))
    elif mine != other:
        yield f"{path}: {mine!r} (there: {other!r})"


@contextmanager
def _ends_with_snakemake() -> Iterator[None]:
    """Within it, this process ends (SIGTERM) when Snakemake, or a shell between, is killed.

    Snakemake runs a job as `bash -c "… python …"`; when either is killed with SIGKILL, the job's Python would go on,
    and keep the server alive for nobody.
    """
    ancestors, done = _up_to(b"snakemake"), threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            for pid, started in ancestors.items():
                if (stat_of(pid) or (0, None))[1] != started:
                    logging.warning("process %d, which ran this job, is dead: ending", pid)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    if ancestors:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _up_to(program: bytes) -> dict[int, str]:
    """{process id: start time} of this process's ancestors up to the outermost that runs `program`; {} without one."""
    ancestors, above = {}, {}
    pid = os.getppid()
    while pid > 1 and (stat := stat_of(pid)):
        above[pid] = stat[1]
        with suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            # Slurm's daemon of a step calls itself `slurmstepd: [41.0]`.
            if any(os.path.basename(argument).partition(b":")[0] == program for argument in arguments):
                ancestors = dict(above)
        pid = stat[0]
    return ancestors
