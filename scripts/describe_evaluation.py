"""Make the report's page about the evaluation.

python scripts/describe_evaluation.py --summary evaluation/summary.json --out reports/evaluation.html
"""

import argparse
from pathlib import Path

from eyas.describe_evaluation import describe_evaluation
from eyas.errors import run_command
from eyas.records import whole_file


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summary", type=Path, default=Path("evaluation/summary.json"), help="its summary.json")
    parser.add_argument("--out", type=Path, required=True, help="the page")
    args = parser.parse_args(argv)
    with whole_file(args.out) as file:
        file.write(describe_evaluation(args.summary).encode())
    return 0


if __name__ == "__main__":
    run_command(main)
