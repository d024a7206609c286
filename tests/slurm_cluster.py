"""A Slurm of one node for tests: real daemons with eight pretended GPUs, in a folder of its own.

    with slurm_cluster(folder) as env:  # SLURM_CONF and the rest of the environment
        subprocess.run(["sbatch", …], env=env)

The node pretends to have more cores and memory than the machine. Nothing is limited by cgroups: what a job is given is
what Slurm tells it. Needs root, and the packages slurm-wlm and munge (Debian, Ubuntu).
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from eyas.target.keeper import free_port
from waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo")
CONF = """\
ClusterName=pretended
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1000
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
MinJobAge=300
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} CoresPerSocket={cpus} RealMemory=1000000 Gres=gpu:{gpus}
PartitionName=pretended Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here; "" when there can."""
    lacking = [program for program in PROGRAMS if not _find(program)]
    if lacking:
        return f"no {', '.join(lacking)}: a real Slurm is tested where `apt-get install slurm-wlm munge` was run"
    return "" if os.geteuid() == 0 else "not root: a Slurm for tests is started by root alone"


@contextmanager
def slurm_cluster(folder: Path, gpus: int = 8, cpus: int = 64):
    """Start munge and Slurm below `folder`; yields the environment of commands; leaves no process behind."""
    conf = folder / "slurm.conf"
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SRUN"))}
    env["SLURM_CONF"] = str(conf)
    env["PATH"] = f"{folder}/bin:{env.get('PATH', os.defpath)}"
    _write_files(folder, gpus, cpus)
    munge = folder / "munge"
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    daemons = {
        "munged": ["--foreground", "--force", *(f"--{option}={munge / name}" for option, name in files.items())],
        "slurmctld": ["-D", "-f", conf],
        "slurmd": ["-D", "-f", conf, "-N", _host()],
    }
    with ExitStack() as stack:
        stack.callback(_end_processes_of, conf)
        for name, arguments in daemons.items():
            stack.enter_context(_daemon(_find(name), arguments, env, folder / f"{name}.log"))
            if name == "munged":
                until((munge / "socket").exists)
        try:
            until(lambda: "idle" in _said("sinfo", "--noheader", "--format=%T", env=env), 30)
        except AssertionError:
            logs = "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
            raise AssertionError(f"the node of the Slurm in {folder} does not come up:\n{logs}") from None
        stack.callback(_cancel_all, env)
        yield env


def _write_files(folder: Path, gpus: int, cpus: int) -> None:
    for name in ("state", "spool", "devices", "munge", "bin"):
        (folder / name).mkdir(parents=True)
    ports = {"controller_port": free_port(), "node_port": free_port()}
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=_host(), gpus=gpus, cpus=cpus, **ports))
    version = _said(_find("slurmd"), "-V", env=os.environ).split()[-1]  # slurm-wlm 22.05.8
    knows_disabled = tuple(map(int, version.split(".")[:2])) >= (23, 11)
    (folder / "cgroup.conf").write_text(f"{'CgroupPlugin=disabled' if knows_disabled else 'CgroupAutomount=no'}\n")
    for k in range(gpus):
        os.mknod(folder / f"devices/gpu{k}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # Slurm names no plain files
    (folder / "gres.conf").write_text(f"NodeName={_host()} Name=gpu File={folder}/devices/gpu[0-{gpus - 1}]\n")
    # Snakemake starts srun without the job's SLURM_* variables, and with them the way to this Slurm.
    (folder / "bin/srun").write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {_find("srun")} "$@"\n')
    (folder / "bin/srun").chmod(0o755)
    (folder / "munge/key").write_bytes(os.urandom(1024))
    (folder / "munge/key").chmod(0o600)
    (folder / "munge").chmod(0o711)


@contextmanager
def _daemon(program: str, arguments: list, env: dict, log: Path):
    with open(log, "ab") as output:
        process = subprocess.Popen([program, *map(str, arguments)], env=env, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cancel_all(env: dict) -> None:
    subprocess.run(["scancel", "--user=root"], env=env, check=False)
    with suppress(AssertionError):  # what is left is killed
        until(lambda: not _said("squeue", "--noheader", env=env), 15)


def _end_processes_of(conf: Path) -> None:
    """Kill whatever still has this Slurm in its environment: a step's daemon, a job."""
    wanted = b"\0SLURM_CONF=%s\0" % str(conf).encode()

    def left() -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # gone meanwhile
                if wanted in b"\0" + (process / "environ").read_bytes():
                    found.append(int(process.name))
        return found

    def none_left() -> bool:
        for pid in (pids := left()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    until(none_left)


def _find(program: str) -> str | None:
    """Daemons lie where only root's PATH leads."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _said(*command, env) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout
