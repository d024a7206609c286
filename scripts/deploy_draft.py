"""Write deploy/: the draft with its model card, the server's command, and a check of the running server.

python scripts/deploy_draft.py --output-dir deploy
"""

import argparse
import json
from pathlib import Path

from eyas.config import load
from eyas.deployment import deploy
from eyas.errors import run_command
from eyas.progress import log_to_stderr


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", type=Path, default=Path("draft"), help="default: draft")
    parser.add_argument("--evaluation", type=Path, default=Path("evaluation"), help="default: evaluation")
    parser.add_argument("--corpus", type=Path, default=Path("corpus"), help="default: corpus")
    parser.add_argument("--state", type=Path, default=Path("state"), help="what is known of servers; default: state")
    parser.add_argument("--output-dir", type=Path, default=Path("deploy"), help="default: deploy")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of all settings (Snakemake passes it)")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).deploy_settings()
    deploy(settings, args.draft, args.evaluation, args.corpus, args.output_dir, args.state / "server")
    return 0


if __name__ == "__main__":
    run_command(main)
