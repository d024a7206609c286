"""Choose the tokens that the draft can propose: the most frequent of those that the corpus trains.

    python scripts/build_vocabulary.py --output-dir draft_vocab

Reads corpus/{train,heldout}.parquet; writes <output-dir>/map.safetensors (d2t, t2d) and coverage.json.
"""

import argparse
import json
from pathlib import Path

from eyas.config import load
from eyas.errors import run_command
from eyas.progress import log_to_stderr
from eyas.vocabulary import build_vocabulary


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("corpus"), help="default: corpus")
    parser.add_argument("--output-dir", type=Path, default=Path("draft_vocab"), help="default: draft_vocab")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).vocabulary_settings()
    build_vocabulary(settings, args.corpus, args.output_dir)
    return 0


if __name__ == "__main__":
    run_command(main)
