"""Capture the target's hidden states on one shard of the corpus; goes on where it was interrupted.

    python scripts/capture_states.py --split train --shard 3

Reads corpus/<split>.parquet; writes hidden_states/<split>/<shard>-of-<shards>.safetensors and statistics beside it.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path

from eyas.capture import capture_shard
from eyas.config import Capture, Target, load
from eyas.errors import run_command
from eyas.layers import Shape, layers_of
from eyas.progress import log_to_stderr
from eyas.states import shard_path
from eyas.target.head import Head
from eyas.target.launch import Capturing, open_engine


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("train", "heldout"), required=True)
    parser.add_argument(
        "--shard", type=int, required=True, help="from 0 on; how many there are, the configuration says"
    )
    parser.add_argument("--corpus", type=Path, default=Path("corpus"), help="default: corpus")
    parser.add_argument("--output-dir", type=Path, default=Path("hidden_states"), help="default: hidden_states")
    parser.add_argument("--tokenizer", type=Path, default=Path("target/tokenizer"), help="default: target/tokenizer")
    parser.add_argument("--head", type=Path, default=Path("target/head.safetensors"), help="see fetch_head.py")
    parser.add_argument("--state", type=Path, default=Path("state"), help="servers and their logs; default: state")
    parser.add_argument("--threads", type=int, help="of the embedded engine; default: as torch chooses")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    args = parser.parse_args(argv)
    log_to_stderr()
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")  # see generate_responses.py
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)  # of the judge, too: beside a server it must not spin
    settings = args.settings or load(args.configfile).capture_settings()
    capture, target = Capture.model_validate(settings["capture"]), Target.model_validate(settings["target"])
    shape = Shape.of(args.tokenizer, Path(target.model))
    layers, shards = layers_of(shape, capture.layers), capture.counts[args.split]
    capturing = Capturing(layers, layers == layers_of(shape, None), shape.architecture, capture.flags)
    capture_shard(
        settings,
        args.corpus / f"{args.split}.parquet",
        layers,
        Head.load(args.head),
        args.shard,
        shards,
        partial(open_engine, target, args.state / "server", args.threads, capturing),
        shard_path(args.output_dir / args.split, args.shard, shards),
    )
    return 0


if __name__ == "__main__":
    run_command(main)
