"""Push deploy/draft/ to the Hub.

    HF_TOKEN=… python scripts/push_draft.py --out deploy/pushed.json

The token alone is needed (or `hf auth login`): the repository's name follows from it and the target's name.
"""

from eyas.commands import add_out, add_path, add_settings, log_to_stderr, parser_of, run_command
from eyas.config import Deployment, load
from eyas.deployment import push
from eyas.records import write_json


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--draft", "deploy/draft")
    add_settings(parser)
    add_out(parser, "where it was pushed: repository, commit, address")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).deploy_settings()
    pushed = push(args.draft, Deployment.model_validate(settings["deploy"]), settings["target"]["name"])
    write_json(args.out, pushed)
    print(pushed["url"])
    return 0


if __name__ == "__main__":
    run_command(main)
