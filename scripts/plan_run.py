"""Estimate tokens, disk and hours of the whole run from what is there so far.

    python scripts/plan_run.py

Exit code 1 when the hidden states do not fit on the disk; what would fit is said then.
"""

from pathlib import Path

from eyas.commands import add_config, add_path, config_of, log_to_stderr, parser_of, run_command
from eyas.layers import Shape
from eyas.plan import as_text, plan


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--root", ".", "the working directory; default: here")
    add_path(parser, "--tokenizer", "target/tokenizer")
    add_config(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
    config = config_of(args)
    shape = Shape.of(args.tokenizer, Path(config.target.model))
    result = plan(config, args.root, shape.hidden)
    print(as_text(result, config.target.name, config.capture.dtype), end="")
    return 0 if result["fits"] else 1


if __name__ == "__main__":
    run_command(main)
