"""Ask a server with the draft and one without it the same held-out prompts, at several concurrencies.

    python scripts/evaluate_sglang.py --out evaluation/sglang.jsonl --speed evaluation/speed.json

Reads draft/ and corpus/heldout.parquet; starts the servers, by the target's flags and evaluate.flags.
"""

import argparse
import json
from pathlib import Path

import orjson

from eyas.config import Evaluation, Target, load
from eyas.errors import run_command
from eyas.evaluation.prompts import heldout_prompts
from eyas.evaluation.served import try_served
from eyas.progress import log_to_stderr
from eyas.records import whole_file, write_json
from eyas.target.launch import open_drafting


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("corpus/heldout.parquet"), help="the held-out samples")
    parser.add_argument("--draft", type=Path, default=Path("draft"), help="default: draft")
    parser.add_argument("--state", type=Path, default=Path("state"), help="servers and their logs; default: state")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    parser.add_argument("--out", type=Path, required=True, help="a line for each prompt and concurrency")
    parser.add_argument("--speed", type=Path, required=True, help="rates by concurrency")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).evaluate_settings()
    evaluation, target = Evaluation.model_validate(settings["evaluate"]), Target.model_validate(settings["target"])
    prompts = heldout_prompts(args.corpus, evaluation.prompts, evaluation.max_prompt_tokens)

    def open_server(with_draft: bool):
        draft = args.draft if with_draft else None
        return open_drafting(target, args.state / "server", draft, evaluation.chain, evaluation.flags)

    lines, speed = try_served(prompts, evaluation, open_server)
    write_json(args.speed, speed)
    with whole_file(args.out) as file:
        for line in lines:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    return 0


if __name__ == "__main__":
    run_command(main)
