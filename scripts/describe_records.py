"""Write a page about one prepared dataset: where its rows went, lengths, reasons, and examples as the target sees them.

    python scripts/describe_records.py --records-dir prepared/B5_openthoughts \\
        --tokenizer target/tokenizer --out reports/prepared/B5_openthoughts.html
"""

import json
from pathlib import Path

from eyas.chat import keep_torch_out
from eyas.commands import add_out, add_path, parser_of, run_command
from eyas.describe_records import describe
from eyas.records import write_text


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--records-dir", type=Path, required=True, help="folder of one dataset, e.g. prepared/B5_openthoughts"
    )
    add_path(parser, "--tokenizer", "target/tokenizer")
    add_out(parser, "the page")
    parser.add_argument(
        "--settings", type=json.loads, help="JSON of today's settings, to tell whether the records are stale"
    )
    args = parser.parse_args(argv)
    keep_torch_out()
    page = describe(args.records_dir, args.tokenizer, args.settings)
    write_text(args.out, page.html())
    return 0


if __name__ == "__main__":
    run_command(main)
