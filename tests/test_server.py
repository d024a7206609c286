"""The warm server's life, with real processes: started once, restarted within bounds, never orphaned."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import ROOT, SNAKEMAKE
from eyas.errors import EyasError
from eyas.gpus import hold, lease
from eyas.target.keeper import Files
from eyas.target.warm_server import WarmServer
from fake_server import answer, ask, probe
from waiting import until

SLACK_S = 8  # what was asked for takes so much longer on a busy machine; alone, less than one second
FAKE = ROOT / "tests/fake_server.py"
CLIENT = """
import json, logging, sys
from pathlib import Path
from eyas.target.warm_server import WarmServer
from fake_server import probe
settings = json.loads(sys.argv[1])
logging.basicConfig(level=logging.INFO)
with WarmServer(**{**settings, "folder": Path(settings["folder"])}, probe=probe) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


class Host:
    """A host with two GPUs: what its servers are started with, and what is left of them."""

    def __init__(self, folder):
        self.folder, self.starts, self.clients = folder / "server", folder / "starts.txt", []
        self.mark = f"EYAS_SERVER={self.folder.resolve()}:".encode()

    def settings(self, *flags, model="fake", **changes):
        command = [sys.executable, FAKE, "--port", "{port}", "--starts", self.starts, "--model", model, *flags]
        return {
            "command": [str(part) for part in command],
            "env": {},
            "gpus": 2,
            "fingerprint": {"model": model},
            "folder": str(self.folder),
            "ready_timeout_s": 20,
            "idle_s": 0.5,
            "restarts": 1,
            "restart_window_s": 60,
            "grace_s": 0.3,
            **changes,
        }

    def server(self, *flags, **changes):
        settings = self.settings(*flags, **changes)
        return WarmServer(**{"probe": probe, **settings, "folder": Path(settings["folder"])})

    def client(self, *flags, **changes):
        """A process that is a client until its stdin closes; leads a process group."""
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, json.dumps(self.settings(*flags, **changes))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT / 'tests'}"},
            process_group=0,
        )
        self.clients.append(process)
        return process

    def started(self):
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0

    def state(self, server=None):
        """What server.json says (of the only server, or of this one), also before it says anything."""
        paths = [server.files.state] if server else list(self.folder.glob("*/server.json"))
        assert len(paths) <= 1
        return json.loads(paths[0].read_text()) if paths else {"state": "", "message": ""}

    def processes(self):
        """Living processes of this host's servers: by the mark, or (children without it) by their last argument."""
        found, child = set(), f"\0{self.starts}\0".encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                proc = Path("/proc", pid)
                if self.mark in (proc / "environ").read_bytes() or (proc / "cmdline").read_bytes().endswith(child):
                    found.add(int(pid))
            except OSError:
                continue
        return found

    def is_empty(self):
        """No process of a server is left, nor a keeper."""
        if self.processes():
            return False
        if (path := Files(self.folder, "").keeper_lock).exists():
            if not (lock := hold(path, wait=False)):
                return False
            lock.close()
        return True


