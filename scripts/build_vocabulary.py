"""Choose the tokens that the draft can propose: the most frequent of those that the corpus trains.

    python scripts/build_vocabulary.py --output-dir draft_vocab

Reads corpus/{train,heldout}.parquet; writes <output-dir>/map.safetensors (d2t, t2d) and coverage.json.
"""

from eyas.commands import add_path, add_settings, log_to_stderr, parser_of, run_command
from eyas.config import load
from eyas.vocabulary import build_vocabulary


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--corpus", "corpus")
    add_path(parser, "--output-dir", "draft_vocab")
    add_settings(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).vocabulary_settings()
    build_vocabulary(settings, args.corpus, args.output_dir)
    return 0


if __name__ == "__main__":
    run_command(main)
