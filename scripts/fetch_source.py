"""Bring one dataset's source files to <output-dir>/<dataset>/ and write manifest.json when all are there.

    python scripts/fetch_source.py --dataset B5_openthoughts --output-dir sources

An interrupted fetch goes on where it stopped, at the commit at which it began. Set HF_TOKEN for gated
repositories; HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean for huggingface_hub.
"""

import json
import logging

from pydantic import TypeAdapter, ValidationError

from eyas import config
from eyas.commands import add_configfile, add_path, log_to_stderr, parser_of, run_command
from eyas.config import Source
from eyas.errors import EyasError
from eyas.sources import fetch, write_manifest


def parse_settings(text: str) -> tuple[str, list[Source]]:
    """Dataset name and sources from the JSON that the Snakemake rule passes; EyasError when it is not that."""
    try:
        settings = json.loads(text)
        return settings["dataset"], TypeAdapter(list[Source]).validate_python(settings["sources"])
    except (ValueError, TypeError, KeyError) as error:
        reason = "; ".join(e["msg"] for e in error.errors()) if isinstance(error, ValidationError) else repr(error)
        raise EyasError(f'--settings: expected {{"dataset": name, "sources": [...]}}: {reason}') from None


def main(argv: list[str] | None = None) -> int:
    parser = parser_of(__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--dataset", help="name of a dataset in the config")
    which.add_argument("--settings", metavar="JSON", help='{"dataset": name, "sources": [...]} instead of the config')
    add_configfile(parser)
    add_path(parser, "--output-dir", "sources")
    args = parser.parse_args(argv)

    log_to_stderr()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would log every request, with signed addresses
    if args.settings is not None:
        name, sources = parse_settings(args.settings)
    else:
        name, sources = args.dataset, config.load(args.configfile).dataset(args.dataset).sources
    folder = args.output_dir / name
    write_manifest(fetch(sources, folder), folder / "manifest.json")
    return 0


if __name__ == "__main__":
    run_command(main)
