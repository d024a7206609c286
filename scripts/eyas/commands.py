"""What the scripts share: how a command runs, how it ends, and the arguments that many of them take.

Snakemake merges the configuration (files, --configfile, --config, profiles) before a job starts, so it passes a job's
settings as JSON: those that decide what it makes, which are kept beside it. By hand, configuration files are read.
"""

import argparse
import errno
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from eyas.config import Config, Target, load, parse
from eyas.errors import EyasError


def run_command(main: Callable[[], int | None]) -> None:
    """Run a script's `main`; an EyasError becomes one line on stderr and exit code 1."""
    try:
        code = main() or 0
    except EyasError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except BrokenPipeError:  # `... | head` closed its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: the disk is full ({error.filename or os.getcwd()}): make room and run again", file=sys.stderr)
        code = 1
    sys.exit(code)


def log_to_stderr() -> None:
    """Plain lines with the time of day."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)


# Arguments


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """doc: the script's docstring, shown as it is."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_path(parser: argparse.ArgumentParser, flag: str, default: str, help: str | None = None) -> None:
    """A file or folder that lies where the workflow has it, unless the flag says otherwise."""
    parser.add_argument(flag, type=Path, default=Path(default), help=help or f"default: {default}")


def add_out(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--out", type=Path, required=True, help=help)


def add_threads(parser: argparse.ArgumentParser, of: str = "the embedded engine") -> None:
    parser.add_argument("--threads", type=int, help=f"of {of}; default: as torch chooses")


def add_configfile(parser: argparse.ArgumentParser) -> None:
    text = "instead of config/*.yaml; may be repeated, later ones win"
    parser.add_argument("--configfile", type=Path, action="append", help=text)


def add_settings(parser: argparse.ArgumentParser, what: str = "all settings") -> None:
    """A job's settings: `args.settings or load(args.configfile).<stage>_settings()`."""
    add_configfile(parser)
    parser.add_argument("--settings", type=json.loads, help=f"JSON of {what} (Snakemake passes it)")


def add_target(parser: argparse.ArgumentParser) -> None:
    """The target alone: `target_of` gives it."""
    add_settings(parser, "the config's `target`")


def target_of(args: argparse.Namespace) -> Target:
    return Target.model_validate(args.settings) if args.settings else load(args.configfile).target


def add_config(parser: argparse.ArgumentParser) -> None:
    """The whole configuration: `config_of` gives it."""
    add_configfile(parser)
    parser.add_argument("--config", type=json.loads, help="JSON of a whole configuration, as Snakemake passes it")


def config_of(args: argparse.Namespace) -> Config:
    return load(args.configfile) if args.config is None else parse(args.config)
