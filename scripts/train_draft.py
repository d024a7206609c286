"""Train the draft, or go on with its training; on several GPUs by torchrun, which this command starts itself.

    python scripts/train_draft.py --output-dir draft

Reads hidden_states/, draft_vocab/ and target/; writes <output-dir>/{model.safetensors,config.json,metrics.jsonl,
training.json}. Checkpoints lie in state/train_draft/.
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from eyas.config import load
from eyas.errors import run_command
from eyas.gpus import lease
from eyas.progress import log_to_stderr
from eyas.workers import end_with_parent


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=Path, default=Path("hidden_states"), help="default: hidden_states")
    parser.add_argument("--vocabulary", type=Path, default=Path("draft_vocab/map.safetensors"))
    parser.add_argument("--head", type=Path, default=Path("target/head.safetensors"), help="see fetch_head.py")
    parser.add_argument("--tokenizer", type=Path, default=Path("target/tokenizer"), help="default: target/tokenizer")
    parser.add_argument("--state", type=Path, default=Path("state/train_draft"), help="default: state/train_draft")
    parser.add_argument("--output-dir", type=Path, default=Path("draft"), help="default: draft")
    parser.add_argument("--threads", type=int, help="of each process on a CPU; default: as torch chooses")
    parser.add_argument("--processes", type=int, help="default: train.gpus; more than one on a CPU speak by gloo")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).train_settings()
    gpus = settings["train"]["gpus"]
    processes = args.processes or max(1, gpus)
    if processes > 1 and "RANK" not in os.environ:
        with lease(gpus) as devices:
            run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
            chosen = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
            command = [*run, *sys.argv] if argv is None else [*run, __file__, *argv]
            tied = partial(end_with_parent, os.getpid())
            return subprocess.run(command, env={**os.environ, **chosen}, preexec_fn=tied, check=False).returncode
    with lease(gpus if "RANK" not in os.environ else 0) as devices:
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        return work(args, settings)


def work(args, settings: dict) -> int:
    if "RANK" in os.environ:
        end_with_parent(os.getppid())
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")  # see generate_responses.py
    import torch

    from eyas.eagle3.train import train
    from eyas.eagle3.trainer import Stopped

    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        train(settings, args.states, args.vocabulary, args.head, args.tokenizer, args.state, args.output_dir)
    except Stopped as stopped:
        print(f"error: {stopped}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    run_command(main)
