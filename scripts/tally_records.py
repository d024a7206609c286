"""Count the valid records of every dataset, and name what is missing, empty, damaged or stale.

    python scripts/tally_records.py --prepared-dir prepared

Prints a table; --json and --html write the same to files. Exit code 0 also when there are problems, unless --strict.
"""

import os
from pathlib import Path

from eyas.commands import add_config, add_path, config_of, log_to_stderr, parser_of, run_command
from eyas.records import write_json, write_text
from eyas.tally import as_page, as_text, tally


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--prepared-dir", "prepared")
    add_path(parser, "--responses-dir", "responses")
    add_path(parser, "--state", "state", "live counters; default: state")
    add_config(parser)
    parser.add_argument("--json", type=Path, help="write the inventory to this file")
    parser.add_argument("--html", type=Path, help="write the inventory as a page to this file")
    parser.add_argument(
        "--command-prefix",
        default="snakemake",
        help="how Snakemake is called here, e.g. 'snakemake --profile profiles/demo'",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a dataset is not ok")
    threads = min(8, os.cpu_count() or 1)
    parser.add_argument("--threads", type=int, default=threads, help=f"processes that check; default here: {threads}")
    args = parser.parse_args(argv)
    log_to_stderr()
    config = config_of(args)
    result = tally(
        *(config, args.prepared_dir, args.responses_dir, args.state),
        command=args.command_prefix,
        processes=args.threads,
    )
    if args.json:
        write_json(args.json, result)
    if args.html:
        write_text(args.html, as_page(result).html())
    print(as_text(result), end="")
    return 1 if args.strict and result["problems"] else 0


if __name__ == "__main__":
    run_command(main)
