"""Folders of the working directory that lie on other disks: links to where the configuration says."""

from pathlib import Path

from eyas.errors import EyasError


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
