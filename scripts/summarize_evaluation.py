"""All figures of the evaluation, and the verdict; fails when the draft gains nothing, with what is known of the causes.

python scripts/summarize_evaluation.py --trials evaluation/walk.jsonl --out evaluation/summary.json
"""

from pathlib import Path

from eyas.commands import add_out, add_path, add_settings, log_to_stderr, parser_of, run_command
from eyas.config import Evaluation, load
from eyas.evaluation.summary import summarize
from eyas.evaluation.trials import read_trials
from eyas.records import read_json, write_json


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--trials", type=Path, nargs="+", required=True, help="of the engines: evaluation/<engine>.jsonl"
    )
    parser.add_argument("--speed", type=Path, help="of a server: evaluation/speed.json")
    add_path(parser, "--corpus", "corpus/stats.json", "counts of held-out samples")
    add_path(parser, "--draft", "draft")
    add_settings(parser)
    add_out(parser, "summary.json")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).evaluate_settings()
    trials = {path.stem: read_trials(path) for path in args.trials}
    speed = read_json(args.speed) if args.speed else None
    evaluation = Evaluation.model_validate(settings["evaluate"])
    samples = {name: own["samples"] for name, own in read_json(args.corpus)["heldout"]["datasets"].items()}
    summary = summarize(evaluation, trials, args.draft, speed, settings["tokenized"], samples)
    write_json(args.out, {**summary, "settings": settings})
    print(summary["verdict"]["sentence"])
    return 0


if __name__ == "__main__":
    run_command(main)
