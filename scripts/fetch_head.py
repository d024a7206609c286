"""Copy the target's embeddings, lm_head and final norm out of its weights, for the draft and for checks.

    python scripts/fetch_head.py

Writes target/head.safetensors (see eyas/target/head.py).
"""

from eyas.commands import add_path, add_target, log_to_stderr, parser_of, run_command, target_of
from eyas.target.head import extract_head


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--out", "target/head.safetensors")
    add_target(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
    extract_head(target_of(args), args.out)
    return 0


if __name__ == "__main__":
    run_command(main)
