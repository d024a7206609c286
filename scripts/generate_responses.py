"""Let the target answer one dataset's prompts, token for token; goes on where it was interrupted.

    python scripts/generate_responses.py --dataset B5_openthoughts --output-dir responses

Reads prepared/<dataset>/prompts.jsonl; keeps each answer in state/generate_responses/<dataset>/ as it comes; writes
<output-dir>/<dataset>/{tokenized_data.jsonl, rejects.jsonl, stats.json} when every prompt is accounted for.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path

from eyas.chat import chat_of, keep_torch_out
from eyas.config import Target, load
from eyas.errors import run_command
from eyas.generate import generate_responses
from eyas.progress import log_to_stderr
from eyas.target.launch import open_engine


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="name of the dataset in config/datasets.yaml")
    parser.add_argument("--output-dir", type=Path, default=Path("responses"), help="default: responses")
    parser.add_argument("--prepared-dir", type=Path, default=Path("prepared"), help="default: prepared")
    parser.add_argument("--tokenizer", type=Path, default=Path("target/tokenizer"), help="default: target/tokenizer")
    parser.add_argument("--state", type=Path, default=Path("state"), help="journals and servers; default: state")
    parser.add_argument("--threads", type=int, help="of the embedded engine; default: as torch chooses")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    args = parser.parse_args(argv)
    log_to_stderr()
    # Read when torch is loaded: threads that wait spin for some 50 µs and then sleep. Without a bound they cost five
    # times their work on shared cores; without any spin, a quarter of the rate on free ones.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    settings = args.settings or load(args.configfile).generate_settings(args.dataset)
    target = Target.model_validate(settings["target"])
    if target.engine == "sglang":
        keep_torch_out()
    chat = chat_of(args.tokenizer, settings["target"])
    generate_responses(
        settings,
        args.prepared_dir / args.dataset / "prompts.jsonl",
        chat,
        partial(open_engine, target, args.state / "server", args.threads),
        args.state / "generate_responses" / args.dataset,
        args.output_dir / args.dataset,
    )
    return 0


if __name__ == "__main__":
    run_command(main)
