"""Answer the evaluation's prompts with the draft and without it, by one engine.

    python scripts/evaluate_draft.py --engine walk --out evaluation/walk.jsonl

Engines: sglang (servers with and without the draft, at several concurrencies), walk (the reference, in this process),
llamacpp (an outside witness). Reads draft/, evaluation/prompts.jsonl and the target; what was tried is kept in
state/evaluation/: a run that was killed goes on.
"""

import argparse
import json
import os
from pathlib import Path

import orjson

from eyas.config import load
from eyas.errors import run_command
from eyas.evaluation import ENGINES
from eyas.evaluation.engines import Places, try_draft
from eyas.evaluation.prompts import read_prompts
from eyas.progress import log_to_stderr
from eyas.records import whole_file, write_json


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    add_places(parser)
    parser.add_argument("--out", type=Path, required=True, help="a line for each prompt (and concurrency)")
    parser.add_argument("--speed", type=Path, help="rates by concurrency, as JSON")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).evaluate_settings()
    lines, speed = try_draft(args.engine, settings, read_prompts(args.prompts), places_of(args))
    if args.speed:
        write_json(args.speed, speed)
    with whole_file(args.out) as file:
        for line in lines:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    return 0


def add_places(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command that tries drafts."""
    parser.add_argument("--prompts", type=Path, default=Path("evaluation/prompts.jsonl"), help="see choose_prompts.py")
    parser.add_argument("--draft", type=Path, default=Path("draft"), help="default: draft")
    parser.add_argument("--head", type=Path, default=Path("target/head.safetensors"), help="see fetch_head.py")
    parser.add_argument("--tokenizer", type=Path, default=Path("target/tokenizer"), help="default: target/tokenizer")
    parser.add_argument("--state", type=Path, default=Path("state"), help="journals and servers; default: state")
    parser.add_argument("--threads", type=int, help="of an engine in this process; default: as it chooses")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")


def places_of(args: argparse.Namespace) -> Places:
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")  # see generate_responses.py
    return Places(args.draft, args.head, args.tokenizer, args.state, args.threads)


if __name__ == "__main__":
    run_command(main)
