"""Copy the target's embeddings, lm_head and final norm out of its weights, for the draft and for checks.

    python scripts/fetch_head.py

Writes target/head.safetensors (see eyas/target/head.py).
"""

import argparse
import json
from pathlib import Path

from eyas.config import Target, load
from eyas.errors import run_command
from eyas.progress import log_to_stderr
from eyas.target.head import extract_head


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("target/head.safetensors"))
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of the config's `target` (Snakemake passes it)")
    args = parser.parse_args(argv)
    log_to_stderr()
    extract_head(Target.model_validate(args.settings) if args.settings else load(args.configfile).target, args.out)
    return 0


if __name__ == "__main__":
    run_command(main)
