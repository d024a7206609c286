"""Turn one dataset's source files into prompts or token records.

    python scripts/prepare_dataset.py --dataset B5_openthoughts --output-dir prepared

Reads sources/<dataset>/manifest.json (scripts/fetch_source.py makes it) and writes
<output-dir>/<dataset>/{prompts.jsonl | tokenized_data.jsonl, rejects.jsonl, stats.json}, all or nothing. In several
jobs, with the same result: `--shards 4 --shard 0` to `3` read a quarter each, then `--shards 4` puts them together.
"""

from eyas.chat import keep_torch_out
from eyas.commands import add_path, add_settings, log_to_stderr, parser_of, run_command
from eyas.config import load
from eyas.prepare import prepare_dataset
from eyas.prepare_shards import Shard, prepare_shard
from eyas.sources import files_of, read_manifest


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--dataset", required=True, help="name of the dataset in config/datasets.yaml")
    add_path(parser, "--output-dir", "prepared")
    add_path(parser, "--source-dir", "sources")
    add_path(parser, "--tokenizer", "target/tokenizer")
    parser.add_argument("--threads", type=int, default=1, help="processes that tokenize; default: 1")
    parser.add_argument("--shards", type=int, default=1, help="jobs that read the source files; default: 1, this one")
    parser.add_argument("--shard", type=int, help="be one of those jobs, counted from 0; default: put them together")
    add_settings(parser)
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
