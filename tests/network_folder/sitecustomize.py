"""Makes folders behave to Python as NFSv4 would: for tests, put in PYTHONPATH.

EYAS_NETWORK_FOLDERS: the folders, separated by colons. What Linux's NFS client refuses in them is refused; what is
asked of them, and what only looks as if it worked, is a line in the file EYAS_NETWORK_NOTES: process, what, path.

- flock is a byte-range lock of the server: exclusive, it needs a file opened for writing, shared, one for reading; a
  child that inherits it does not hold it.
- rename is atomic within one file system; there is no O_TMPFILE, and what happened to a hard link is not certain.
- A file that is removed while it is open lives on as .nfs…, which keeps its folder from being removed.
"""

import errno
import fcntl
import os
import sys

FOLDERS = [os.path.realpath(path) for path in os.environ.get("EYAS_NETWORK_FOLDERS", "").split(":") if path]
NOTES = os.environ.get("EYAS_NETWORK_NOTES")
locked: dict[int, str] = {}  # file descriptor → path, of what this process locked


def within(path) -> str | None:
    """The path when it lies in one of the folders."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    path = os.path.realpath(os.fsdecode(path))
    return path if any(path == folder or path.startswith(folder + os.sep) for folder in FOLDERS) else None


def behind(descriptor) -> str | None:
    try:
        return within(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return None


def note(what: str, path: str) -> None:
    line = f"{os.getpid()} {what} {path}\n".encode()
    descriptor = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)


def on_flock(file, operation) -> None:
    descriptor = file if isinstance(file, int) else file.fileno()
    path = behind(descriptor)
    if path is None:
        return
    if operation & fcntl.LOCK_UN:
        locked.pop(descriptor, None)
        return
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    refused = os.O_RDONLY if operation & fcntl.LOCK_EX else os.O_WRONLY
    if mode == refused:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
    locked[descriptor] = path
    note("locks", path)


def on_fork() -> None:
    for descriptor, path in locked.items():
        if behind(descriptor) == path:
            note("forks-with-lock", path)


def on_rename(source, target, *_) -> None:
    if within(source) or within(target):
        folders = {os.path.dirname(os.path.realpath(os.path.abspath(os.fsdecode(p)))) for p in (source, target)}
        note("renames-within" if len(folders) == 1 else "renames-across", os.fsdecode(target))


def on_remove(path, *_) -> None:
    found = within(path)
    if found and any(behind(descriptor) == found for descriptor in os.listdir("/proc/self/fd")):
        note("removes-open", found)


def on_open(path, _mode, flags) -> None:
    if flags & os.O_TMPFILE == os.O_TMPFILE and within(path):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)


def on_link(source, target, *_) -> None:
    if within(source):
        note("links", os.fsdecode(target))


WATCHED = {
    "fcntl.flock": on_flock,
    "os.rename": on_rename,
    "os.remove": on_remove,
    "open": on_open,
    "os.link": on_link,
}


def hook(event: str, arguments: tuple) -> None:
    if event in WATCHED:
        WATCHED[event](*arguments)


if FOLDERS:
    sys.addaudithook(hook)
    os.register_at_fork(after_in_child=on_fork)
