"""Where the folders of the working directory lie, and whether their disks hold what is to come.

Folders on other disks are links to where the configuration says.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from eyas.errors import EyasError

SPARE = 0.95  # of the free space may be planned with


def link_folders(places: dict[str, str], work: Path, *, make: bool = True) -> None:
    """Make work/<name> a link to each place. places: name → folder; one that is missing is made, or (make false) left.

    EyasError when something else stands there: nothing is moved.
    """
    for name, place in places.items():
        link, target = work / name, Path(place).expanduser()
        if not target.is_absolute():
            raise EyasError(f"storage.{name}: {place}: expected an absolute path, such as /data/{name}")
        linked = link.is_symlink() and link.resolve() == target.resolve()
        if (link.is_symlink() or link.exists()) and not linked:
            found = f"a link to {link.readlink()}" if link.is_symlink() else "a folder"
            raise EyasError(
                f"storage.{name}: {link} is {found}, expected a link to {target}: move what it holds there and remove "
                "it, or change the key"
            )
        if not (make or target.is_dir()):
            continue
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EyasError(f"storage.{name}: {target} cannot be made ({error.strerror}): is the disk there?") from None
        if not linked:
            link.symlink_to(target)


def free_bytes(folder: Path) -> int:
    """Free on the disk where `folder` is, or will be."""
    while not folder.exists():
        folder = folder.absolute().parent
    return shutil.disk_usage(folder).free


def refuse_full_disk(folder: Path, what: str, needed: int, remedy: Callable[[int], str], usable: float = 1.0) -> None:
    """EyasError when the disk cannot hold the bytes that something needs.

    what: needs them, in the plural. remedy: given what is free. usable: share of the free space.
    """
    free = free_bytes(folder)
    if needed > usable * free:
        raise EyasError(f"{folder}: {what} need {size(needed)}, {size(free)} are free: {remedy(free)}")


def size(count: float) -> str:
    """Bytes for people."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,.0f} bytes"
