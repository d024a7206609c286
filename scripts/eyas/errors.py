"""The one exception that ends a command with one clear line instead of a traceback."""

import errno
import os
import sys
from collections.abc import Callable


class EyasError(Exception):
    """What went wrong, where (file, row or key), what was expected, what was found, and the remedy."""


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
