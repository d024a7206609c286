"""Where the run stands: each stage's done, left, rate and time left; GPUs and who holds them; servers; disk.

    python scripts/status.py --watch 10

Reads files and looks at processes, writes nothing: it may be asked at any time, also while Snakemake runs.
"""

import sys
import time

import orjson

from eyas.commands import add_config, add_path, config_of, parser_of, run_command
from eyas.status import status
from eyas.status_text import as_text

CLEAR = "\x1b[H\x1b[J"


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--root", ".", "the working directory of the run; default: here")
    add_config(parser)
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="look again every so many seconds")
    parser.add_argument("--json", action="store_true", help="as JSON (with --watch: a line each time)")
    args = parser.parse_args(argv)
    config = config_of(args)
    while True:
        result = status(config, args.root)
        if args.json:
            indent = 0 if args.watch else orjson.OPT_INDENT_2
            print(orjson.dumps(result, option=indent).decode(), flush=True)
        else:
            clear = CLEAR if args.watch and sys.stdout.isatty() else ""
            print(f"{clear}{as_text(result)}", end="" if clear or not args.watch else "\n", flush=True)
        if not args.watch:
            return 0
        try:
            time.sleep(args.watch)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    run_command(main)
