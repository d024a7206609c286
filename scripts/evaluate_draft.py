"""Answer the evaluation's prompts with the draft and without it, by one engine.

    python scripts/evaluate_draft.py --engine walk --out evaluation/walk.jsonl

Engines: sglang (servers with and without the draft, at several concurrencies), walk (the reference, in this process),
llamacpp (an outside witness). Reads draft/, evaluation/prompts.jsonl and the target; what was tried is kept in
state/evaluation/: a run that was killed goes on.
"""

import argparse
from pathlib import Path

import orjson

from eyas.commands import add_out, add_path, add_settings, log_to_stderr, parser_of, run_command
from eyas.config import load
from eyas.evaluation import ENGINES
from eyas.evaluation.engines import Places, try_draft
from eyas.evaluation.prompts import read_prompts
from eyas.records import whole_file, write_json


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    add_places(parser)
    add_out(parser, "a line for each prompt (and concurrency)")
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
    add_path(parser, "--prompts", "evaluation/prompts.jsonl", "see choose_prompts.py")
    add_path(parser, "--draft", "draft")
    add_path(parser, "--head", "target/head.safetensors", "see fetch_head.py")
    add_path(parser, "--tokenizer", "target/tokenizer")
    add_path(parser, "--state", "state", "journals and servers; default: state")
    parser.add_argument("--threads", type=int, help="of an engine in this process; default: as it chooses")
    add_settings(parser)


def places_of(args: argparse.Namespace) -> Places:
    return Places(args.draft, args.head, args.tokenizer, args.state, args.threads)


if __name__ == "__main__":
    run_command(main)
