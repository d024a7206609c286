"""Write deploy/: the draft with its model card, the server's command, and a check of the running server.

python scripts/deploy_draft.py --output-dir deploy
"""

from eyas.commands import add_path, add_settings, log_to_stderr, parser_of, run_command
from eyas.config import load
from eyas.deployment import deploy


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--draft", "draft")
    add_path(parser, "--evaluation", "evaluation")
    add_path(parser, "--corpus", "corpus")
    add_path(parser, "--state", "state", "what is known of servers; default: state")
    add_path(parser, "--output-dir", "deploy")
    add_settings(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).deploy_settings()
    deploy(settings, args.draft, args.evaluation, args.corpus, args.output_dir, args.state / "server")
    return 0


if __name__ == "__main__":
    run_command(main)
