"""Make one corpus of all datasets' token records: in hashed order, without repeats, split by prompt.

    python scripts/build_corpus.py --output-dir corpus

Reads prepared/<dataset>/tokenized_data.jsonl of datasets that are the target's words already, and
responses/<dataset>/tokenized_data.jsonl of the others; writes <output-dir>/{train,heldout}.parquet, rejects.jsonl and
stats.json.
"""

import argparse
import json
from pathlib import Path

from eyas.config import load
from eyas.corpus import build_corpus, sources_of
from eyas.errors import run_command
from eyas.progress import log_to_stderr


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared-dir", type=Path, default=Path("prepared"), help="default: prepared")
    parser.add_argument("--responses-dir", type=Path, default=Path("responses"), help="default: responses")
    parser.add_argument("--output-dir", type=Path, default=Path("corpus"), help="default: corpus")
    parser.add_argument("--threads", type=int, default=1, help="processes that parse and sort; default: 1")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).corpus_settings()
    sources = sources_of(settings["datasets"], settings["tokenized"], args.prepared_dir, args.responses_dir)
    build_corpus(settings, sources, args.output_dir, threads=args.threads)
    return 0


if __name__ == "__main__":
    run_command(main)
