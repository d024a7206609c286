"""Make one corpus of all datasets' token records: in hashed order, without repeats, split by prompt.

    python scripts/build_corpus.py --output-dir corpus

Reads prepared/<dataset>/tokenized_data.jsonl of datasets that are the target's words already, and
responses/<dataset>/tokenized_data.jsonl of the others; writes <output-dir>/{train,heldout}.parquet, rejects.jsonl and
stats.json.
"""

from eyas.commands import add_path, add_settings, log_to_stderr, parser_of, run_command
from eyas.config import load
from eyas.corpus import build_corpus, sources_of


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--prepared-dir", "prepared")
    add_path(parser, "--responses-dir", "responses")
    add_path(parser, "--output-dir", "corpus")
    parser.add_argument("--threads", type=int, default=1, help="processes that parse and sort; default: 1")
    add_settings(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).corpus_settings()
    sources = sources_of(settings["datasets"], settings["tokenized"], args.prepared_dir, args.responses_dir)
    build_corpus(settings, sources, args.output_dir, threads=args.threads)
    return 0


if __name__ == "__main__":
    run_command(main)
