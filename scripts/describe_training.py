"""Make the report's page about the training.

    python scripts/describe_training.py --out reports/training.html

Reads draft/metrics.jsonl and draft/training.json.
"""

from eyas.commands import add_out, add_path, parser_of, run_command
from eyas.describe_training import describe_training
from eyas.records import write_text


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--metrics", "draft/metrics.jsonl")
    add_path(parser, "--summary", "draft/training.json")
    add_out(parser, "the page")
    args = parser.parse_args(argv)
    write_text(args.out, describe_training(args.metrics, args.summary).html())
    return 0


if __name__ == "__main__":
    run_command(main)
