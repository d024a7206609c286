"""A stand-in for the Hugging Face Hub on 127.0.0.1, with faults on demand.

    python tests/stand_in_hub.py ROOT [PORT]        # then: HF_ENDPOINT=http://127.0.0.1:PORT

It serves the folders `<root>/<owner>/<repo>/` as datasets and as models, and answers what the client of
huggingface_hub asks to list a repository (`/api/{datasets,models}/…/revision/…`) and to read a file
(`HEAD` and `GET /…/resolve/…`, with ranges). The commit is a hash of the folder's content: edit a file and
main has moved; a commit that was ever listed stays readable. Error codes and headers are the Hub's own.

Who has `writer`'s token may push models: repositories are made (`/api/repos/create`), large files come by LFS
(HF_HUB_DISABLE_XET=1), and a commit writes them into the repository's folder.
"""

import base64
import contextlib
import hashlib
import json
import math
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

LFS_FROM_BYTES = 1000  # larger files are LFS files: their digest is a sha256, smaller ones have a git blob id


@dataclass(frozen=True)
class Request:
    """One request as it came in; `range` is the Range header."""

    method: str
    path: str
    range: str | None


@dataclass
class _Cut:
    after_bytes: int
    times: float
    reset: bool


class StandInHub:
    """The server as a context manager; `url` is for HF_ENDPOINT, `requests` is what was asked of it so far.

    Faults: `gate`, `too_many`, `cut`, `claim_size`, `damage`, and `before_body`, which is called with a
    file's name before its bytes are sent. With `redirect`, LFS files come from another host, as on the Hub:
    an address there is open to all, and it refuses a request that still carries a token.
    """

    def __init__(self, root: Path, port: int = 0):
        self.root = Path(root)
        self.requests: list[Request] = []
        self.redirect = False
        self.before_body: Callable[[str], None] = lambda name: None
        self._snapshots: dict[tuple[str, str], dict[str, bytes]] = {}
        self._gated: dict[str, str] = {}
        self._too_many: tuple[float, str | None] = (0, None)
        self._cuts: dict[str, _Cut] = {}
        self._sizes: dict[str, int] = {}
        self._damaged: set[str] = set()
        self.writer: tuple[str, str] | None = None  # name and token
        self.private: dict[str, bool] = {}  # of the repositories that were made here
        self._uploads: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc_info) -> None:
        self._server.shutdown()
        self._server.server_close()

    # ---- faults

    def gate(self, repo: str, token: str) -> None:
        """Only `token` may read the files of `repo`; its listing stays public, as on the Hub."""
        self._gated[repo] = token

    def too_many(self, times: float = math.inf, retry_after: str | None = "0") -> None:
        """Answer the next `times` requests with 429."""
        self._too_many = (times, retry_after)

    def cut(self, name: str, after_bytes: int, times: float = 1, *, reset: bool = False) -> None:
        """Cut the connection after so many bytes of an answer that carries the file; `reset`: by a TCP reset."""
        self._cuts[name] = _Cut(after_bytes, times, reset)

    def claim_size(self, name: str, size_bytes: int) -> None:
        """List the file with another size than it has."""
        self._sizes[name] = size_bytes

    def damage(self, name: str, damaged: bool = True) -> None:
        """Flip the file's first byte whenever it is sent."""
        (self._damaged.add if damaged else self._damaged.discard)(name)

    # ---- content

    def commit(self, repo: str) -> str | None:
        """The commit that main of `repo` is at now; None when there is no such repository."""
        folder = self.root / repo
        if not folder.is_dir():
            return None
        files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        state = hashlib.sha1()
        for name, content in files.items():
            state.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
        self._snapshots[repo, state.hexdigest()] = files
        return state.hexdigest()

    def name_commit(self, repo: str, commit: str) -> None:
        """Let `commit` stand for what the repository holds now."""
        self._snapshots[repo, commit] = self._snapshots[repo, self.commit(repo)]

    def downloads(self, name: str) -> list[Request]:
        """The GET requests for a file's content."""
        return [r for r in self.requests if r.method == "GET" and r.path.endswith(f"/{name}") and "/resolve/" in r.path]

    def _siblings(self, repo: str, commit: str) -> list[dict]:
        siblings = []
        for name, content in self._snapshots[repo, commit].items():
            size = self._sizes.get(name, len(content))
            entry = {"rfilename": name, "size": size, "blobId": _git_blob(content)}
            if len(content) >= LFS_FROM_BYTES:
                entry["lfs"] = {"size": size, "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
            siblings.append(entry)
        return siblings

    def _find(self, repo: str, revision: str) -> str | None:
        """The commit that a revision stands for, None when there is none."""
        main = self.commit(repo)
        if revision == "main":
            return main
        return revision if (repo, revision) in self._snapshots else None

    # ---- HTTP

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                self.answer()

            def do_GET(self):
                self.answer()

            def answer(self):
                path = unquote(urlsplit(self.path).path)
                if path == "/api/agent-harnesses":  # the client's own housekeeping, once a day: no part of a fetch
                    return self.refuse(404, None, "not here")
                with hub._lock:
                    hub.requests.append(Request(self.command, path, self.headers.get("Range")))
                    times, retry_after = hub._too_many
                    if times > 0:
                        hub._too_many = (times - 1, retry_after)
                        wait = {"Retry-After": retry_after} if retry_after is not None else {}
                        return self.refuse(429, None, "You have hit the rate limit", wait)
                if path == "/api/whoami-v2":
                    if not self.may_write():
                        return self.refuse(401, None, "Invalid username or password.")
                    return self.json({"name": hub.writer[0], "type": "user", "orgs": []})
                if m := re.fullmatch(r"/api/(datasets|models)/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                    return self.listing(m[1], m[2], m[3] or "main")
                if m := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                    return self.file(m[1], m[2], m[3])
                if m := re.fullmatch(r"/elsewhere/([^/]+/[^/]+)/([^/]+)/(.+)", path):
                    if "Authorization" in self.headers:
                        return self.refuse(400, None, "Only one auth mechanism allowed")
                    return self.content(m[3], hub._snapshots[m[1], m[2]][m[3]], {})
                return self.refuse(404, None, f"the stand-in has no {path}")

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = unquote(urlsplit(self.path).path)
                with hub._lock:
                    hub.requests.append(Request("POST", path, None))
                if path == "/api/validate-yaml":
                    return self.json({"warnings": [], "errors": []})
                if not self.may_write():
                    return self.refuse(403, None, "This token may not write")
                if path == "/api/repos/create":
                    return self.create(json.loads(body))
                if m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
                    files = json.loads(body)["files"]
                    modes = {f["path"]: "lfs" if f["size"] >= LFS_FROM_BYTES else "regular" for f in files}
                    told = [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]
                    return self.json({"files": told})
                if path.endswith(".git/info/lfs/objects/batch"):
                    asked = json.loads(body)["objects"]
                    objects = [
                        {**o, "actions": {"upload": {"href": f"{hub.url}/upload/{o['oid']}", "header": {}}}}
                        for o in asked
                    ]
                    return self.json({"transfer": "basic", "objects": objects})
                if m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
                    return self.commit(m[1], [json.loads(line) for line in body.splitlines()])
                return self.refuse(404, None, f"the stand-in has no {path}")

            def do_PUT(self):
                content = self.rfile.read(int(self.headers["Content-Length"]))
                oid = self.path.rpartition("/")[2]
                if hashlib.sha256(content).hexdigest() != oid:
                    return self.refuse(400, None, "another file than was announced")
                hub._uploads[oid] = content
                self.send(200, b"", {})

            def may_write(self) -> bool:
                return hub.writer is not None and self.headers.get("Authorization") == f"Bearer {hub.writer[1]}"

            def create(self, asked: dict):
                owner = asked.get("organization") or hub.writer[0]
                repo = f"{owner}/{asked['name']}"
                if (hub.root / repo).is_dir():
                    return self.json({"error": "You already created this model repo", "url": f"{hub.url}/{repo}"}, 409)
                (hub.root / repo).mkdir(parents=True)
                hub.private[repo] = asked.get("visibility") == "private" or bool(asked.get("private"))
                self.json({"url": f"{hub.url}/{repo}", "id": repo, "name": repo})

            def commit(self, repo: str, items: list[dict]):
                for item in items:
                    value = item["value"]
                    if item["key"] in ("file", "lfsFile"):
                        path = hub.root / repo / value["path"]
                        path.parent.mkdir(parents=True, exist_ok=True)
                        lfs = item["key"] == "lfsFile"
                        path.write_bytes(hub._uploads[value["oid"]] if lfs else base64.b64decode(value["content"]))
                oid = hub.commit(repo)
                self.json({"success": True, "commitOid": oid, "commitUrl": f"{hub.url}/{repo}/commit/{oid}"})

            def json(self, value, status: int = 200):
                self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

            def listing(self, kind: str, repo: str, revision: str):
                if not (hub.root / repo).is_dir():
                    return self.no_repo()
                commit = hub._find(repo, revision)
                if commit is None:
                    return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
                siblings = hub._siblings(repo, commit)
                info = {"_id": "0", "id": repo, "sha": commit, "private": False, "tags": [], "siblings": siblings}
                self.send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

            def file(self, repo: str, revision: str, name: str):
                if not (hub.root / repo).is_dir():
                    return self.no_repo()
                if repo in hub._gated:
                    given = self.headers.get("Authorization")
                    if given is None:
                        return self.refuse(401, "GatedRepo", "Access to this dataset is restricted. Please log in.")
                    if given != f"Bearer {hub._gated[repo]}":
                        return self.refuse(403, "GatedRepo", "You are not in the authorized list.")
                commit = hub._find(repo, revision)
                if commit is None:
                    return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
                content = hub._snapshots[repo, commit].get(name)
                if content is None:
                    return self.refuse(404, "EntryNotFound", "Entry not found")
                lfs = len(content) >= LFS_FROM_BYTES
                etag = hashlib.sha256(content).hexdigest() if lfs else _git_blob(content)
                headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
                if lfs and hub.redirect:
                    place = f"http://localhost:{hub._server.server_port}/elsewhere/{repo}/{commit}/{name}"
                    linked = {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
                    return self.send(302, b"", {**headers, **linked, "Location": place})
                self.content(name, content, headers)

            def content(self, name: str, content: bytes, headers: dict):
                if name in hub._damaged:
                    content = bytes([content[0] ^ 1]) + content[1:]
                status = 200
                if m := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                    first, last = int(m[1]), min(int(m[2] or len(content) - 1), len(content) - 1)
                    if first > last:
                        return self.refuse(416, None, "range", {"Content-Range": f"bytes */{len(content)}"})
                    headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                    content, status = content[first : last + 1], 206
                self.send(status, content, headers, name)

            def no_repo(self):
                """Who has no token is told 401 also about repositories that do not exist."""
                if "Authorization" in self.headers:
                    return self.refuse(404, "RepoNotFound", "Repository not found")
                return self.refuse(401, "RepoNotFound", "Invalid username or password.")

            def refuse(self, status: int, code: str | None, message: str, headers: dict | None = None):
                codes = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
                self.send(status, json.dumps({"error": message}).encode(), {**codes, **(headers or {})})

            def send(self, status: int, body: bytes, headers: dict, name: str | None = None):
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if name is not None:
                    hub.before_body(name)
                fault = hub._cuts.get(name)
                if fault and fault.times > 0 and len(body) > fault.after_bytes:
                    fault.times -= 1
                    self.wfile.write(body[: fault.after_bytes])
                    self.wfile.flush()
                    if fault.reset:  # linger 0: close() sends RST
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        self.connection.close()
                    else:
                        self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                self.wfile.write(body)

            def handle_one_request(self):
                try:
                    super().handle_one_request()
                except (OSError, ValueError):  # the client left, or the connection was cut on purpose
                    self.close_connection = True

            def finish(self):
                with contextlib.suppress(OSError, ValueError):
                    super().finish()

            def log_message(self, *args):
                pass

        return Handler


def _git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


if __name__ == "__main__":
    with StandInHub(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0) as stand_in:
        print(f"HF_ENDPOINT={stand_in.url}", flush=True)
        threading.Event().wait()
