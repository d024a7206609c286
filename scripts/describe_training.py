"""Make the report's page about the training.

    python scripts/describe_training.py --out reports/training.html

Reads draft/metrics.jsonl and draft/training.json.
"""

import argparse
from pathlib import Path

from eyas.describe_training import describe_training
from eyas.errors import run_command
from eyas.records import whole_file


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--metrics", type=Path, default=Path("draft/metrics.jsonl"), help="default: draft/metrics.jsonl"
    )
    parser.add_argument(
        "--summary", type=Path, default=Path("draft/training.json"), help="default: draft/training.json"
    )
    parser.add_argument("--out", type=Path, required=True, help="the page")
    args = parser.parse_args(argv)
    with whole_file(args.out) as file:
        file.write(describe_training(args.metrics, args.summary).html().encode())
    return 0


if __name__ == "__main__":
    run_command(main)
