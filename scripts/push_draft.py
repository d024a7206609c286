"""Push deploy/draft/ to the Hub.

    HF_TOKEN=… python scripts/push_draft.py --out deploy/pushed.json

The token alone is needed (or `hf auth login`): the repository's name follows from it and the target's name.
"""

import argparse
import json
from pathlib import Path

from eyas.config import Deployment, load
from eyas.deployment import push
from eyas.errors import run_command
from eyas.progress import log_to_stderr
from eyas.records import write_json


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", type=Path, default=Path("deploy/draft"), help="default: deploy/draft")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    parser.add_argument("--out", type=Path, required=True, help="where it was pushed: repository, commit, address")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).deploy_settings()
    pushed = push(args.draft, Deployment.model_validate(settings["deploy"]), settings["target"]["name"])
    write_json(args.out, pushed)
    print(pushed["url"])
    return 0


if __name__ == "__main__":
    run_command(main)
