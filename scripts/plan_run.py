"""Estimate tokens, disk and hours of the whole run from what is there so far.

    python scripts/plan_run.py

Exit code 1 when the hidden states do not fit on the disk; what would fit is said then.
"""

import argparse
import json
from pathlib import Path

from eyas.config import load, parse
from eyas.errors import run_command
from eyas.layers import Shape
from eyas.plan import as_text, plan
from eyas.progress import log_to_stderr


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("."), help="the working directory; default: here")
    parser.add_argument("--tokenizer", type=Path, default=Path("target/tokenizer"), help="default: target/tokenizer")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--config", type=json.loads, help="JSON of a whole configuration (Snakemake passes it)")
    args = parser.parse_args(argv)
    log_to_stderr()
    config = load(args.configfile) if args.config is None else parse(args.config)
    shape = Shape.of(args.tokenizer, Path(config.target.model))
    result = plan(config, args.root, shape.hidden)
    print(as_text(result, config.target.name, config.capture.dtype), end="")
    return 0 if result["fits"] else 1


if __name__ == "__main__":
    run_command(main)
