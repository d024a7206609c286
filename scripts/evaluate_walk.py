"""Answer held-out prompts with and without the draft, in this process: the reference for other engines.

    python scripts/evaluate_walk.py --out evaluation/walk.jsonl

Reads draft/, corpus/heldout.parquet, target/head.safetensors and the target's weights; goes on where it stopped.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path

from eyas.config import Evaluation, Target, load
from eyas.errors import run_command
from eyas.evaluation.prompts import heldout_prompts
from eyas.evaluation.trials import run_trials, trial_key
from eyas.evaluation.walk import walk_trial
from eyas.progress import log_to_stderr
from eyas.target.head import Head


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("corpus/heldout.parquet"), help="the held-out samples")
    parser.add_argument("--draft", type=Path, default=Path("draft"), help="default: draft")
    parser.add_argument("--head", type=Path, default=Path("target/head.safetensors"), help="see fetch_head.py")
    parser.add_argument("--state", type=Path, default=Path("state/evaluation"), help="the journal's folder")
    parser.add_argument("--threads", type=int, help="default: as torch chooses")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    parser.add_argument("--out", type=Path, required=True, help="a line for each prompt")
    args = parser.parse_args(argv)
    log_to_stderr()
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")  # see generate_responses.py
    if args.threads:
        import torch

        torch.set_num_threads(args.threads)
    settings = args.settings or load(args.configfile).evaluate_settings()
    evaluation, target = Evaluation.model_validate(settings["evaluate"]), Target.model_validate(settings["target"])
    prompts = heldout_prompts(args.corpus, evaluation.prompts, evaluation.max_prompt_tokens)
    embeddings = Head.load(args.head).embed_tokens
    journal = args.state / f"walk-{trial_key(settings, args.draft)}.jsonl"
    run_trials(prompts, journal, args.out, partial(walk_trial, target.model, args.draft, embeddings, evaluation))
    return 0


if __name__ == "__main__":
    run_command(main)
