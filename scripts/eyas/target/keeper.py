"""The keeper of a warm server: a process of its own that starts the server, watches it, and ends it.

eyas.target.warm_server starts it; nobody types it. Who lives, and what makes them end:

    client ──► keeper ──► guardian ──► server ──► its children

- A client holds a shared flock on the clients' lock, which dies with it. The keeper goes when nobody has held one for
  `idle_s`, and at once when nobody does and someone waits for its GPUs or its place. It decides that under the
  exclusive flock: a client either came before, and is served, or finds `gone` in server.json and starts another keeper.
- The keeper has a session of its own: neither Ctrl-C nor the end of the job that started it reach it. It holds
  keeper.lock (one keeper in a folder at a time) and the leases of its GPUs.
- The guardian (a fork of the keeper) holds them too, and the end of a pipe. When the pipe closes, since the keeper lets
  go of it or was killed, or when the server ends, it ends whatever the server started. Only then the locks are free.
- The server dies with the guardian (PR_SET_PDEATHSIG); what it leaves behind then is the keeper's to end.
- Under Slurm it goes with the step that started it, or with the allocation (profiles/slurm). Slurm kills it then where
  it tracks processes by cgroups; by their parents it would find neither keeper nor server, and hand their devices on.
- Should keeper and guardian be killed together, the next keeper first ends what carries the folder's mark.

How processes are found and ended: processes.py.
"""

import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn

import orjson

from eyas.errors import EyasError
from eyas.gpus import hold, lease, lease_folder, others_wait
from eyas.records import write_json
from eyas.target.processes import MARK, adopt_orphans, end_processes, free_port, is_free, listens, reap, stat_of
from eyas.workers import end_with_parent

POLL_S = 0.1
TAIL_LINES = 40
START = "--- eyas starts the server:"


@dataclass(frozen=True)
class Files:
    """Where keeper and clients meet. `folder` is one host's; `key` names the server's fingerprint."""

    folder: Path
    key: str

    @property
    def home(self) -> Path:
        return self.folder / self.key

    @property
    def locks(self) -> Path:
        """On this host: a lock goes from client to keeper to guardian, which a network file system's do not."""
        return lease_folder() / f"server-{blake2b(str(self.folder).encode(), digest_size=8).hexdigest()}"

    @property
    def keeper_lock(self) -> Path:
        """Held by the one living keeper of the folder; its text is that keeper's key."""
        return self.locks / "keeper.lock"

    @property
    def waiting(self) -> Path:
        """Held (shared) by clients of another server than the one that lives."""
        return self.locks / "waiting.lock"

    @property
    def clients(self) -> Path:
        """Held (shared) by the clients of this server; touched when one comes and goes."""
        return self.locks / f"clients-{self.key}.lock"

    @property
    def state(self) -> Path:
        return self.home / "server.json"

    @property
    def answered(self) -> Path:
        """The life that gave a client its first real answer."""
        return self.home / "answered"

    @property
    def asked(self) -> Path:
        """The life that a client asks for its first answer, in vain until now."""
        return self.home / "asked"

    @property
    def server_log(self) -> Path:
        return self.home / "server.log"

    @property
    def keeper_log(self) -> Path:
        return self.home / "keeper.log"

    @property
    def mark(self) -> str:
        """What EYAS_SERVER begins with in every process of this folder's servers."""
        return f"{self.folder}:"

    def read_state(self) -> dict:
        try:
            return orjson.loads(self.state.read_bytes())
        except FileNotFoundError:
            return {}


@dataclass(frozen=True)
class Settings:
    """What a client tells the keeper that it starts (as JSON, on its stdin)."""

    folder: str
    key: str
    keeper: str  # a name for this keeper's life
    fingerprint: dict
    command: list[str]
    env: dict[str, str]
    gpus: int
    ready_timeout_s: float
    idle_s: float
    restarts: int
    restart_window_s: float
    grace_s: float
    deaths: list[float]  # Unix times of deaths that count already
    step: list[tuple[int, str]]  # process id and start time of the daemon of a Slurm job's step; [] outside of Slurm


class _Over(Exception):
    """The keeper's life is over: state and message for server.json."""


