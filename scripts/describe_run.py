"""Make the report's first page: one run from data to speedup. With --whole: the whole report, from what is there.

    python scripts/describe_run.py --whole --out report.html

Reads files and writes one: it may be asked at any time of a run (`make report` does).
"""

import argparse
import json
import os
from pathlib import Path

from eyas.chat import keep_torch_out
from eyas.config import load, parse
from eyas.describe_run import describe_run, report
from eyas.errors import run_command
from eyas.progress import log_to_stderr
from eyas.records import whole_file


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("."), help="the working directory of the run; default: here")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--config", type=json.loads, help="JSON of a whole configuration (Snakemake passes it)")
    parser.add_argument("--whole", action="store_true", help="the other pages below the first, in one document")
    parser.add_argument("--out", type=Path, required=True, help="the page")
    args = parser.parse_args(argv)
    log_to_stderr()
    keep_torch_out()
    config = load(args.configfile) if args.config is None else parse(args.config)
    if args.whole:
        text = report(config, args.root, processes=min(8, os.cpu_count() or 1))
    else:
        text = describe_run(config, args.root).html()
    with whole_file(args.out) as file:
        file.write(text.encode())
    return 0


if __name__ == "__main__":
    run_command(main)
