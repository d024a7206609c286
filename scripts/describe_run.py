"""Make the report's first page: one run from data to speedup. With --whole: the whole report, from what is there.

    python scripts/describe_run.py --whole --out report.html

Reads files and writes one: it may be asked at any time of a run (`make report` does).
"""

import os
from pathlib import Path

from eyas.chat import keep_torch_out
from eyas.commands import add_config, add_out, config_of, log_to_stderr, parser_of, run_command
from eyas.describe_run import describe_run
from eyas.records import write_text
from eyas.report import report


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--root", type=Path, default=Path("."), help="the working directory of the run; default: here")
    add_config(parser)
    parser.add_argument("--whole", action="store_true", help="the other pages below the first, in one document")
    add_out(parser, "the page")
    args = parser.parse_args(argv)
    log_to_stderr()
    keep_torch_out()
    config = config_of(args)
    if args.whole:
        text = report(config, args.root, processes=min(8, os.cpu_count() or 1))
    else:
        text = describe_run(config, args.root).html()
    write_text(args.out, text)
    return 0


if __name__ == "__main__":
    run_command(main)