class Keeper:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.files = Files(Path(settings.folder), settings.key)
        self.deaths = settings.deaths
        self.devices: list[str] = []
        self.last_client = time.monotonic()
        self.last_touch = 0
        self.signal = None
        self.restarts = 0
        self.was_ready = False
        self.published: dict = {}

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        adopt_orphans()
        try:
            self._publish("starting", f"waiting for {self.settings.gpus} GPUs" if self.settings.gpus else "loading")
            end_processes(self.files.mark, self.settings.grace_s)
            with lease(self.settings.gpus, while_waiting=self._go_when_idle) as self.devices:
                while True:
                    self._one_life()
        except _Over as over:
            state, message = over.args
        except EyasError as error:
            state, message = "failed", str(error)
        except Exception as error:
            traceback.print_exc()
            state, message = "failed", f"the keeper itself failed: {error!r} (see {self.files.keeper_log})"
        self._publish(state, message)

    def _one_life(self) -> None:
        """Start the server and watch it until it dies; returns when it may be started again."""
        settings, files = self.settings, self.files
        life, port = secrets.token_hex(6), free_port()
        mark = f"{files.mark}{files.key}:{life}"
        command = [part.replace("{port}", str(port)) for part in settings.command]
        env = {
            **os.environ,
            **settings.env,
            "CUDA_VISIBLE_DEVICES": ",".join(self.devices),
            MARK: mark,
            # SGLang's processes set their titles, and setproctitle would write over /proc/PID/environ.
            "SPT_NOENV": "1",
        }
        with open(files.server_log, "ab") as log:
            head = f"{START} {time.strftime('%F %T')}, GPUs {env['CUDA_VISIBLE_DEVICES'] or 'none'}: {command}\n"
            log.write(head.encode())
            log.flush()
            guardian = Guardian(command, env, log, mark, settings.grace_s)
        ids = {"life": life, "pid": guardian.server, "pgid": guardian.server}
        try:
            self._publish("starting", "loading", **ids)
            started, url, ready = time.monotonic(), None, False
            while not guardian.ended():
                time.sleep(POLL_S)
                self._go_when_idle()
                if url is None and listens(port, mark):
                    url = f"http://127.0.0.1:{port}"
                    self._publish("starting", "listening; no answer yet", url=url, **ids)
                if not ready and _says(files.answered, life):
                    ready = self.was_ready = True
                    self._publish("ready", "ready", url=url, **ids)
                # One that listens and that nobody asks is not late: it came back while its clients did other things.
                late = not ready and time.monotonic() - started > settings.ready_timeout_s
                if late and (url is None or _says(files.asked, life)):
                    raise _Over("failed", f"the server gave no answer within {settings.ready_timeout_s:g} s")
        finally:
            guardian.end()
        self._count_death(guardian.how, ready or _says(files.answered, life), port)

    def _count_death(self, how: str, ready: bool, port: int) -> None:
        """Note a death; _Over when the server must not be started again."""
        settings = self.settings
        self.was_ready |= ready
        taken = not ready and (b"already in use" in tail(self.files.server_log).lower().encode() or not is_free(port))
        if not self.was_ready and not taken:
            raise _Over("failed", f"the server {how} before its first answer")
        now = time.time()
        self.deaths = [t for t in self.deaths if now - t < settings.restart_window_s] + [now]
        how += f" (somebody took port {port})" if taken else ""
        if len(self.deaths) > settings.restarts:
            raise _Over(
                "failed",
                f"the server {how}: death {len(self.deaths)} within {settings.restart_window_s:g} s, "
                f"{settings.restarts} restarts are allowed",
            )
        self.restarts += 1
        logging.info("the server %s; restart %d of %d", how, len(self.deaths), settings.restarts)
        self._publish("starting", f"starting again: the server {how}")

    def _go_when_idle(self) -> None:
        """_Over when a signal says so, or when there is no client and time or somebody says so."""
        if self.signal:
            raise _Over("gone", f"the keeper was told to end by {signal.Signals(self.signal).name}")
        for pid, started in self.settings.step:
            if (stat_of(pid) or (0, None))[1] != started:
                raise _Over("gone", "the Slurm job's step that started it is over")
        if not (places := hold(self.files.clients, wait=False)):
            self.last_client = time.monotonic()
            return
        with places:
            if (touch := os.fstat(places.fileno()).st_mtime_ns) != self.last_touch:  # one came and went
                self.last_touch, self.last_client = touch, time.monotonic()
            if time.monotonic() - self.last_client >= self.settings.idle_s:
                why = f"no client for {self.settings.idle_s:g} s"
            elif self._somebody_waits():
                why = "no client, and another job waits"
            else:
                return
            # While the clients' lock is held: who comes now reads this, and starts another keeper.
            self._publish("gone", why)
        raise _Over("gone", why)

    def _somebody_waits(self) -> bool:
        if self.devices and others_wait(ids=self.devices):
            return True
        if unwanted := hold(self.files.waiting, wait=False):
            unwanted.close()
            return False
        return True

    def _publish(self, state: str, message: str, **more) -> None:
        if (state, message) != (self.published.get("state"), self.published.get("message")):
            logging.info("%s: %s", state, message)
        self.published = {
            "state": state,
            "message": message,
            "url": None,
            "life": None,
            "pid": None,
            "pgid": None,
            **more,
            "gpus": self.devices,
            "restarts": self.restarts,
            "deaths": self.deaths,
            "time": time.time(),
            "keeper": self.settings.keeper,
            "keeper_pid": os.getpid(),
            "fingerprint": self.settings.fingerprint,
        }
        write_json(self.files.state, self.published)

    def _note_signal(self, number, _frame) -> None:
        self.signal = number


