"""Brings the files of a list of sources to a folder; a manifest says what is there.

    <folder>/<owner>--<repo>@<commit, 12 digits>/<name in the repository>
    <folder>/commits.json      what each revision resolved to; an interrupted fetch goes on at that commit

A file is there under its own name only when its size and its digest are those that the Hub names. Until
then it is `<name>.eyas-part`, and a later run asks for the rest of it. The commit is part of the path, so
files of two revisions never mix. Files of a local folder or a Python package are used in place.

Listing, addresses, token and HTTP client are huggingface_hub's (HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and
HF_HUB_DOWNLOAD_TIMEOUT mean what they mean there). The bytes are read here, since `hf_hub_download` of 1.x
and 2.x deletes its partial file whenever a download fails or is killed (huggingface_hub #4228), and since it
hides a 429 behind a LocalEntryNotFoundError (huggingface_hub #3612).
"""

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TypeVar

from eyas.config import Source
from eyas.errors import EyasError
from eyas.records import write_json
from eyas.storage import refuse_full_disk

log = logging.getLogger(__name__)

COMMITS = "commits.json"
PART = ".eyas-part"
TRIES = 6  # in a row that brought nothing new
FIRST_WAIT_S = float(os.environ.get("EYAS_RETRY_WAIT_S", "1"))  # doubles with each try; tests shorten it
LONGEST_WAIT_S = 300  # the Hub counts requests in windows of five minutes
RETRIED = (408, 429, 500, 502, 503, 504)
LISTED_NAMES = 20
LOG_EVERY_S = 30

T = TypeVar("T")


@dataclass(frozen=True)
class HubFile:
    """One file of a repository at one commit; `digest` is `sha256:…` (LFS) or `git:…` (a git blob's SHA-1)."""

    name: str
    bytes: int
    digest: str | None


def fetch(sources: Sequence[Source], folder: Path, *, first_file_only: bool = False) -> dict:
    """Bring the files of `sources` to `folder`, or use them in place, and return the manifest.

    `first_file_only` brings the first matching file of each source, to where a full fetch finds it again.

    Manifest: {"sources": [{"place", "repo", "revision", "commit", "pinned"}],
               "files": [{"path", "name", "source", "bytes"}]}
    `path` is relative to `folder` for files of the Hub, else absolute; `name` is the name inside the source;
    `source` is an index. Files come in the order of the sources, then of the patterns, then by name.

    Errors: EyasError, one line with the remedy, for all that can go wrong at the Hub, the network or the disk.
    What was downloaded until then is kept.
    """
    folder = Path(folder)
    listed: list[dict] = []
    files: list[dict] = []
    jobs: list[tuple[Source, str, HubFile, Path]] = []
    with _disk_errors(folder), _alone_in(folder):
        commits = _Commits(folder, sources)
        for index, source in enumerate(sources):
            entry = {"place": source.place, "repo": source.repo, "revision": None, "commit": None, "pinned": False}
            if source.repo:
                commit, wanted = commits.resolve(source)
                entry |= {"revision": source.revision, "commit": commit, "pinned": _is_commit(source.revision)}
                below = f"{source.repo.replace('/', '--')}@{commit[:12]}"
                for file in wanted[:1] if first_file_only else wanted:
                    path = f"{below}/{file.name}"
                    jobs.append((source, commit, file, folder / path))
                    files.append({"path": path, "name": file.name, "source": index, "bytes": file.bytes})
            else:
                local = _local_files(source)
                for name, path in local[:1] if first_file_only else local:
                    size = path.stat().st_size
                    files.append({"path": str(path), "name": name, "source": index, "bytes": size})
            listed.append(entry)
        _download(jobs, folder)
        _name_leftovers(folder, {path.relative_to(folder).parts[0] for *_, path in jobs})
    return {"sources": listed, "files": files}


def write_manifest(manifest: dict, path: Path) -> None:
    """Write a manifest atomically; an equal one that is already there keeps its time stamp."""
    with _disk_errors(path), _alone_in(path.parent):
        with contextlib.suppress(FileNotFoundError, ValueError):
            if json.loads(path.read_bytes()) == manifest:
                return
        write_json(path, manifest)


