"""Choose what the draft is judged on: held-out prompts of the corpus, and prompts of public benchmark sets.

    python scripts/choose_prompts.py --out evaluation/prompts.jsonl

Reads corpus/ and prepared/<benchmark>/prompts.jsonl.
"""

import argparse
import json
from pathlib import Path

from eyas.chat import chat_of, keep_torch_out
from eyas.config import Evaluation, load
from eyas.errors import run_command
from eyas.evaluation.prompts import choose_prompts, write_prompts
from eyas.progress import log_to_stderr


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("corpus"), help="default: corpus")
    parser.add_argument("--prepared-dir", type=Path, default=Path("prepared"), help="default: prepared")
    parser.add_argument("--tokenizer", type=Path, default=Path("target/tokenizer"), help="default: target/tokenizer")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    parser.add_argument("--out", type=Path, required=True, help="a line for each prompt")
    args = parser.parse_args(argv)
    log_to_stderr()
    keep_torch_out()
    settings = args.settings or load(args.configfile).evaluate_settings()
    benchmarks = {
        name: (args.prepared_dir / name / "prompts.jsonl", thinking)
        for name, thinking in settings["benchmarks"].items()
    }
    evaluation = Evaluation.model_validate(settings["evaluate"])
    chat = chat_of(args.tokenizer, settings["target"])
    write_prompts(args.out, choose_prompts(evaluation, args.corpus, benchmarks, chat))
    return 0


if __name__ == "__main__":
    run_command(main)
