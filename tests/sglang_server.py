"""Real SGLang on a CPU, for tests: `make sglang-cpu` makes its environment, tests/sglang_cpu says how it can run there.

with SglangCpu(model, tmp_path / "server.log") as server:
    status, answer = server.post("/generate", {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 8}})
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
import torch

from eyas.compute import bf16_is_fast
from eyas.target.weights import model_from_gguf

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv-sglang-cpu/bin/python"
READY_TIMEOUT_S = 240
STOP_TIMEOUT_S = 10


def cpu_flags() -> dict[str, bool | int | str]:
    """Flags of sglang.launch_server for a small Llama on a CPU, as `target.sglang.flags` has them."""
    return {
        "device": "cpu",
        **({} if bf16_is_fast(torch.device("cpu")) else {"dtype": "float32"}),
        "attention-backend": "torch_native",
        "cuda-graph-backend-decode": "disabled",
        "cuda-graph-backend-prefill": "disabled",
        "max-total-tokens": 16384,  # without it the KV cache takes most of the memory
        "max-running-requests": 8,
        "random-seed": 0,
    }


def cpu_env() -> dict[str, str]:
    """What the server's environment needs besides, as `target.sglang.env` has it."""
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(ROOT / "tests/sglang_cpu"),
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",  # compiling costs minutes, and needs a C++ compiler
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin make a busy machine 15 times slower
        "OMP_NUM_THREADS": str(os.cpu_count()),  # tests have fewer
    }


def require_sglang_cpu() -> None:
    """Skip the test when the environment is missing; fail it when EYAS_REQUIRE_SGLANG=1."""
    if not (PYTHON.parents[1] / ".ready").is_file():
        reason = "real SGLang on a CPU is not installed (2.5 GB): `make sglang-cpu` makes .venv-sglang-cpu"
        if os.environ.get("EYAS_REQUIRE_SGLANG") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def shared_model(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `gguf`'s model, made once for all workers of a test run (20 s, 270 MB)."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "model"
    with open(shared / "model.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "manifest.json").is_file():
            model_from_gguf(gguf, folder)
    return folder


class SglangCpu:
    """A server that serves `model` (a folder) while the block runs; `flags` are added to cpu_flags(), None removes one.

    url: http://127.0.0.1:<a free port>; process: the server; log: the file with all that it prints.
    """

    def __init__(self, model: Path, log: Path, flags: dict | None = None, env: dict | None = None):
        self.model, self.log, self.env = Path(model), Path(log), {**cpu_env(), **(env or {})}
        self.flags = {**cpu_flags(), **(flags or {})}

    def __enter__(self) -> Self:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [str(PYTHON), "-m", "sglang.launch_server", "--model-path", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        for name, value in self.flags.items():
            command += [f"--{name}"] if value is True else [f"--{name}", str(value)] if value is not None else []
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                start_new_session=True,  # its workers are processes of their own: the whole group is ended
            )
        try:
            self._wait_for_an_answer()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def post(self, path: str, body: dict, timeout_s: float = 300) -> tuple[int, dict]:
        """(HTTP status, JSON of the body), also of refusals."""
        data = json.dumps(body).encode()
        return self._ask(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}), timeout_s)

    def get(self, path: str, timeout_s: float = 60) -> tuple[int, dict]:
        """(HTTP status, JSON of the body), also of refusals."""
        return self._ask(urllib.request.Request(self.url + path), timeout_s)

    def _ask(self, request: urllib.request.Request, timeout_s: float) -> tuple[int, dict]:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.loads(refusal.read())

    def _wait_for_an_answer(self) -> None:
        end = time.monotonic() + READY_TIMEOUT_S
        ask = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"SGLang ended with {self.process.returncode} before it answered:\n{self._tail()}")
            with suppress(OSError, ValueError):  # nobody listens yet; not JSON yet
                if self.post("/generate", ask, timeout_s=60)[0] == 200:
                    return
            time.sleep(0.25)
        raise RuntimeError(f"SGLang gave no answer in {READY_TIMEOUT_S} s:\n{self._tail()}")

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-40:]
        return "\n".join([f"{self.log}, its end:", *lines])

    def _stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
