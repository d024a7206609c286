"""Turn one dataset's source files into prompts or token records.

    python scripts/prepare_dataset.py --dataset B5_openthoughts --output-dir prepared

Reads sources/<dataset>/manifest.json (scripts/fetch_source.py makes it) and writes
<output-dir>/<dataset>/{prompts.jsonl | tokenized_data.jsonl, rejects.jsonl, stats.json}, all or nothing.
"""

import argparse
import json
from pathlib import Path

from eyas.chat import keep_torch_out
from eyas.config import load
from eyas.errors import run_command
from eyas.prepare import prepare_dataset
from eyas.progress import log_to_stderr
from eyas.sources import files_of, read_manifest


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="name of the dataset in config/datasets.yaml")
    parser.add_argument("--output-dir", type=Path, default=Path("prepared"), help="default: prepared")
    parser.add_argument("--source-dir", type=Path, default=Path("sources"), help="default: sources")
    parser.add_argument("--tokenizer", type=Path, default=Path("target/tokenizer"), help="default: target/tokenizer")
    parser.add_argument("--threads", type=int, default=1, help="processes that tokenize; default: 1")
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
    prepare_dataset(settings, files, args.tokenizer, out, threads=args.threads, origin=manifest["sources"])
    return 0


if __name__ == "__main__":
    run_command(main)
