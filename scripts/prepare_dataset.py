"""Turn one dataset's source files into prompts or token records.

    python scripts/prepare_dataset.py --dataset B5_openthoughts --output-dir prepared

Reads sources/<dataset>/manifest.json (scripts/fetch_source.py makes it) and writes
<output-dir>/<dataset>/{prompts.jsonl | tokenized_data.jsonl, rejects.jsonl, stats.json}, all or nothing. In several
jobs, with the same result: `--shards 4 --shard 0` to `3` read a quarter each, then `--shards 4` puts them together.
"""

import argparse
import json
from pathlib import Path

from eyas.chat import keep_torch_out
from eyas.config import load
from eyas.errors import run_command
from eyas.prepare import prepare_dataset
from eyas.prepare_shards import Shard, prepare_shard
from eyas.progress import log_to_stderr
from eyas.sources import files_of, read_manifest


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="name of the dataset in config/datasets.yaml")
    parser.add_argument("--output-dir", type=Path, default=Path("prepared"), help="default: prepared")
    parser.add_argument("--source-dir", type=Path, default=Path("sources"), help="default: sources")
    parser.add_argument("--tokenizer", type=Path, default=Path("target/tokenizer"), help="default: target/tokenizer")
    parser.add_argument("--threads", type=int, default=1, help="processes that tokenize; default: 1")
    parser.add_argument("--shards", type=int, default=1, help="jobs that read the source files; default: 1, this one")
    parser.add_argument("--shard", type=int, help="be one of those jobs, counted from 0; default: put them together")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument(
        "--settings", type=json.loads, help="JSON of all settings (Snakemake passes it); no config file is read"
    )
    args = parser.parse_args(argv)
    log_to_stderr()
    keep_torch_out()
    settings = args.settings or load(args.configfile).prepare_settings(args.dataset)
    path = args.source_dir / args.dataset / "manifest.json"
    manifest = read_manifest(path)
    files, out = files_of(manifest, path), args.output_dir / args.dataset
    if args.shard is not None:
        if not 0 <= args.shard < args.shards:
            parser.error(f"--shard {args.shard}: of {args.shards} shards they are 0 to {args.shards - 1}")
        prepare_shard(settings, files, args.tokenizer, Shard(args.shard, args.shards, out), threads=args.threads)
    else:
        origin = manifest["sources"]
        prepare_dataset(settings, files, args.tokenizer, out, threads=args.threads, origin=origin, shards=args.shards)
    return 0


if __name__ == "__main__":
    run_command(main)
