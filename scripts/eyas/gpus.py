"""Leases of a host's GPUs: whoever holds one has the device for itself, until it lets go or dies.

    with lease(2) as devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)

A lease is an flock on one file for each device, in a folder that all jobs of a user on a host share (EYAS_GPU_LEASES,
or a folder in the temporary directory). The kernel lets go of it when its holder dies, however it dies. A child made by
os.fork shares the hold; a program started by subprocess does not.

Under Slurm only what the scheduler gave is handed out, and each job step keeps leases of its own: two jobs on a host
may both call their device 0.
"""

import fcntl
import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from eyas.errors import EyasError


@contextmanager
def lease(
    n: int,
    *,
    ids: Iterable[str] | None = None,
    folder: Path | None = None,
    poll_s: float = 0.2,
    while_waiting: Callable[[], None] | None = None,
) -> Iterator[list[str]]:
    """Hold `n` devices, all or none; waits until they are free, and yields their ids for CUDA_VISIBLE_DEVICES.

    ids: the devices to choose from; default: `visible_gpus()`. while_waiting is called at each poll and may raise, to
    stop waiting. EyasError when more are asked for than exist.
    """
    if n <= 0:
        yield []
        return
    ids = list(dict.fromkeys(visible_gpus() if ids is None else ids))
    if n > len(ids):
        raise EyasError(
            f"{n} GPUs are asked for, {len(ids)} can be seen ({', '.join(ids) or 'none'}): ask for fewer, "
            "or check CUDA_VISIBLE_DEVICES and `nvidia-smi -L`"
        )
    folder = Path(folder) if folder else lease_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = {i: folder / f"gpu-{name}" for i, name in _names(ids).items()}
    with ExitStack() as held, ExitStack() as waiting:
        announced = False
        while not (taken := _take(n, files, folder, held)):
            if not announced:
                waiting.enter_context(_announced(n, files, folder))
                announced = True
                pids = sorted({str(pid) for pid in holders(ids, folder)[0].values() if pid is not None})
                logging.info(
                    "waiting for %d GPUs of %s; held by process %s", n, ", ".join(ids), ", ".join(pids) or "no more"
                )
            if while_waiting:
                while_waiting()
            time.sleep(poll_s)
        waiting.close()
        yield taken


def others_wait(folder: Path | None = None, ids: Iterable[str] | None = None) -> bool:
    """Whether a live process waits for a lease; with `ids`: for one that these devices could serve."""
    folder = Path(folder) if folder else lease_folder()
    if not any(folder.glob("waiting-*")):
        return False
    mine = None if ids is None else set(_names(list(ids)).values())
    with hold(folder / "gate"):
        for path in folder.glob("waiting-*"):
            if free := hold(path, wait=False):  # its process is dead
                free.close()
            elif mine is None or mine & set(json.loads(path.read_text())["gpus"]):
                return True
    return False


def holders(ids: Iterable[str], folder: Path | None = None) -> tuple[dict[str, int | None], dict[int, int]]:
    """({device: process that holds it, None when it is free}, {process that waits: for how many}); makes no file.

    A process that is named wrongly in its file is 0.
    """
    folder = Path(folder) if folder else lease_folder()
    held: dict[str, int | None] = dict.fromkeys(ids)
    waiting: dict[int, int] = {}
    if not (folder / "gate").exists():
        return held, waiting
    with hold(folder / "gate", shared=True):
        for i, name in _names(list(held)).items():
            if _is_held(path := folder / f"gpu-{name}"):
                text = path.read_text(errors="replace").strip()
                held[i] = int(text) if text.isdecimal() else 0
        for path in folder.glob("waiting-*"):
            if _is_held(path):
                with suppress(FileNotFoundError):  # it waits no longer
                    waiting[int(path.name.split("-")[1])] = json.loads(path.read_text())["n"]
    return held, waiting


def visible_gpus() -> list[str]:
    """What this process may use: CUDA_VISIBLE_DEVICES, else EYAS_GPU_COUNT (for tests), else nvidia-smi's list."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        ids = [i.strip() for i in visible.split(",")]
        # CUDA ignores what follows the first entry that names no device.
        end = next((k for k, i in enumerate(ids) if i in ("", "-1", "NoDevFiles")), len(ids))
        return ids[:end]
    if count := os.environ.get("EYAS_GPU_COUNT"):
        return [str(i) for i in range(int(count))]
    return list(_uuids().values())


def lease_folder() -> Path:
    """Where this host's leases are kept."""
    folder = os.environ.get("EYAS_GPU_LEASES") or Path(tempfile.gettempdir()) / f"eyas-gpus-{os.getuid()}"
    return Path(folder) / (slurm_step() or "")


def slurm_step() -> str | None:
    """A name for the Slurm job's step that this process runs in; None outside of Slurm."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"slurm-{job}.{os.environ.get('SLURM_STEP_ID', 'batch')}" if job else None


def hold(path: Path, *, shared: bool = False, wait: bool = True) -> IO[str] | None:
    """Open `path` (made when missing) and flock it; closing the file lets go. None when not `wait` and it is taken."""
    file = open(path, "a+")  # noqa: SIM115 (the caller closes it)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    return file


def _take(n: int, files: dict[str, Path], folder: Path, held: ExitStack) -> list[str]:
    """`n` free devices, now theirs who asked (their files go to `held`); [] when there are not so many."""
    with hold(folder / "gate"), ExitStack() as attempt:  # one process picks at a time: none holds a part and waits
        taken = []
        for i, path in files.items():
            if file := hold(path, wait=False):
                attempt.enter_context(file)
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
                taken.append(i)
            if len(taken) == n:
                held.enter_context(attempt.pop_all())
                return taken
    return []


def _is_held(path: Path) -> bool:
    """Whether somebody holds the file; it is not made when it is missing."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def _announced(n: int, files: dict[str, Path], folder: Path) -> Iterator[None]:
    """Say that this process waits: a locked file, for others_wait."""
    with ExitStack() as stack:
        with hold(folder / "gate"):
            for path in folder.glob("waiting-*"):
                if left_behind := hold(path, wait=False):
                    path.unlink()
                    left_behind.close()
            name = f"waiting-{os.getpid()}-"
            note = stack.enter_context(tempfile.NamedTemporaryFile("w", prefix=name, dir=folder, delete=False))
            stack.callback(Path(note.name).unlink, missing_ok=True)  # while it is locked: others remove what is not
            fcntl.flock(note, fcntl.LOCK_EX)
            json.dump({"n": n, "gpus": [path.name.removeprefix("gpu-") for path in files.values()]}, note)
            note.flush()
        yield


def _names(ids: list[str]) -> dict[str, str]:
    """{id: one name for the device, whether it was given as an index or as a UUID}, fit for a file name."""
    index = {uuid: i for i, uuid in enumerate(_uuids())} if any(i.startswith("GPU-") for i in ids) else {}
    return {i: str(index.get(i, i)).replace("/", "_") for i in ids}


def _uuids() -> dict[str, str]:
    """{UUID: index} of the host's GPUs, as nvidia-smi lists them; empty without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return {}
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=120)
    if listed.returncode:
        raise EyasError(f"`nvidia-smi -L` failed: {(listed.stdout + listed.stderr).strip()}")
    # GPU 0: NVIDIA H200 (UUID: GPU-6f3c…); lines of MIG devices are indented
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return {line.rpartition("UUID: ")[2].rstrip(") "): line[4:].partition(":")[0] for line in lines}