@pytest.fixture
def host(tmp_path, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EYAS_GPU_COUNT", "2")
    monkeypatch.setenv("EYAS_GPU_LEASES", str(tmp_path / "leases"))
    host = Host(tmp_path)
    yield host
    for client in host.clients:
        client.kill()
        client.communicate()
    for path in host.folder.glob("*/server.json"):
        state = json.loads(path.read_text())
        if state["state"] in ("starting", "ready") and not host.is_empty():
            os.kill(state["keeper_pid"], signal.SIGTERM)
    try:
        until(host.is_empty)
    finally:
        for pid in host.processes():  # of a test that failed
            os.kill(pid, signal.SIGKILL)


def test_a_client_gets_answers_and_the_server_its_gpus(host):
    with host.server() as server:
        got = ask(server.url, body={"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 50}})
        assert (got["output_ids"], got["meta_info"]["finish_reason"]["type"]) == answer([1, 2, 3], 50)
        assert host.starts.read_text().split()[1] == "0,1"
        until(lambda: host.state()["state"] == "ready")
        state = host.state()
        assert state["url"] == server.url and state["pid"] in host.processes()
        assert os.getpgid(state["pid"]) == state["pgid"] != os.getpgid(state["keeper_pid"])
        assert os.getsid(state["keeper_pid"]) != os.getsid(0)
    until(host.is_empty, 0.5 + SLACK_S)
    assert host.state()["state"] == "gone" and "no client for 0.5 s" in host.state()["message"]


def test_eight_jobs_side_by_side_start_it_once(host):
    clients = [host.client("--delay-s", "0.5", idle_s=5) for _ in range(8)]
    urls = {client.stdout.readline() for client in clients}
    assert len(urls) == 1 and urls != {""} and host.started() == 1


def test_eight_jobs_one_after_the_other_start_it_once(host):
    urls = set()
    for _ in range(8):
        with host.server(idle_s=1.5) as server:
            urls.add(server.url)
        time.sleep(0.25)  # together longer than idle_s
    assert len(urls) == 1 and host.started() == 1


def test_another_server_waits_its_turn_and_is_told_why(host, caplog):
    caplog.set_level(logging.INFO)
    with ThreadPoolExecutor() as pool:
        with host.server(idle_s=60) as first:
            entered = pool.submit(host.server(model="other", idle_s=0).__enter__)
            until(lambda: "it differs in model: 'other' (there: 'fake')" in caplog.text)
            with host.server():  # who comes for the first is served meanwhile
                pass
            assert not entered.done() and host.started() == 1
        second = entered.result(30)  # at once, in spite of idle_s=60
        assert ask(second.url, "/model_info")["model_path"] == "other"
        assert host.started() == 2 and second.url != first.url
        assert host.state(first)["message"] == "no client, and another job waits"
        second.__exit__()


def test_a_server_that_dies_is_started_again_within_bounds(host):
    with host.server("--children", "2", restarts=1) as server:
        for death in (1, 2):
            before = host.processes()
            ask(server.url, "/fault", {"exit_after": 0})
            with pytest.raises(OSError):
                probe(server.url)
            if death == 1:
                server.wait_ready()
                probe(server.url)
                assert host.started() == 2 and host.state()["restarts"] == 1
                assert not before & host.processes()
        with pytest.raises(EyasError, match="death 2 within 60 s, 1 restarts are allowed") as error:
            server.wait_ready()
        assert "exited with code 3" in str(error.value) and "asked to crash" in str(error.value)
        assert not host.processes()
    with host.server():  # a later job tries afresh
        assert host.started() == 3


def test_deaths_outside_the_window_are_forgotten(host):
    with host.server(restarts=1, restart_window_s=0.2) as server:
        for _ in range(3):
            ask(server.url, "/fault", {"exit_after": 0})
            with pytest.raises(OSError):
                probe(server.url)
            server.wait_ready()
            time.sleep(0.2)
    assert host.started() == 4


def test_a_server_that_cannot_start_is_not_tried_again(host):
    with (
        pytest.raises(EyasError, match="exited with code 1 before its first answer") as error,
        host.server("--die", "CUDA out of memory"),
    ):
        pass
    assert "CUDA out of memory" in str(error.value) and "--model fake" in str(error.value)
    assert host.started() == 1
    until(host.is_empty)
    with pytest.raises(EyasError, match="cannot start no-such-python"), host.server(command=["no-such-python"]):
        pass


def test_no_answer_in_time_is_an_error(host):
    start = time.monotonic()
    with (
        pytest.raises(EyasError, match="gave no answer within 1 s") as error,
        host.server("--never-ready", ready_timeout_s=1),
    ):
        pass
    assert time.monotonic() - start < 20 and "listening on" in str(error.value)
    assert not host.processes()


def test_a_server_that_hangs_is_an_error_for_its_client(host):
    def impatient(url):
        ask(url, body={"input_ids": [1]}, timeout_s=0.2)

    with host.server(probe=impatient, ready_timeout_s=2, idle_s=0) as server:
        until(lambda: host.state()["state"] == "ready")
        ask(server.url, "/fault", {"answer_s": 60})
        with pytest.raises(EyasError, match="gives no answer since 2 s"):
            server.wait_ready()


def test_a_server_that_came_back_unasked_is_not_late(host):
    with host.server(ready_timeout_s=1) as server:
        ask(server.url, "/fault", {"exit_after": 0})
        with pytest.raises(OSError):
            probe(server.url)
        time.sleep(2)  # the client has other things to do
        server.wait_ready()
        assert host.started() == 2


def test_a_probe_may_refuse_the_server_for_good(host):
    def wrong_version(url):
        raise EyasError("SGLang 0.5.22 answers, 0.5.23 is expected")

    with pytest.raises(EyasError, match="0.5.22 answers"), host.server(probe=wrong_version, idle_s=0):
        pass


def test_a_port_that_somebody_took_is_replaced(host, tmp_path):
    with host.server("--port-taken", str(tmp_path / "taken")):
        assert host.started() == 2
        assert host.state()["restarts"] == 1


def test_an_answer_of_somebody_elses_server_on_the_port_does_not_count(host):
    """A long load, and meanwhile another process listens on the port: its answers are not the server's."""
    asked = []
    with ThreadPoolExecutor() as pool:
        entered = pool.submit(
            host.server("--delay-s", "1", probe=lambda url: [asked.append(url), probe(url)]).__enter__
        )
        until(lambda: host.started() == 1)
        (log,) = host.folder.glob("*/server.log")
        port = log.read_text().partition("'--port', '")[2].partition("'")[0]
        other = subprocess.Popen([sys.executable, FAKE, "--port", port])
        try:
            until(lambda: host.started() == 2)
            assert not any(url.endswith(f":{port}") for url in asked)
        finally:
            other.kill()
            other.wait()
        server = entered.result(20)
        assert not server.url.endswith(f":{port}")
        server.__exit__()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_when_the_job_is_killed(host, number):
    """Its children neither, though they left the group, lost their parent and ignore SIGTERM."""
    client = host.client("--children", "3", "--stubborn", idle_s=0.3)
    assert client.stdout.readline().startswith("http")
    until(lambda: len(host.processes()) == 4)
    os.killpg(client.pid, number)
    client.wait(60)
    until(host.is_empty, 0.3 + 0.3 + SLACK_S)


def test_the_job_that_started_it_may_end_while_others_use_it(host):
    first = host.client(idle_s=0.3)
    url = first.stdout.readline().strip()
    with host.server() as server:
        os.killpg(first.pid, signal.SIGINT)
        first.wait(60)
        time.sleep(0.5)
        assert server.url == url == server.wait_ready()
        assert host.started() == 1


def test_no_orphan_when_the_keeper_is_killed(host):
    with host.server("--children", "3", "--stubborn") as server:
        until(lambda: host.state()["state"] == "ready")
        before = host.processes()
        os.kill(host.state()["keeper_pid"], signal.SIGKILL)
        until(lambda: not before & host.processes(), 0.3 + SLACK_S)  # the guardian's work; nobody else looks after them
        server.wait_ready()  # by another keeper, which counts a death
        probe(server.url)
        until(lambda: host.state()["state"] == "ready")
        assert len(host.state()["deaths"]) == 1 and host.started() == 2
        os.kill(host.state()["keeper_pid"], signal.SIGKILL)
        until(lambda: not host.processes(), 0.3 + SLACK_S)
        with pytest.raises(EyasError, match="died 2 times"):
            server.wait_ready()
        until(host.is_empty, SLACK_S)


def test_no_orphan_when_the_guardian_is_killed(host):
    with host.server("--children", "3", "--stubborn") as server:
        before = host.processes()
        guardian = int(Path(f"/proc/{host.state()['pid']}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(guardian, signal.SIGKILL)
        until(lambda: host.started() == 2)
        server.wait_ready()
        assert not before & host.processes()
    until(host.is_empty)


def test_what_a_killed_keeper_and_guardian_left_is_ended_by_the_next(host):
    with host.server("--children", "2", "--stubborn") as server:
        before = host.processes()
        guardian = int(Path(f"/proc/{host.state()['pid']}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in (host.state()["keeper_pid"], guardian):
            os.kill(pid, signal.SIGKILL)
        until(lambda: host.state()["pid"] not in host.processes())
        server.wait_ready()
        assert not before & host.processes()


def test_an_idle_server_goes_at_once_when_another_job_waits_for_its_gpus(host):
    with ThreadPoolExecutor() as pool:
        with host.server(idle_s=60):
            got = pool.submit(lambda: lease(1, poll_s=0.02).__enter__())
            time.sleep(0.3)
            assert not got.done()  # while there is a client, it stays
        assert got.result(30) == ["0"]
    assert host.state()["message"] == "no client, and another job waits"


def test_a_server_waits_for_gpus_that_a_job_holds(host):
    with ThreadPoolExecutor() as pool:
        with lease(1):
            entered = pool.submit(host.server(ready_timeout_s=2).__enter__)
            until(Files(host.folder, "").keeper_lock.exists)
            until(lambda: "waiting for 2 GPUs" in host.state()["message"])
            time.sleep(0.3)
            assert host.started() == 0
        entered.result(30).__exit__()
        assert host.started() == 1


def test_a_server_that_is_about_to_go_takes_no_client(host):
    """It answers for grace_s yet, since it ignores SIGTERM; who comes then gets another."""
    for gap_s in (0.0, 0.1, 0.2, 0.3):
        with host.server("--stubborn", idle_s=0, grace_s=0.4) as server:
            time.sleep(0.6)
            probe(server.url)
        time.sleep(gap_s)


def test_no_client_is_lost_while_the_keeper_goes(host):
    """idle_s=0: each keeper wants to go the moment that the next clients come."""

    def job(k):
        for turn in range(4):
            with host.server(idle_s=0) as server:
                probe(server.url)
            time.sleep(0.03 * ((k * 7 + turn * 3) % 5))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(job, range(3)))
    until(host.is_empty, SLACK_S)


def test_no_orphan_when_snakemake_is_killed(host, tmp_path):
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "settings.json").write_text(json.dumps(host.settings("--children", "2", idle_s=0.3)))
    (tmp_path / "Snakefile").write_text(
        "rule ask:\n    output: 'answers'\n"
        f"    shell: 'sleep 1000 | {sys.executable} client.py \"$(cat settings.json)\" > {{output}}; true'\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT / 'tests'}"}
    snakemake = subprocess.Popen(
        [SNAKEMAKE, "--cores", "1", "-q", "all", "--", "ask"], cwd=tmp_path, env=env, start_new_session=True
    )
    try:
        until(lambda: (tmp_path / "answers").exists() and (tmp_path / "answers").read_text(), 30)
        snakemake.kill()
        snakemake.wait()
        until(host.is_empty, 0.3 + 0.5 + SLACK_S)
    finally:
        threading.Thread(target=snakemake.wait).start()
        os.killpg(snakemake.pid, signal.SIGKILL)
