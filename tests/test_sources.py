"""Fetching: the real client of huggingface_hub in a process of its own, against the stand-in hub."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from conftest import ROOT
from eyas import sources
from eyas.config import Source
from eyas.errors import EyasError
from stand_in_hub import StandInHub
from waiting import until

REPO = "open-thoughts/OpenThoughts-114k"
SHARDS = [f"data/train-{i:05}-of-00003.parquet" for i in range(3)]
MB = 1_000_000
FETCH = [ROOT / "scripts/fetch_source.py"]
PROBE = [
    "-c",
    f"""import json, sys; sys.path.insert(0, {str(ROOT / "scripts")!r})
from pathlib import Path
from eyas.sources import fetch
from fetch_source import parse_settings
name, sources = parse_settings(sys.argv[-1])
print(json.dumps(fetch(sources, Path(sys.argv[2], name), first_file_only=True)))""",
]


@pytest.fixture
def hub(tmp_path):
    """A hub with one dataset: three shards of 1 MB, a card, and a script at the root."""
    content = random.Random(0)
    repo = tmp_path / "hub" / REPO
    for name, size in {**dict.fromkeys(SHARDS, MB), "README.md": 200, "load.py": 0, "metadata/x.parquet": 50}.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_bytes(content.randbytes(size))
    with StandInHub(tmp_path / "hub") as server:
        server.repo = repo
        yield server


class Run:
    """One run of scripts/fetch_source.py for dataset `d`, started in its own process."""

    def __init__(self, hub, tmp_path, specs=None, out="sources", program=FETCH, **env):
        specs = specs or [{"repo": REPO, "files": ["data/train-*.parquet"]}]
        self.folder = tmp_path / out / "d"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
        wanted = {"HF_HOME": str(tmp_path / "hf_home"), "EYAS_RETRY_WAIT_S": "0.02", **env}
        if hub is not None:
            wanted.setdefault("HF_ENDPOINT", hub.url)
        self.process = subprocess.Popen(
            [sys.executable, *program, "--output-dir", tmp_path / out]
            + ["--settings", json.dumps({"dataset": "d", "sources": specs})],
            env={**inherited, **wanted},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> "Run":
        self.output, _ = self.process.communicate(timeout=60)
        self.code = self.process.returncode
        return self

    @property
    def manifest(self) -> dict:
        return sources.read_manifest(self.folder / "manifest.json")

    @property
    def files(self) -> list[Path]:
        return sources.files_of(self.manifest, self.folder / "manifest.json")

    def good(self) -> "Run":
        self.end()
        assert self.code == 0, self.output
        return self

    def error(self) -> str:
        """The one line with which the run ended."""
        self.end()
        assert self.code == 1, self.output
        assert "Traceback" not in self.output
        *_, last = self.output.strip().splitlines()
        assert last.startswith("error: ")
        assert self.output.count("error: ") == 1
        assert not (self.folder / "manifest.json").exists()
        return last


# ---- what a fetch brings


def test_fetch_brings_every_matching_file_and_says_so_in_the_manifest(hub, tmp_path):
    run = Run(hub, tmp_path, [{"repo": REPO, "files": ["load.py", "data/train-*.parquet", "README.md"]}]).good()
    commit = hub.commit(REPO)
    place = f"{REPO} (dataset) at main"
    assert run.manifest["sources"] == [
        {"place": place, "repo": REPO, "revision": "main", "commit": commit, "pinned": False}
    ]
    names = ["load.py", *SHARDS, "README.md"]
    assert [f["name"] for f in run.manifest["files"]] == names
    assert [p.read_bytes() for p in run.files] == [(hub.repo / n).read_bytes() for n in names]
    assert not Path(run.manifest["files"][0]["path"]).is_absolute()
    assert f"revision: {commit}" in run.output  # the advice to pin
    assert f"{SHARDS[1]}: 1.0 MB" in run.output
    assert "%|" not in run.output  # no bars in a log


def test_a_pinned_revision_is_recorded_as_pinned(hub, tmp_path):
    commit = hub.commit(REPO)
    (hub.repo / "README.md").write_text("main has moved")
    run = Run(hub, tmp_path, [{"repo": REPO, "revision": commit, "files": ["README.md"]}]).good()
    entry = run.manifest["sources"][0]
    assert (entry["revision"], entry["commit"], entry["pinned"]) == (commit, commit, True)
    assert run.manifest["files"][0]["bytes"] == 200


def test_two_sources_may_hold_files_of_one_name(hub, tmp_path):
    other = tmp_path / "hub/o/r/README.md"
    other.parent.mkdir(parents=True)
    other.write_text("other")
    specs = [{"repo": REPO, "files": ["README.md"]}, {"repo": "o/r", "repo_type": "model", "files": ["README.md"]}]
    run = Run(hub, tmp_path, specs).good()
    assert [f["source"] for f in run.manifest["files"]] == [0, 1]
    assert run.files[0].stat().st_size == 200
    assert run.files[1].read_text() == "other"


def test_a_rerun_asks_the_hub_for_nothing(hub, tmp_path):
    first = Run(hub, tmp_path).good()
    stamp = (first.folder / "manifest.json").stat().st_mtime_ns
    hub.requests.clear()
    Run(hub, tmp_path).good()
    assert hub.requests == []
    assert (first.folder / "manifest.json").stat().st_mtime_ns == stamp
    (first.folder / "manifest.json").unlink()
    assert Run(hub, tmp_path).good().manifest == first.manifest
    assert hub.requests == []


def test_the_probe_brings_one_file_that_the_full_fetch_finds_again(hub, tmp_path):
    probe = Run(hub, tmp_path, program=PROBE).good()
    manifest = json.loads(probe.output.splitlines()[-1])
    assert [f["name"] for f in manifest["files"]] == SHARDS[:1]
    assert Run(hub, tmp_path).good().manifest["files"][0] == manifest["files"][0]
    assert [len(hub.downloads(n)) for n in SHARDS] == [1, 1, 1]


def test_two_processes_that_fetch_into_one_folder_download_once(hub, tmp_path):
    hub.before_body = lambda name: time.sleep(0.2)
    one, two = Run(hub, tmp_path), Run(hub, tmp_path)
    one.good(), two.good()
    assert [len(hub.downloads(n)) for n in SHARDS] == [1, 1, 1]
    assert "waiting" in one.output + two.output
    assert len(one.files) == 3


# ---- interruptions


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_cut_connection_resumes_where_it_was_cut(hub, tmp_path, reset):
    hub.cut(SHARDS[1], after_bytes=400_000, times=2, reset=reset)
    run = Run(hub, tmp_path).good()
    assert run.files[1].read_bytes() == (hub.repo / SHARDS[1]).read_bytes()
    ranges = [r.range for r in hub.downloads(SHARDS[1])]
    assert ranges[0] is None
    if not reset:  # a reset may discard bytes that were sent but not read yet
        assert ranges[1:] == ["bytes=400000-", "bytes=800000-"]
    assert [len(hub.downloads(n)) for n in SHARDS] == [1, len(ranges), 1]


def test_a_killed_fetch_goes_on_in_the_next_run_at_the_same_commit_although_main_moved(hub, tmp_path):
    hold = threading.Event()
    hub.cut(SHARDS[1], after_bytes=700_000)
    hub.before_body = lambda name: hold.wait(20) if len(hub.downloads(SHARDS[1])) == 2 else None
    run = Run(hub, tmp_path)
    until(lambda: len(hub.downloads(SHARDS[1])) == 2)  # 700 kB are on disk, the rest hangs
    run.process.send_signal(signal.SIGKILL)
    assert run.end().code == -signal.SIGKILL
    hold.set()
    hub.before_body = lambda name: None
    before, content = hub.commit(REPO), (hub.repo / SHARDS[1]).read_bytes()
    hub.requests.clear()
    for name in SHARDS:
        (hub.repo / name).write_bytes(b"a new main")
    assert hub.commit(REPO) != before

    run = Run(hub, tmp_path).good()
    assert run.manifest["sources"][0]["commit"] == before
    assert run.files[1].read_bytes() == content
    assert [r.range for r in hub.downloads(SHARDS[1])] == ["bytes=700000-"]
    assert hub.downloads(SHARDS[0]) == []
    assert "resumed at 0.7 MB" in run.output


def test_a_connection_that_brings_nothing_more_ends_in_one_line_and_keeps_the_part(hub, tmp_path):
    def nothing_more(name):
        if len(hub.downloads(SHARDS[0])) == 2:
            hub.cut(SHARDS[0], after_bytes=0, times=math.inf)

    hub.cut(SHARDS[0], after_bytes=100_000)
    hub.before_body = nothing_more
    line = Run(hub, tmp_path).error()
    assert "did not come through" in line
    assert "run again" in line
    assert len(hub.downloads(SHARDS[0])) == 1 + sources.TRIES - 1
    hub.requests.clear()
    hub.cut(SHARDS[0], after_bytes=0, times=0)
    Run(hub, tmp_path).good()
    assert [r.range for r in hub.downloads(SHARDS[0])] == ["bytes=100000-"]


def test_an_unreachable_hub_ends_in_one_line(hub, tmp_path):
    line = Run(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9").error()
    assert "http://127.0.0.1:9" in line
    assert "check the network" in line


def test_changed_files_or_revision_ask_the_hub_again(hub, tmp_path):
    Run(hub, tmp_path, [{"repo": REPO, "files": ["README.md"]}]).good()
    old = hub.commit(REPO)
    (hub.repo / "README.md").write_text("new")
    (tmp_path / "sources/d/manifest.json").unlink()
    unchanged = Run(hub, tmp_path, [{"repo": REPO, "files": ["README.md"]}]).good()
    assert unchanged.manifest["sources"][0]["commit"] == old
    changed = Run(hub, tmp_path, [{"repo": REPO, "files": ["README.md", "load.py"]}]).good()
    assert changed.manifest["sources"][0]["commit"] == hub.commit(REPO) != old
    assert changed.files[0].read_text() == "new"
    assert "can be deleted" in changed.output  # the old commit's folder is named
    pinned = Run(hub, tmp_path, [{"repo": REPO, "revision": old, "files": ["README.md", "load.py"]}]).good()
    assert pinned.manifest["sources"][0]["commit"] == old


def test_a_damaged_commits_json_is_made_anew(hub, tmp_path):
    run = Run(hub, tmp_path).good()
    (run.folder / "commits.json").write_text('{"sources": [')
    assert "damaged" in Run(hub, tmp_path).good().output


def test_a_file_that_arrives_damaged_is_not_kept(hub, tmp_path):
    hub.damage(SHARDS[0])
    line = Run(hub, tmp_path).error()
    assert "arrived damaged" in line
    hub.damage(SHARDS[0], False)
    assert Run(hub, tmp_path).good().files[0].read_bytes() == (hub.repo / SHARDS[0]).read_bytes()


def test_a_file_of_another_size_than_listed_is_not_kept(hub, tmp_path):
    hub.claim_size(SHARDS[0], MB - 10)
    assert f"the Hub names {MB - 10}" in Run(hub, tmp_path).error()


# ---- refusals


def test_a_gated_repository_says_to_accept_its_terms_and_to_set_a_token(hub, tmp_path):
    hub.gate(REPO, token="hf_good")
    page = f"{hub.url}/datasets/{REPO}"
    line = Run(hub, tmp_path).error()
    assert f"gated repository (401; no token is set): accept its terms at {page}" in line
    assert "HF_TOKEN" in line
    assert "403; a token is set but has no access" in Run(hub, tmp_path, HF_TOKEN="hf_other").error()
    assert len(Run(hub, tmp_path, HF_TOKEN="hf_good").good().files) == 3


def test_the_token_stays_at_the_hub_when_a_file_comes_from_elsewhere(hub, tmp_path):
    hub.gate(REPO, token="hf_good")
    hub.redirect = True
    hub.cut(SHARDS[0], after_bytes=300_000)
    run = Run(hub, tmp_path, HF_TOKEN="hf_good").good()
    assert run.files[0].read_bytes() == (hub.repo / SHARDS[0]).read_bytes()
    elsewhere = [r for r in hub.requests if r.path.startswith("/elsewhere/") and r.path.endswith(SHARDS[0])]
    assert [r.range for r in elsewhere] == [None, "bytes=300000-"]


def test_what_does_not_exist_is_named(hub, tmp_path):
    absent = [{"repo": "no/such", "files": ["a"]}]
    assert f"check that {hub.url}/datasets/no/such exists" in Run(hub, tmp_path, absent).error()
    assert "no such dataset (404" in Run(hub, tmp_path, absent, HF_TOKEN="hf_any").error()
    line = Run(hub, tmp_path, [{"repo": REPO, "revision": "v2", "files": ["README.md"]}]).error()
    assert f"{REPO} (dataset) at v2: the Hub has no revision v2 (404)" in line


def test_a_pattern_that_matches_nothing_lists_what_the_repository_holds(hub, tmp_path):
    for files in (["data/*.jsonl"], ["*.parquet"], ["README.md", "data/train.parquet"]):
        line = Run(hub, tmp_path, [{"repo": REPO, "files": files}]).error()
        assert f"no file matches {files[-1]!r}" in line
        assert f"it holds README.md, {SHARDS[0]}," in line


def test_429_is_waited_for_and_then_the_fetch_goes_on(hub, tmp_path):
    hub.too_many(3, retry_after="0")
    run = Run(hub, tmp_path).good()
    assert run.output.count("trying again") == 3
    shutil.rmtree(run.folder)
    hub.too_many(1, retry_after="1")
    start = time.monotonic()
    Run(hub, tmp_path).good()
    assert time.monotonic() - start > 1


def test_429_for_ever_ends_in_one_line(hub, tmp_path):
    hub.too_many(retry_after="0")
    assert "too many requests (429)" in Run(hub, tmp_path).error()
    assert len(hub.requests) == sources.TRIES
    hub.too_many(retry_after="86400")  # nobody waits for a day
    assert "too many requests (429)" in Run(hub, tmp_path).error()


def test_429_while_a_file_is_read_ends_in_one_line(hub, tmp_path):
    """huggingface_hub #3612: in hf_hub_download this surfaces as a missing file."""
    hub.before_body = lambda name: hub.too_many(retry_after=None)
    line = Run(hub, tmp_path).error()
    assert "too many requests (429)" in line
    hub.before_body = lambda name: None
    hub.too_many(0)
    Run(hub, tmp_path).good()
    assert len(hub.downloads(SHARDS[0])) == 1


