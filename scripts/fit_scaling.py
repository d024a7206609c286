"""What more data would bring, by drafts that were trained on parts of it.

    python scripts/fit_scaling.py --trials scaling/1-of-2/walk.jsonl evaluation/walk.jsonl \\
        --training scaling/1-of-2/draft/training.json draft/training.json --out scaling/summary.json
"""

from pathlib import Path

from eyas.commands import add_out, parser_of, run_command
from eyas.evaluation.scaling import fit_scaling
from eyas.evaluation.trials import read_trials
from eyas.records import read_json, write_json


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=Path, nargs="+", required=True, help="of each draft, by one engine")
    parser.add_argument("--training", type=Path, nargs="+", required=True, help="its training.json, in the same order")
    add_out(parser, "summary.json")
    args = parser.parse_args(argv)
    drafts = [(read_json(t), read_trials(path)) for path, t in zip(args.trials, args.training, strict=True)]
    summary = fit_scaling(drafts)
    write_json(args.out, summary)
    print(summary["sentence"])
    return 0


if __name__ == "__main__":
    run_command(main)
