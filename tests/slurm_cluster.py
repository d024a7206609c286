"""A small Slurm for tests: real daemons, each node with eight pretended GPUs, in a folder of its own.

    with slurm_cluster(folder) as env:  # SLURM_CONF and the rest of the environment
        subprocess.run(["sbatch", …], env=env)

Nodes pretend to have more cores and memory than the machine, which is each of them. Nothing is limited by cgroups: what
a job is given is what Slurm tells it. Needs root, and the packages slurm-wlm and munge (Debian, Ubuntu).
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from eyas.target.processes import free_port
from waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo")
CONF = """\
ClusterName=pretended
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
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
PartitionName=pretended Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 CoresPerSocket=64 RealMemory=1000000"
GPUS = 8
# Snakemake starts srun without the job's SLURM_* variables, and with them the way to this Slurm.
SRUN = """\
#!/bin/sh
SLURM_CONF={conf} exec {program} "$@"
"""
# Snakemake asks for its jobs (--name RUN), and when none has ended asks again 10 s later, 20 s later, and so on: it is
# answered when all have ended, or after half a minute.
SQUEUE = """\
#!/bin/sh
run=${{*##*--name }}
if [ "$run" != "$*" ]; then
  for _ in $(seq 100); do
    [ -z "$({program} --noheader --name "$run")" ] && break
    sleep 0.3
  done
fi
exec {program} "$@"
"""


def missing() -> str:
    """Why there can be no Slurm here; "" when there can."""
    lacking = [program for program in PROGRAMS if not _find(program)]
    if lacking:
        return f"no {', '.join(lacking)}: a real Slurm is tested where `apt-get install slurm-wlm munge` was run"
    return "" if os.geteuid() == 0 else "not root: a Slurm for tests is started by root alone"


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 1):
    """Start munge and Slurm below `folder`; yields the environment of commands; leaves no process behind."""
    conf = folder / "slurm.conf"
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SRUN"))}
    env["SLURM_CONF"] = str(conf)
    env["PATH"] = f"{folder}/bin:{env.get('PATH', os.defpath)}"
    names = [f"pretended{k}" for k in range(nodes)]
    _write_files(folder, names)
    munge = folder / "munge"
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    daemons = [
        ("munged", "--foreground", "--force", *(f"--{option}={munge / name}" for option, name in files.items())),
        ("slurmctld", "-D", "-f", conf),
        *(("slurmd", "-D", "-f", conf, "-N", name) for name in names),
    ]
    with ExitStack() as stack:
        stack.callback(_end_processes_of, conf)
        for k, (name, *arguments) in enumerate(daemons):
            stack.enter_context(_daemon(_find(name), arguments, env, folder / f"{k}-{name}.log"))
            if name == "munged":
                until((munge / "socket").exists)
        try:
            until(
                lambda: _said("sinfo", "--Node", "--noheader", "--format=%T", env=env).split() == ["idle"] * nodes, 30
            )
        except AssertionError:
            logs = "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
            raise AssertionError(f"the nodes of the Slurm in {folder} do not come up:\n{logs}") from None
        stack.callback(_cancel_all, env)
        yield env


def _write_files(folder: Path, nodes: list[str]) -> None:
    for name in ("state", "devices", "munge", "bin", *(f"spool-{node}" for node in nodes)):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    conf = CONF.format(folder=folder, host=host, controller_port=free_port())
    lines = [f"{NODE.format(name=node, host=host, port=free_port())} Gres=gpu:{GPUS}\n" for node in nodes]
    (folder / "slurm.conf").write_text(conf + "".join(lines))
    version = _said(_find("slurmd"), "-V", env=os.environ).split()[-1]  # slurm-wlm 22.05.8
    knows_disabled = tuple(map(int, version.split(".")[:2])) >= (23, 11)
    (folder / "cgroup.conf").write_text(f"{'CgroupPlugin=disabled' if knows_disabled else 'CgroupAutomount=no'}\n")
    for k in range(GPUS):
        os.mknod(folder / f"devices/gpu{k}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # Slurm names no plain files
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/devices/gpu[0-{GPUS - 1}]\n")
    for program, script in {"srun": SRUN, "squeue": SQUEUE}.items():
        (folder / "bin" / program).write_text(script.format(conf=folder / "slurm.conf", program=_find(program)))
        (folder / "bin" / program).chmod(0o755)
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


def _said(*command, env) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout
