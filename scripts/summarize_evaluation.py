"""All figures of the evaluation, and the verdict; fails when the draft gains nothing, with what is known of the causes.

python scripts/summarize_evaluation.py --trials evaluation/walk.jsonl --out evaluation/summary.json
"""

import argparse
import json
from pathlib import Path

from eyas.config import Evaluation, load
from eyas.errors import run_command
from eyas.evaluation.summary import summarize
from eyas.evaluation.trials import read_trials
from eyas.progress import log_to_stderr
from eyas.records import read_json, write_json


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--trials", type=Path, nargs="+", required=True, help="of the engines: evaluation/<engine>.jsonl"
    )
    parser.add_argument("--speed", type=Path, help="of a server: evaluation/speed.json")
    parser.add_argument("--corpus", type=Path, default=Path("corpus/stats.json"), help="counts of held-out samples")
    parser.add_argument("--draft", type=Path, default=Path("draft"), help="default: draft")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    parser.add_argument("--out", type=Path, required=True, help="summary.json")
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
