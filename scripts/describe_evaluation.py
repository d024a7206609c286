"""Make the report's pages about the evaluation, the sweep, and what more data would bring.

python scripts/describe_evaluation.py --summary evaluation/summary.json --out reports/evaluation.html
python scripts/describe_evaluation.py --summary evaluation/sweep.json --out reports/sweep.html
"""

from pathlib import Path

from eyas.commands import add_out, parser_of, run_command
from eyas.describe_evaluation import describe_evaluation, describe_scaling, describe_sweep
from eyas.records import write_text

PAGES = {"evaluation": describe_evaluation, "sweep": describe_sweep, "scaling": describe_scaling}


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--page", choices=PAGES, help="default: as the page's file is called")
    parser.add_argument("--summary", type=Path, required=True, help="the JSON that it tells about")
    add_out(parser, "the page")
    args = parser.parse_args(argv)
    write_text(args.out, PAGES[args.page or args.out.stem](args.summary).html())
    return 0


if __name__ == "__main__":
    run_command(main)
