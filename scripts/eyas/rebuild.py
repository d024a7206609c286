"""How a rule learns that a file which exists must be made again.

Snakemake rebuilds what is missing, and what is older than its inputs. A file that exists but holds nothing, left by
an older run or emptied by hand, it takes for made. So a rule gets one more input: an input function that gives
nothing while the output is sound, and else a stand-in file in a temporary folder, younger than the output. Then
Snakemake itself sees the reason, in a dry run too, and the stand-in's name says what it is. Only public behaviour of
Snakemake is used; the working directory is not touched.
"""

import atexit
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from eyas.errors import EyasError
from eyas.records import is_blank
from eyas.states import Shard


@cache
def _stand_ins() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="eyas-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def stand_in(reason: str, path: str) -> str:
    """A file that is younger than `path` (whatever the clock says), at a place whose name tells the reason."""
    marker = _stand_ins() / reason / path.lstrip("/")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    younger = max(time.time(), Path(path).stat().st_mtime + 1)
    os.utime(marker, (younger, younger))
    return str(marker)


def remade_when(reason: str, unsound: Callable[[Path], bool], *outputs: str) -> Callable:
    """An input function: stand-ins for those `outputs` (patterns with wildcards) that exist and are unsound."""

    def inputs(wildcards) -> list[str]:
        paths = [pattern.format(**dict(wildcards.items())) for pattern in outputs]
        return [stand_in(reason, p) for p in paths if Path(p).exists() and unsound(Path(p))]

    return inputs


def remade_when_blank(*outputs: str) -> Callable:
    """An input function for outputs that must hold something."""
    return remade_when("holds-no-record", is_blank, *outputs)


def lacks_files(manifest: Path) -> bool:
    """Whether a source manifest is unreadable, or lists a file that is not there in its full size."""
    try:
        files = json.loads(manifest.read_bytes())["files"]
        return any((manifest.parent / f["path"]).stat().st_size != f["bytes"] for f in files)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def is_no_shard(path: Path) -> bool:
    """Whether a file of hidden states is not whole: another format, or cut."""
    try:
        Shard(path)
    except EyasError:
        return True
    return False
