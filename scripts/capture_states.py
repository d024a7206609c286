"""Capture the target's hidden states on one shard of the corpus; goes on where it was interrupted.

    python scripts/capture_states.py --split train --shard 3

Reads corpus/<split>.parquet; writes hidden_states/<split>/<shard>-of-<shards>.safetensors and statistics beside it.
"""

from functools import partial
from pathlib import Path

from eyas.capture import capture_shard
from eyas.commands import add_path, add_settings, add_threads, log_to_stderr, parser_of, run_command
from eyas.config import Capture, Target, load
from eyas.layers import Shape, layers_of
from eyas.states import shard_path
from eyas.target.head import Head
from eyas.target.launch import Capturing, open_engine


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--split", choices=("train", "heldout"), required=True)
    parser.add_argument(
        "--shard", type=int, required=True, help="from 0 on; how many there are, the configuration says"
    )
    add_path(parser, "--corpus", "corpus")
    add_path(parser, "--output-dir", "hidden_states")
    add_path(parser, "--tokenizer", "target/tokenizer")
    add_path(parser, "--head", "target/head.safetensors", "see fetch_head.py")
    add_path(parser, "--state", "state", "servers and their logs; default: state")
    add_threads(parser)
    add_settings(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
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
