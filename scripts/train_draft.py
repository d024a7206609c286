"""Train the draft, or go on with its training; on several GPUs or nodes by torchrun, which this command starts itself.

    python scripts/train_draft.py --output-dir draft

Reads hidden_states/, draft_vocab/ and target/; writes <output-dir>/{model.safetensors,config.json,metrics.jsonl,
training.json}. Checkpoints lie in state/train_draft/. With capture.window it captures the training shards itself, ahead
of the training (capture_ahead.py): side by side when the host has GPUs for both, else in turns.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from eyas.commands import add_path, add_settings, add_threads, log_to_stderr, parser_of, run_command
from eyas.config import Target, Training, load
from eyas.errors import EyasError
from eyas.gpus import lease, slurm_step, visible_gpus
from eyas.target.processes import free_port
from eyas.workers import end_with_parent

STARVED = 75  # exit code of a training that waits for the next shard of a window
POLL_S = 1.0


def main(argv=None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = arguments(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).train_settings()
    if "RANK" in os.environ:  # started by torchrun
        end_with_parent(os.getppid())
        return work(args, settings)
    if settings["capture"]["window"] is None or args.in_turn is not None:
        return trained(args, argv, settings)
    return in_turns(args, argv, settings) if needs_turns(settings) else side_by_side(args, argv, settings)


def arguments(argv) -> argparse.Namespace:
    parser = parser_of(__doc__)
    add_path(parser, "--states", "hidden_states")
    add_path(parser, "--corpus", "corpus")
    add_path(parser, "--vocabulary", "draft_vocab/map.safetensors")
    add_path(parser, "--head", "target/head.safetensors", "see fetch_head.py")
    add_path(parser, "--tokenizer", "target/tokenizer")
    add_path(parser, "--state", "state/train_draft")
    add_path(parser, "--output-dir", "draft")
    add_threads(parser, "each process on a CPU")
    parser.add_argument("--processes", type=int, help="default: train.gpus; more than one on a CPU speak by gloo")
    parser.add_argument("--rendezvous", help="host:port where train.nodes meet; default: srun starts them")
    parser.add_argument("--in-turn", choices=("wait", "leave"), help="of a window: when the next shard is not there")
    add_settings(parser)
    return parser.parse_args(argv)


def trained(args, argv: list[str], settings: dict) -> int:
    """Hold the GPUs and train, in this process or in torchrun's."""
    training = Training.model_validate(settings["train"])
    gpus, nodes = training.gpus, training.nodes
    processes = args.processes or max(1, gpus)
    if nodes > 1 and args.rendezvous is None:
        return on_nodes(args, argv, settings, processes)
    with lease(gpus) as devices:
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        if processes == nodes == 1:
            return work(args, settings)
        meeting = ["--standalone"]
        if nodes > 1:
            meeting = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={args.rendezvous}"]
        run = [sys.executable, "-m", "torch.distributed.run", *meeting, f"--nproc-per-node={processes}"]
        return subprocess.run([*run, __file__, *argv], preexec_fn=tied(), check=False).returncode


def on_nodes(args, argv: list[str], settings: dict, processes: int) -> int:
    """Let Slurm start this command once on each node of its job; they meet on this one, the job's first."""
    nodes, gpus = settings["train"]["nodes"], settings["train"]["gpus"]
    if slurm_step() is None or not shutil.which("srun"):
        raise EyasError(
            f"train.nodes: {nodes}: Slurm alone starts a training on several nodes, and this is none of its jobs: "
            "set the key to 1, or use profiles/slurm"
        )
    run = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    run += [f"--gpus-per-node={gpus}"] if gpus else []
    run += [f"--cpus-per-task={args.threads * processes}"] if args.threads else []
    meeting = f"--rendezvous={socket.gethostname()}:{free_port()}"
    return subprocess.run([*run, sys.executable, __file__, *argv, meeting], preexec_fn=tied(), check=False).returncode


def work(args, settings: dict) -> int:
    import torch

    from eyas.compute import keep_freed_memory
    from eyas.eagle3.train import Folders, train
    from eyas.eagle3.trainer import Stopped
    from eyas.window import Starved

    keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    at = Folders(args.states, args.corpus, args.vocabulary, args.head, args.tokenizer, args.state, args.output_dir)
    try:
        train(settings, at, alive=None if args.in_turn == "leave" else lambda: None)
    except Stopped as stopped:
        print(f"error: {stopped}", file=sys.stderr)
        return 130
    except Starved:
        return STARVED
    return 0


# A window: the shards are captured by another process


def needs_turns(settings: dict) -> bool:
    """Whether the host lacks GPUs to capture and to train at once."""
    target = settings["target"]
    served = target["engine"] == "sglang" and target["sglang"]["url"] is None
    needed = (Target.model_validate(target).sglang.all_gpus if served else 0) + settings["train"]["gpus"]
    return needed > len(visible_gpus())


def side_by_side(args, argv: list[str], settings: dict) -> int:
    """Capture ahead while training; when one fails, the other ends."""
    capturing = subprocess.Popen(ahead(args, settings), preexec_fn=tied())
    training = subprocess.Popen([sys.executable, __file__, *argv, "--in-turn", "wait"], preexec_fn=tied())
    try:
        while (code := training.poll()) is None:
            if capturing.poll():
                raise EyasError("the training shards could not be captured: see above")
            time.sleep(POLL_S)
        return code
    finally:
        for process in (training, capturing):
            process.terminate()
            process.wait()


def in_turns(args, argv: list[str], settings: dict) -> int:
    """Fill the window, train on it, and so on: each has the GPUs for itself."""
    while True:
        if code := subprocess.run([*ahead(args, settings), "--fill"], preexec_fn=tied(), check=False).returncode:
            return code
        training = [sys.executable, __file__, *argv, "--in-turn", "leave"]
        code = subprocess.run(training, preexec_fn=tied(), check=False).returncode
        if code != STARVED:
            return code


def ahead(args, settings: dict) -> list[str]:
    places = {name: str(getattr(args, name)) for name in ("states", "corpus", "vocabulary", "state")}
    places |= {"settings": json.dumps(settings)} | ({"threads": str(args.threads)} if args.threads else {})
    flags = [word for name, value in places.items() for word in (f"--{name}", value)]
    return [sys.executable, str(Path(__file__).with_name("capture_ahead.py")), *flags]


def tied():
    return partial(end_with_parent, os.getpid())


if __name__ == "__main__":
    run_command(main)
