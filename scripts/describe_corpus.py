"""Make the report's page about the corpus, the draft vocabulary and the hidden states.

    python scripts/describe_corpus.py --out reports/corpus.html

Reads corpus/stats.json, draft_vocab/coverage.json and the statistics of captured shards.
"""

from pathlib import Path

from eyas.commands import add_out, add_path, parser_of, run_command
from eyas.describe_corpus import describe_corpus
from eyas.records import write_text


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--corpus", "corpus/stats.json")
    default = Path("draft_vocab/coverage.json")
    parser.add_argument("--vocabulary", type=Path, default=default, help=f"default: {default}")
    parser.add_argument("--states", type=Path, nargs="*", default=[], help="<shard>.json of captured shards")
    add_out(parser, "the page")
    args = parser.parse_args(argv)
    page = describe_corpus(args.corpus, args.vocabulary, args.states)
    write_text(args.out, page.html())
    return 0


if __name__ == "__main__":
    run_command(main)