def read_manifest(path: Path) -> dict:
    """Read and check a manifest; EyasError when it is missing or damaged."""
    remedy = "delete it and run again to fetch what it lists"
    try:
        manifest = json.loads(Path(path).read_bytes())
        count = len(manifest["sources"])
        for file in manifest["files"]:
            sound = isinstance(file["path"], str) and isinstance(file["name"], str) and isinstance(file["bytes"], int)
            if not (sound and 0 <= file["source"] < count):
                raise ValueError(f"this entry is not a file: {json.dumps(file)}")
    except FileNotFoundError:
        raise EyasError(f"{path}: no such manifest: fetch the dataset first (scripts/fetch_source.py)") from None
    except OSError as error:
        raise EyasError(f"{path}: cannot read the manifest: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:  # a KeyError's text is only the key
        found = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise EyasError(f"{path}: damaged manifest ({found}): {remedy}") from None
    return manifest


def files_of(manifest: dict, manifest_path: Path) -> list[Path]:
    """The manifest's files in order; EyasError when one is missing or has another size than recorded."""
    paths = []
    for file in manifest["files"]:
        path = Path(manifest_path).parent / file["path"]  # an absolute path stays as it is
        size = _size(path)
        if size != file["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes, expected {file['bytes']}"
            raise EyasError(
                f"{path} is listed in {manifest_path} but {found}: delete the manifest and run again to fetch it"
            )
        paths.append(path)
    return paths


def matches(name: str, pattern: str) -> bool:
    """Whether a file's full name inside its source matches; `*`, `?` and `[]` do not cross a `/`."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def select(names: Sequence[str], source: Source) -> list[str]:
    """Names that match, in the order of the patterns, then by name, each once.

    Errors: EyasError when nothing matches, or when a pattern without wildcards does not.
    """
    chosen: dict[str, None] = {}
    empty = []
    for pattern in source.patterns:
        found = sorted(n for n in names if matches(n, pattern))
        if not found:
            empty.append(pattern)
        chosen |= dict.fromkeys(found)
    exact = [p for p in empty if not re.search(r"[*?[]", p)]
    if not chosen or exact:
        missing = ", ".join(map(repr, exact or source.patterns))
        more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
        holds = ", ".join(sorted(names)[:LISTED_NAMES]) + more if names else "no file"
        raise EyasError(f"{source.place}: no file matches {missing}; it holds {holds}: correct `files` of this source")
    for pattern in empty:
        log.info(f"{source.place}: note: no file matches {pattern!r}; other patterns of `files` do")
    return list(chosen)


# ---- what a revision is, and which files it holds


class _Commits:
    """commits.json: for each Hub source, the commit that its revision resolved to and the files to bring.

    An entry holds as long as repo, revision and files of the source stay as they are.
    """

    def __init__(self, folder: Path, sources: Sequence[Source]):
        self.folder, self.path = folder, folder / COMMITS
        self.known: list[dict] = []
        try:
            self.known = json.loads(self.path.read_bytes())["sources"]
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, KeyError):
            log.info(f"{self.path}: damaged, starting it anew")
        keys = [_key(source) for source in sources]
        self.known = [e for e in self.known if e.get("asked") in keys]

    def resolve(self, source: Source) -> tuple[str, list[HubFile]]:
        """Commit and wanted files of a Hub source: as remembered, else as the Hub says now."""
        for entry in self.known:
            if entry["asked"] == _key(source):
                commit, wanted = entry["commit"], [HubFile(**f) for f in entry["files"]]
                said = f"(as first resolved; delete {self.path} to ask the Hub again)"
                break
        else:
            commit, wanted = _ask_hub(source, self.folder)
            said = ""
            entry = {"asked": _key(source), "commit": commit, "files": [asdict(f) for f in wanted]}
            self.known.append(entry)
            write_json(self.path, {"sources": self.known})
        if not _is_commit(source.revision):
            log.info(f"{source.place} is commit {commit} {said or '(pin it in the config: revision: ' + commit + ')'}")
        return commit, wanted


def _key(source: Source) -> dict:
    return source.model_dump(mode="json", include={"repo", "repo_type", "revision"}) | {"files": [*source.patterns]}


def _ask_hub(source: Source, folder: Path) -> tuple[str, list[HubFile]]:
    from huggingface_hub import HfApi, is_offline_mode

    if is_offline_mode():
        raise EyasError(
            f"{source.place}: HF_HUB_OFFLINE is set and {folder} does not hold its files yet: unset it, "
            "or fetch once with a network, or give a local copy as `folder:` instead of `repo:`"
        )

    def ask():
        return HfApi().repo_info(
            source.repo, repo_type=source.repo_type, revision=source.revision, files_metadata=True, timeout=60
        )

    with _hub_errors(source):
        info = _patiently(ask)
    siblings = {s.rfilename: s for s in info.siblings or () if _is_inside(s.rfilename)}
    wanted = []
    for name in select(list(siblings), source):
        s = siblings[name]
        size = s.lfs.size if s.lfs else s.size
        if size is None:
            raise EyasError(f"{source.place}: the Hub names no size for {name}: check HF_ENDPOINT")
        digest = f"sha256:{s.lfs.sha256}" if s.lfs else f"git:{s.blob_id}" if s.blob_id else None
        wanted.append(HubFile(name, size, digest))
    return info.sha, wanted


def _is_commit(revision: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def _is_inside(name: str) -> bool:
    """Whether a name that a server gives stays below the folder it is joined to."""
    return not name.startswith("/") and ".." not in PurePosixPath(name).parts


# ---- local folders and packages


def _local_files(source: Source) -> list[tuple[str, Path]]:
    """(name, absolute path) of the files of a local folder or an installed package."""
    roots = [Path(source.folder)] if source.folder else _package_folders(source)
    if not any(root.is_dir() for root in roots):
        raise EyasError(f"{source.place}: there is no such folder ({roots[0].absolute()}): correct `folder`")
    deepest = max(p.count("/") for p in source.patterns)
    found: dict[str, Path] = {}
    for root in roots:
        for name in _names_below(root, deepest):
            found.setdefault(name, Path(os.path.abspath(root / name)))
    return [(name, found[name]) for name in select(list(found), source)]


def _names_below(root: Path, depth: int, prefix: str = "") -> Iterator[str]:
    """Names of the files at most `depth` folders below `root`; links to folders are followed."""
    for entry in os.scandir(root):
        if entry.is_file():
            yield prefix + entry.name
        elif depth and entry.is_dir():
            yield from _names_below(root / entry.name, depth - 1, f"{prefix}{entry.name}/")


def _package_folders(source: Source) -> list[Path]:
    """Folders of an installed package; nothing of it is imported."""
    top, *below = source.package.split(".")
    spec = importlib.util.find_spec(top)
    folders = [Path(place, *below) for place in (spec.submodule_search_locations or ())] if spec else []
    folders = [f for f in folders if f.is_dir()]
    if not folders:
        raise EyasError(
            f"{source.place}: no such package with files is installed: pip install it, or correct `package`"
        )
    return folders


# ---- downloading


def _download(jobs: list[tuple[Source, str, HubFile, Path]], folder: Path) -> None:
    """Download what is not there yet; each job is (source, commit, file, where it goes)."""
    from huggingface_hub import is_offline_mode

    missing = []
    for job in jobs:
        file, path = job[2], job[3]
        size = _size(path)
        if size is not None and size != file.bytes:
            log.info(f"{path} has {size} bytes, expected {file.bytes}: fetching it again")
            path.unlink()
        if size != file.bytes and path not in [m[3] for m in missing]:
            missing.append(job)
    if not missing:
        return
    if is_offline_mode():
        names = [f"{source.repo}: {file.name}" for source, _, file, _ in missing]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise EyasError(
            f"{folder}: HF_HUB_OFFLINE is set and files are missing here ({', '.join(names[:3])}{more}): "
            "unset it, or fetch once with a network"
        )
    needed = sum(file.bytes - (_size(_part(path)) or 0) for _, _, file, path in missing)
    remedy = "make room, or choose a working directory on another disk"
    refuse_full_disk(folder, f"{len(missing):,} files to download", needed, lambda free: remedy)
    for source, commit, file, path in missing:
        _download_file(source, commit, file, path)


def _download_file(source: Source, commit: str, file: HubFile, path: Path) -> None:
    """Download one file, going on where an earlier run stopped; afterwards it has the size and digest of `file`."""
    from huggingface_hub.utils import tqdm

    part = _part(path)
    part.parent.mkdir(parents=True, exist_ok=True)
    start, already = time.monotonic(), _size(part) or 0
    bar = tqdm(
        desc=file.name, initial=already, total=file.bytes, unit="B", unit_scale=True, disable=not sys.stderr.isatty()
    )
    with bar, _hub_errors(source, file.name):
        # Progress resets the count of tries: a line that is cut every few minutes still brings a large file home.
        _patiently(lambda: _read_rest(source, commit, file, part, bar), progress=lambda: _size(part) or 0)
    found = _digest(part, file.digest)
    if found != file.digest:
        part.unlink()
        raise EyasError(
            f"{source.place}: {file.name} arrived damaged ({found}, the Hub names {file.digest}) and was deleted: "
            "run again"
        )
    os.replace(part, path)
    took = max(time.monotonic() - start, 1e-6)
    resumed = f", resumed at {already / 1e6:.1f} MB" if already else ""
    log.info(f"{path}: {file.bytes / 1e6:.1f} MB ({(file.bytes - already) / 1e6 / took:.1f} MB/s{resumed})")


def _read_rest(source: Source, commit: str, file: HubFile, part: Path, bar) -> None:
    """Append to `part` what it still lacks; raises _Cut when the connection ends before that."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    have = _size(part) or 0
    if have > file.bytes:
        part.unlink()
        have = 0
    if have == file.bytes:
        part.touch()  # an empty file has nothing to ask for
        return
    url = hf_hub_url(source.repo, file.name, repo_type=source.repo_type, revision=commit)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}  # offsets count the file's own bytes
    if have:
        headers["Range"] = f"bytes={have}-"
    logged = time.monotonic()
    with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        with part.open("ab" if have and goes_on else "wb") as out:
            bar.update(out.tell() - bar.n)
            for chunk in response.iter_bytes():
                out.write(chunk)
                bar.update(len(chunk))
                if bar.disable and time.monotonic() - logged > LOG_EVERY_S:
                    logged = time.monotonic()
                    log.info(f"{file.name}: {out.tell() / 1e6:.0f} of {file.bytes / 1e6:.0f} MB")
            out.flush()
            os.fsync(out.fileno())
    size = part.stat().st_size
    if size != file.bytes:
        if size > file.bytes:
            part.unlink()
        raise _Cut(f"{file.name} ended after {size} bytes, the Hub names {file.bytes}")


class _Cut(Exception):
    """A response ended early, or went on for too long."""


def _patiently(attempt: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
    """Call `attempt` again after a cut connection, 429 or 5xx; the last error when TRIES in a row brought nothing.

    Waits as long as the Hub asks, at most LONGEST_WAIT_S, else twice as long each time.
    """
    import httpx2  # the HTTP library of huggingface_hub 2.x
    from huggingface_hub.errors import HfHubHTTPError

    tries = 0
    while True:
        before = progress()
        try:
            return attempt()
        except (HfHubHTTPError, httpx2.RequestError, _Cut) as error:
            response = error.response if isinstance(error, HfHubHTTPError) else None
            if isinstance(error, httpx2.UnsupportedProtocol):
                raise
            if response is not None and response.status_code not in RETRIED:
                raise
            tries = 1 if progress() > before else tries + 1
            if tries >= TRIES:
                raise
            asked = None if response is None else _wait_asked_for(response.headers)
            wait = FIRST_WAIT_S * 2 ** (tries - 1) if asked is None else asked
            if wait > LONGEST_WAIT_S:
                raise
            log.info(f"{_in_a_line(error)}; trying again in {wait:g} s ({tries} of {TRIES - 1})")
        time.sleep(wait)


def _wait_asked_for(headers) -> float | None:
    """Seconds that a refused client is asked to wait, by `Retry-After` or by the Hub's `ratelimit` header."""
    from huggingface_hub.utils import parse_ratelimit_headers

    if headers.get("Retry-After", "").strip().isdigit():
        return float(headers["Retry-After"])
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit and limit.remaining == 0 else None


def _digest(path: Path, like: str | None) -> str | None:
    """Digest of a file, of the same kind as `like`."""
    if like is None:
        return None
    kind = like.split(":")[0]
    if kind == "sha256":
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())  # how git names a blob
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


# ---- errors, each in one line


@contextlib.contextmanager
def _hub_errors(source: Source, name: str | None = None) -> Iterator[None]:
    """Turn what the Hub or the network answers into one line that names the source and the remedy."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except HfHubHTTPError as error:
        raise EyasError(f"{source.place}: {_refusal(error, source, name)}") from error
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise EyasError(f"{source.place}: HF_ENDPOINT is not an address: {_in_a_line(error)}") from error
    except (httpx2.RequestError, _Cut) as error:
        from huggingface_hub import constants

        raise EyasError(
            f"{source.place}: {name or 'the listing'} did not come through from {constants.ENDPOINT} in {TRIES} tries "
            f"({_in_a_line(error)}): check the network, then run again; what is downloaded is kept"
        ) from error
    except HFValidationError as error:
        raise EyasError(f"{source.place}: not a repository name ({_in_a_line(error)}): write owner/name") from error
    except ValueError as error:
        raise EyasError(
            f"{source.place}: the answer is not the Hub's ({_in_a_line(error)}): check HF_ENDPOINT and proxies"
        ) from error


def _refusal(error, source: Source, name: str | None) -> str:
    """What an HTTP error of the Hub means for the reader of the config."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = error.response.status_code
    page = f"{constants.ENDPOINT}/{'datasets/' if source.repo_type == 'dataset' else ''}{source.repo}"
    token = "a token is set but has no access" if get_token() else "no token is set"
    if isinstance(error, GatedRepoError):
        return (
            f"gated repository ({status}; {token}): accept its terms at {page}, "
            "then set HF_TOKEN to a token of that account"
        )
    if status in (401, 403):
        return (
            f"the Hub refuses access ({status}; {token}): check that {page} exists; if it is private or gated, "
            "set HF_TOKEN to a token of an account that may read it"
        )
    if isinstance(error, RevisionNotFoundError) or (status == 404 and name):
        what = f"file {name}" if name else f"revision {source.revision}"
        return f"the Hub has no {what} (404): correct `revision`, or delete {COMMITS} to resolve it again"
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return f"the Hub has no such {source.repo_type} (404, {page}): correct `repo` or `repo_type`"
    if status == 429:
        return (
            "too many requests (429), also after waiting: wait five minutes, or set HF_TOKEN for a higher limit, "
            "and run again; what is downloaded is kept"
        )
    return f"the Hub answers {status} for {name or 'the listing'} ({_in_a_line(error)}): run again later"


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one line."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EyasError(
                f"{where}: the disk is full ({error.strerror}): make room and run again; what is downloaded is kept"
            ) from error
        raise EyasError(f"{where}: {error.strerror or error}: check the path and its permissions") from error


def _in_a_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 and text else f"{type(error).__name__}{': ' if text else ''}{text[:200]}"


# ---- files


def _part(path: Path) -> Path:
    return path.with_name(path.name + PART)


def _size(path: Path) -> int | None:
    """Size in bytes of a regular file, None when there is none."""
    return path.stat().st_size if path.is_file() else None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Make the folder, and let one process at a time fetch into it (`probe` and a fetch may meet here)."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info(f"{folder}: another process fetches into it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            log.info(f"{folder}: cannot be locked ({error.strerror}); do not fetch into it twice at a time")
        yield


def _name_leftovers(folder: Path, used: set[str]) -> None:
    for old in sorted(folder.glob("*--*@*/")):
        if old.name not in used:
            log.info(f"{old}: left from another revision, no longer used; it can be deleted")
