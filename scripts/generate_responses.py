"""Let the target answer one dataset's prompts, token for token; goes on where it was interrupted.

    python scripts/generate_responses.py --dataset B5_openthoughts --output-dir responses

Reads prepared/<dataset>/prompts.jsonl; keeps each answer in state/generate_responses/<dataset>/ as it comes; writes
<output-dir>/<dataset>/{tokenized_data.jsonl, rejects.jsonl, stats.json} when every prompt is accounted for.
"""

from functools import partial

from eyas.chat import chat_of, keep_torch_out
from eyas.commands import add_path, add_settings, add_threads, log_to_stderr, parser_of, run_command
from eyas.config import Target, load
from eyas.generate import generate_responses
from eyas.target.launch import open_engine


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--dataset", required=True, help="name of the dataset in config/datasets.yaml")
    add_path(parser, "--output-dir", "responses")
    add_path(parser, "--prepared-dir", "prepared")
    add_path(parser, "--tokenizer", "target/tokenizer")
    add_path(parser, "--state", "state", "journals and servers; default: state")
    add_threads(parser)
    add_settings(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
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
