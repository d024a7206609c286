"""Choose what the draft is judged on: held-out prompts of the corpus, and prompts of public benchmark sets.

    python scripts/choose_prompts.py --out evaluation/prompts.jsonl

Reads corpus/ and prepared/<benchmark>/prompts.jsonl.
"""

from eyas.chat import chat_of, keep_torch_out
from eyas.commands import add_out, add_path, add_settings, log_to_stderr, parser_of, run_command
from eyas.config import Evaluation, load
from eyas.evaluation.prompts import choose_prompts, write_prompts


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--corpus", "corpus")
    add_path(parser, "--prepared-dir", "prepared")
    add_path(parser, "--tokenizer", "target/tokenizer")
    add_settings(parser)
    add_out(parser, "a line for each prompt")
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