class Guardian:
    """The keeper's side of a guardian and its server."""

    def __init__(self, command: list[str], env: dict, log, mark: str, grace_s: float):
        self.mark, self.grace_s = mark, grace_s
        lifeline, self.lifeline = os.pipe()
        report, said = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.lifeline)
                os.close(report)
                guard(command, env, log, mark, grace_s, lifeline, said)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(lifeline)
        os.close(said)
        self.report = os.fdopen(report, encoding="utf-8")
        self.server = int(self.report.readline() or 0)  # the server's process, and its group
        self.how = ""

    def ended(self) -> bool:
        """Whether the guardian, and with it the server, has ended; `how` then says how."""
        if not self.how and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.how = self.report.read().strip() or "lost its guardian"
        return bool(self.how)

    def end(self) -> None:
        """End the server, its guardian, and all that they started."""
        os.close(self.lifeline)
        while not self.ended():
            time.sleep(0.02)
        self.report.close()
        end_processes(self.mark, self.grace_s)  # nothing, unless the guardian was killed


def guard(command: list[str], env: dict, log, mark: str, grace_s: float, lifeline: int, report: int) -> None:
    """Start the server in a group of its own; when it ends, or the lifeline closes, end all that it started.

    Two lines go to `report`: the server's process id, and at last how it ended.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # it ends with the keeper; the server gets the default back
    adopt_orphans()

    def tell(line: str) -> None:
        with suppress(OSError):  # the keeper may be dead
            os.write(report, f"{line}\n".encode())

    try:
        server = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
    except OSError as error:
        log.write(f"cannot start {command[0]}: {error}\n".encode())
        log.flush()
        tell("0")
        tell("could not be started")
        return
    statuses: dict[int, int] = {}
    tell(str(server.pid))
    while server.pid not in statuses and not select.select([lifeline], [], [], POLL_S)[0]:
        reap(statuses)
    by_itself = server.pid in statuses
    end_processes(mark, grace_s, statuses)
    code = os.waitstatus_to_exitcode(statuses[server.pid])
    how = f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    tell(how if by_itself else "was ended")


def _says(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines that the latest server wrote to its log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 16)))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    if START in text:
        text = text.rpartition(START)[2].partition("\n")[2]
    return "\n".join(text.splitlines()[-lines:])


def start(settings: Settings, lock_fd: int) -> None:
    """Start a keeper that takes over the lock; EyasError when it does not come to life."""
    files = Files(Path(settings.folder), settings.key)
    with open(files.keeper_log, "ab") as log:
        starter = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN, str(Path(__file__).resolve().parents[2]), str(lock_fd)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={key: value for key, value in os.environ.items() if key != MARK},
            start_new_session=True,
            pass_fds=[lock_fd],
        )
    with suppress(BrokenPipeError):
        starter.communicate(orjson.dumps(asdict(settings)))
    if starter.returncode:
        raise EyasError(f"the keeper of the server does not start; last lines of {files.keeper_log}:\n{_end(files)}")


def _end(files: Files) -> str:
    return "\n".join(files.keeper_log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


# By path, not by PYTHONPATH: the keeper's environment is the server's.
_MAIN = "import sys; sys.path.insert(0, sys.argv[1]); from eyas.target import keeper; keeper.main(int(sys.argv[2]))"


def main(lock_fd: int) -> NoReturn:
    """Read the settings, leave the starter, keep. `lock_fd`: keeper.lock, open and held."""
    settings = Settings(**orjson.loads(sys.stdin.buffer.read()))
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.set_inheritable(lock_fd, False)
    if os.fork():  # who started it waits for this end, and is not the keeper's parent
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%F %T", stream=sys.stderr)
    try:
        Keeper(settings).run()
        os.ftruncate(lock_fd, 0)
    finally:
        logging.shutdown()
        os._exit(0)