# ---- no network, no room


def test_offline_uses_what_is_there_and_else_says_what_is_missing(hub, tmp_path):
    line = Run(hub, tmp_path, HF_HUB_OFFLINE="1").error()
    assert "HF_HUB_OFFLINE is set" in line
    online = Run(hub, tmp_path).good()
    hub.requests.clear()
    (online.folder / "manifest.json").unlink()
    assert Run(hub, tmp_path, HF_HUB_OFFLINE="1").good().manifest == online.manifest
    online.files[2].unlink()
    (online.folder / "manifest.json").unlink()
    assert f"files are missing here ({REPO}: {SHARDS[2]})" in Run(hub, tmp_path, HF_HUB_OFFLINE="1").error()
    assert hub.requests == []


def test_too_little_room_is_said_before_the_first_byte(hub, tmp_path):
    hub.claim_size(SHARDS[2], 10**18)
    line = Run(hub, tmp_path).error()
    assert "files to download need 1,000,000.0 TB" in line
    assert "make room" in line
    assert hub.downloads(SHARDS[0]) == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB (a tmpfs; needs root)."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_fills_up_ends_in_one_line_and_the_next_run_goes_on(hub, tmp_path, small_disk):
    def fill(name):
        if name == SHARDS[1]:
            with pytest.raises(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    hub.before_body = fill
    line = Run(hub, tmp_path, out="disk").error()
    assert "the disk is full (No space left on device): make room" in line
    hub.before_body = lambda name: None
    assert "are free: make room" in Run(hub, tmp_path, out="disk").error()
    (small_disk / "ballast").unlink()
    assert len(Run(hub, tmp_path, out="disk").good().files) == 3
    assert len(hub.downloads(SHARDS[0])) == 1


# ---- local folders and packages


def test_files_of_a_local_folder_are_used_in_place(tmp_path):
    (tmp_path / "mine/sub").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl"):
        (tmp_path / "mine" / name).write_text(name)
    run = Run(None, tmp_path, [{"folder": "mine", "files": ["*.jsonl"]}], HF_HUB_OFFLINE="1").good()
    assert run.files == [tmp_path / "mine/a.jsonl", tmp_path / "mine/b.jsonl"]
    assert [f["name"] for f in run.manifest["files"]] == ["a.jsonl", "b.jsonl"]
    assert run.manifest["sources"][0]["commit"] is None
    (run.folder / "manifest.json").unlink()
    assert (
        "no file matches '*.json'; it holds a.jsonl"
        in Run(None, tmp_path, [{"folder": "mine", "files": ["*.json"]}]).error()
    )
    assert "folder gone: there is no such folder" in Run(None, tmp_path, [{"folder": "gone", "files": ["*"]}]).error()


def test_a_dataset_of_a_config_file_is_fetched_by_its_name(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.jsonl").write_text("{}")
    source = {"folder": str(tmp_path / "mine"), "files": ["*.jsonl"]}
    target = {"model": "m", "name": "t", "tokenizer": source}
    datasets = {"d": {"adapter": "x", "produces": "prompts", "sources": [source]}}
    (tmp_path / "config.yaml").write_text(json.dumps({"target": target, "datasets": datasets}))
    command = [*FETCH, "--configfile", tmp_path / "config.yaml", "--output-dir", tmp_path / "sources", "--dataset"]
    ends = [
        subprocess.run([sys.executable, *command, n], check=False, capture_output=True, text=True) for n in ("d", "e")
    ]
    assert [e.returncode for e in ends] == [0, 1]
    assert (tmp_path / "sources/d/manifest.json").exists()
    assert "there is no 'e'" in ends[1].stderr


def test_files_of_a_package_are_found_without_importing_it(tmp_path):
    package = tmp_path / "site/kimi_like"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('was imported')")
    (package / "data/tokenizer.json").write_text("{}")
    env = {"PYTHONPATH": str(tmp_path / "site")}
    run = Run(None, tmp_path, [{"package": "kimi_like", "files": ["data/*.json"]}], **env).good()
    assert run.files == [package / "data/tokenizer.json"]
    dotted = Run(None, tmp_path, [{"package": "kimi_like.data", "files": ["*.json"]}], **env).good()
    assert dotted.files == run.files
    (run.folder / "manifest.json").unlink()
    assert "package nowhere: no such package" in Run(None, tmp_path, [{"package": "nowhere", "files": ["*"]}]).error()


# ---- the manifest as it is read


def test_a_listed_file_that_is_missing_or_short_is_named(hub, tmp_path):
    run = Run(hub, tmp_path, [{"repo": REPO, "files": ["README.md"]}]).good()
    manifest, (file,) = run.folder / "manifest.json", run.files
    file.write_text("short")
    with pytest.raises(EyasError) as error:
        _ = run.files
    assert str(error.value) == (
        f"{file} is listed in {manifest} but has 5 bytes, expected 200: delete the manifest and run again to fetch it"
    )
    file.unlink()
    with pytest.raises(EyasError, match="is listed in .* but is missing: delete the manifest"):
        _ = run.files
    assert Run(hub, tmp_path, [{"repo": REPO, "files": ["README.md"]}]).good().files == [file]


@pytest.mark.parametrize(
    "text",
    ['{"sources": [', "[]", "{}", '{"sources": [], "files": [{"path": "a", "name": "a", "source": 0, "bytes": 1}]}'],
    ids=["cut", "list", "empty", "index"],
)
def test_a_damaged_manifest_is_named(tmp_path, text):
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(EyasError, match="manifest.json: damaged manifest .* delete it"):
        sources.read_manifest(path)


def test_settings_that_are_not_settings_are_named(tmp_path):
    for specs in ([{"repo": REPO}], [{"repo": REPO, "folder": "x", "files": ["a"]}]):
        assert "--settings: expected" in Run(None, tmp_path, specs).error()


def test_wildcards_do_not_cross_a_slash():
    assert sources.matches("data/train-0.parquet", "data/train-*.parquet")
    assert sources.matches("x.py", "*.py")
    assert not sources.matches("sub/x.py", "*.py")
    assert not sources.matches("x.py", "*/x.py")
    source = Source(folder="f", files=("b*", "a", "*"))
    assert sources.select(["c", "b2", "a", "b1", "d/e"], source) == ["b1", "b2", "a", "c"]
    assert Counter(sources.select(["a", "b"], source)) == {"a": 1, "b": 1}
