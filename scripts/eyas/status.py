"""Where a run stands, now: each stage's done, left, rate and time left; GPUs, servers, disk.

Everything is read from files that the jobs write anyway, and from the processes of this host, so it may be asked at any
time: nothing is written, and nothing is locked for longer than a moment. What no file tells is not guessed. A file that
cannot be read is named among the problems, with the remedy.

A rate is shown while it is live: its counter moved lately, and its job is seen. What is there counts as done; whether
it was made under today's settings, `snakemake tally` tells.
"""

import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

import orjson
import psutil

from eyas.config import Config
from eyas.eagle3.metrics import FILE as METRICS
from eyas.eagle3.metrics import read_metrics
from eyas.errors import EyasError
from eyas.generate import COUNTERS
from eyas.gpus import holders, visible_gpus
from eyas.layers import Shape
from eyas.plan import plan
from eyas.progress import duration
from eyas.records import RECORD_FILES, is_blank
from eyas.states import captured_of, shard_path
from eyas.storage import free_bytes

STALE_S = 120.0  # a counter that has not moved for so long, or for STALE_GAPS of its usual gaps, is no live one
STALE_GAPS = 3
HEALTH_TIMEOUT_S = 2.0
NAMED = 8  # datasets in a note
SCRIPTS = Path(__file__).resolve().parents[1]
TELLS_WHICH = ("dataset", "split", "shard", "engine", "output-dir")  # arguments that tell one job from another
IN_THE_WAY = "`snakemake tally` names the command that makes it again"


@dataclass(frozen=True)
class Job:
    """A script that runs on this host in the working directory. pids: of it, then of its workers, if it has some."""

    pids: tuple[int, ...]
    script: str
    arguments: dict[str, str]
    since: float  # Unix time

    @property
    def pid(self) -> int:
        return self.pids[0]

    @property
    def name(self) -> str:
        """For people: generate_responses B5_openthoughts."""
        return " ".join([self.script, *(self.arguments[k] for k in _WHICH.get(self.script, ()) if k in self.arguments)])


_WHICH = {
    **dict.fromkeys(("fetch_source", "prepare_dataset", "generate_responses"), ("dataset",)),
    "capture_states": ("split", "shard"),
    "train_draft": ("output-dir",),
    "evaluate_draft": ("engine",),
}


@dataclass
class Row:
    """One stage, or one part of it. of, left: None while nobody knows. rate: in `rate_unit`; None: not live."""

    name: str
    unit: str
    done: float
    of: float | None
    rate: float | None = None
    rate_unit: str = "tokens/s"
    seconds_left: float | None = None
    note: str = ""
    parts: list["Row"] = field(default_factory=list)

    @property
    def left(self) -> float | None:
        return None if self.of is None else round(self.of - self.done, 1)

    def as_json(self) -> dict:
        return {**asdict(self), "left": self.left, "parts": [part.as_json() for part in self.parts]}


def status(config: Config, root: Path) -> dict:
    """Of the run in the working directory `root`, as plain JSON; times are Unix times.

    {"time", "host", "directory", "target", "snakemake": {"state", "pids", "since"}, "jobs": [{"pid", "name", "since"}],
     "stages": [{"name", "unit", "done", "of", "left", "rate", "rate_unit", "seconds_left", "note", "parts": the same}],
     "gpus": {"devices": [{"id", "pid": its holder, None when it is free, "who": in words}],
              "waiting": [{"pid", "who", "gpus": how many}]},
     "servers": [{"host", "key", "state", "message", "url", "pid", "pid_alive", "keeper_pid", "alive": its keeper and so
                  itself, "health", "since", "time", "restarts", "gpus"}], None for what is not known here,
     "disk": {"free_bytes", "needed_bytes", "bound", "fits", "why_unknown"}, "problems": [str]}
    """
    look = _Look(config, root.resolve(), time.time())
    snakemake, servers = look.snakemake(), look.servers()
    stages = [stage().as_json() for stage in look.stages]
    return {
        "time": look.now,
        "host": socket.gethostname(),
        "directory": str(look.root),
        "target": config.target.name,
        "snakemake": snakemake,
        "jobs": [{"pid": j.pid, "name": j.name, "since": j.since} for j in look.jobs],
        "stages": stages,
        "gpus": look.gpus(servers),
        "servers": servers,
        "disk": look.disk(),
        "problems": look.problems,
    }


class _Look:
    """One look at everything; `problems` collects what could not be read."""

    def __init__(self, config: Config, root: Path, now: float):
        self.config, self.root, self.now = config, root, now
        self.problems: list[str] = []
        self.jobs, self.snakemakes = _processes(root)
        self.locks = list((root / ".snakemake/locks").glob("*"))
        # Jobs of a cluster run elsewhere: then Snakemake holds the folder, and no job is seen here.
        self.elsewhere = bool(self.locks) and not self.jobs
        self.planned = self._planned()
        self.stages: tuple[Callable[[], Row], ...] = (
            *(self.prepared, self.generated, self.corpus, self.captured, self.trained, self.evaluated, self.deployed),
        )

    # What files say

    def problem(self, path: Path, what: object, remedy: str) -> None:
        told = f"{self._short(path)}: {what}: {remedy}"
        if told not in self.problems:  # two stages may need the file
            self.problems.append(told)

    def json(self, path: Path, remedy: str, **kinds: type | tuple) -> dict:
        """What a file holds; {} when it is missing, or (then it is a problem) lacks one of `kinds`."""
        try:
            found = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, orjson.JSONDecodeError) as error:
            self.problem(path, f"cannot be read ({error})", remedy)
            return {}
        if not isinstance(found, dict):
            self.problem(path, "not a JSON object", remedy)
            return {}
        if wrong := [k for k, kind in kinds.items() if not isinstance(found.get(k), kind)]:
            self.problem(path, f"{', '.join(wrong)}: missing or not as expected", remedy)
            return {}
        return found

    def there(self, *names: str) -> bool:
        """Whether all these files are there, and hold something."""
        try:
            return all((self.root / name).is_file() and not is_blank(self.root / name) for name in names)
        except OSError as error:
            self.problem(Path(error.filename or names[0]), f"cannot be read ({error.strerror})", IN_THE_WAY)
            return False

    def job(self, script: str, **arguments: str) -> Job | None:
        found = (j for j in self.jobs if j.script == script)
        return next((j for j in found if all(j.arguments.get(k) == v for k, v in arguments.items())), None)

    def live(self, age_s: float, gap_s: float, job: Job | None) -> tuple[bool, str]:
        """(whether a counter that moved `age_s` ago is live, a note when it is not). gap_s: usual between two moves."""
        age_s = max(0.0, age_s)
        if age_s > max(STALE_S, STALE_GAPS * gap_s):
            whose = f"process {job.pid} lives" if job else "no job is seen here"
            return False, f"stale since {_span(age_s)}; {whose}"
        if job or self.elsewhere:
            return True, ""
        return False, f"stopped {_span(age_s)} ago; no job is seen"

    # Stages

    def prepared(self) -> Row:
        names = self.config.names()
        left = [n for n in names if not self.there(self._prepared_file(n), f"prepared/{n}/stats.json")]
        busy = [n for n in left if self.job("prepare_dataset", dataset=n)]
        return Row("prepared", "datasets", len(names) - len(left), len(names), note=_listed("now", busy))

    def generated(self) -> Row:
        parts, unknown = [], []
        for name in self.config.names("prompts"):
            stats = self.json(self.root / f"prepared/{name}/stats.json", IN_THE_WAY, kept=int)
            if not stats or not self.there(self._prepared_file(name)):
                unknown.append(name)
            else:
                parts.append(self._answers(name, stats["kept"]))
        done, of = sum(p.done for p in parts), sum(p.of for p in parts)
        row = Row("generated", "answers", done, of if parts or not unknown else None)
        busy = [p for p in parts if p.rate is not None]
        if busy:
            row.rate = round(sum(p.rate for p in busy), 1)
            a_second = sum(p.left / p.seconds_left for p in busy if p.seconds_left)  # all datasets share a target
            row.seconds_left = round(row.left / a_second) if a_second else None
        row.note = _listed("not prepared, so not counted", unknown)
        row.parts = [p for p in parts if p.left and (p.done or p.note or p.rate is not None)]
        return row

    def _answers(self, name: str, of: int) -> Row:
        row = Row(name, "answers", 0, of)
        if self.there(f"responses/{name}/{RECORD_FILES['tokenized_data']}", f"responses/{name}/stats.json"):
            row.done = of
            return row
        path, number = self.root / "state/generate_responses" / name / COUNTERS, (int, float)
        counters = self.json(
            path,
            "delete it; the next run writes it anew, from the journal",
            **{"done": int, "left": int, "failed": int, "tokens_per_s": number, "updated": str},
        )
        job = self.job("generate_responses", dataset=name)
        if not counters:
            row.note = "loads the target, or waits for it" if job else ""
            return row
        try:
            age = self.now - datetime.fromisoformat(counters["updated"]).timestamp()
        except ValueError:
            age = self.now - _moved(path)
            self.problem(path, f"updated is no time ({counters['updated']})", "the next run writes it anew")
        row.done = min(counters["done"], of)
        seconds_left = counters.get("seconds_left")
        seconds_left = seconds_left if isinstance(seconds_left, number) else None
        gap = seconds_left / counters["left"] if seconds_left and counters["left"] else 0.0
        live, row.note = self.live(age, gap, job)
        if live:
            row.rate, row.seconds_left = counters["tokens_per_s"], seconds_left
        notes = [row.note, f"{counters['failed']:,} set aside" if counters["failed"] else ""]
        if counters["done"] + counters["left"] != of:
            notes.append(f"counted when there were {counters['done'] + counters['left']:,} prompts")
        row.note = "; ".join(filter(None, notes))
        return row

    def corpus(self) -> Row:
        whole = self.there("corpus/train.parquet", "corpus/heldout.parquet", "corpus/stats.json")
        vocabulary = self.there("draft_vocab/map.safetensors", "draft_vocab/coverage.json")
        row = Row("corpus", "files", whole + vocabulary, 2)
        if whole and (tokens := self._corpus_tokens()) is not None:
            row.note = f"{tokens:,} tokens"
        busy = [j.name for j in self.jobs if j.script in ("build_corpus", "build_vocabulary")]
        row.note = "; ".join(filter(None, [row.note, _listed("now", busy)]))
        return row

    def _corpus_tokens(self) -> int | None:
        stats = self.json(self.root / "corpus/stats.json", IN_THE_WAY, train=dict, heldout=dict)
        tokens = [stats[split].get("tokens") for split in ("train", "heldout")] if stats else [None]
        return sum(tokens) if all(isinstance(t, int) for t in tokens) else None

    def captured(self) -> Row:
        capture, done, captured, parts = self.config.capture, 0, 0, []
        known = True  # how many tokens all finished shards have
        paths = [
            (split, shard_path(self.root / "hidden_states" / split, k, count))
            for split, count in capture.counts.items()
            for k in range(count)
            if split == "heldout" or capture.window is None
        ]
        for split, path in paths:
            if self.there(self._short(path)):
                stats = self.json(path.with_suffix(".json"), IN_THE_WAY, tokens=int)
                done, captured, known = done + 1, captured + stats.get("tokens", 0), known and bool(stats)
            elif part := self._partial(split, path):
                part, tokens = part
                parts.append(part)
                captured += tokens
        row = Row("captured", "shards", done, len(paths), parts=parts)
        if busy := [part.rate for part in parts if part.rate is not None]:
            row.rate = round(sum(busy), 1)  # each as a finished shard's was
        if (window := self._window()) is not None:
            row.note = window
        elif row.rate and known and (tokens := self._corpus_tokens()) is not None:
            row.seconds_left = round(max(0, tokens - captured) / row.rate)
        return row

    def _partial(self, split: str, path: Path) -> tuple[Row, int] | None:
        """(how far a shard is that is being captured, its finished tokens); None when nobody began it."""
        shard = path.name.partition("-")[0]  # 00003, as Snakemake passes it; 3, as people type it
        partial = path.with_name(f".{path.name}.partial")
        jobs = (self.job("capture_states", split=split, shard=k) for k in (shard, str(int(shard))))
        job = next(filter(None, jobs), None)
        try:
            moved = partial.stat().st_mtime
            found = captured_of(path)
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError):
                return None
            self.problem(partial, error, "when it stays so, the next run lays it out anew")
            return None
        if found is None:
            return None
        row = Row(f"{split} {shard}", "samples", found.samples_done, found.samples)
        rate = (self.planned.get("rates") or {}).get("capturing")
        live, row.note = self.live(self.now - moved, 0.0, job)
        if live and rate:
            row.rate = round(rate, 1)
            row.seconds_left = round((found.tokens - found.tokens_done) / rate)
        elif live:
            row.note = "no rate before one shard is finished"
        return row, found.tokens_done

    def _window(self) -> str | None:
        """Of shards that come and go: how many lie there, and which is next."""
        if self.config.capture.window is None:
            return None
        there = len(list((self.root / "hidden_states/window").glob("*/train/*-of-*.safetensors")))
        total = self.config.capture.shards * self.config.train.epochs
        positions = sorted((self.root / "state/train_draft").glob("*/window.json"), key=_moved)
        following = self.json(positions[-1], "delete it to train from the start", next=int) if positions else {}
        number = following.get("next", 0)
        left = "all were trained on" if number >= total else f"training needs number {number + 1:,} of {total:,} next"
        return f"held-out shards alone; of a window of {self.config.capture.window}, {there} lie there, {left}"

    def trained(self) -> Row:
        row = Row("trained", "%", 0, 100)
        if self.there("draft/model.safetensors", "draft/config.json", "draft/training.json"):
            row.done, lines = 100, self._metrics(self.root / "draft" / METRICS)
            row.note = "; ".join(filter(None, [_lengths(lines)]))
            return row
        job, path, others = self._training()
        lines = self._metrics(path) if path else []
        steps = [line for line in lines if line.get("kind") == "train"]
        if not steps:
            row.note = "loads, or has no line of metrics yet" if job else ""
            return row
        last, before = steps[-1], steps[-2] if len(steps) > 1 else {"seconds": 0.0}
        row.done = round(100 * min(1.0, last["progress"]), 1)
        age = max(0.0, self.now - _moved(path))
        live, note = self.live(age, max(0.0, last["seconds"] - before["seconds"]), job)
        if live:
            row.rate = last["tokens_per_s"]
            row.seconds_left = max(0, round(last["seconds"] * (1 / max(last["progress"], 1e-6) - 1) - age))
        told = f"step {last['step']:,}, loss {last['loss']:.3f}, {_lengths(lines)}"
        where = self._short(path.parent) + (f", the latest of {len(others)} runs" if len(others) > 1 else "")
        row.note = "; ".join(filter(None, [note, told, where]))
        return row

    def _metrics(self, path: Path) -> list[dict]:
        """The lines of a metrics file that have what is shown; a damaged file is a problem."""
        numbers = {"train": ("step", "progress", "seconds", "loss", "acceptance_length", "tokens_per_s")}
        numbers["heldout"] = ("acceptance_length",)
        try:
            lines = read_metrics(path)
            if all(isinstance(line[k], int | float) for line in lines for k in numbers[line["kind"]]):
                return lines
            what = "a number is missing"
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"a line is damaged ({error!r})"
        self.problem(path, what, "move it away: the training goes on from its checkpoint, and measures anew")
        return []

    def _training(self) -> tuple[Job | None, Path | None, list[Path]]:
        """(the job that trains the draft, its metrics, those of all runs), the latest last.

        Drafts on parts of the corpus (`snakemake scaling`) have theirs beside it: what a job has open is its own.
        """
        own, theirs = None, set()
        jobs = [j for j in self.jobs if j.script == "train_draft"]
        mine = next((j for j in jobs if j.arguments.get("output-dir", "draft") == "draft"), None)
        for job in jobs:
            for path in _open_files(job, METRICS):
                if job is mine:
                    own = path
                else:
                    theirs.add(path)
        found = sorted((self.root / "state/train_draft").glob(f"*/{METRICS}"), key=_moved)
        found = [path for path in found if path not in theirs]
        return mine, own or (found[-1] if found else None), found

    def evaluated(self) -> Row:
        engines = self.config.engines()
        tried = [e for e in engines if self.there(f"evaluation/{e}.jsonl")]
        summary = self.there("evaluation/summary.json")
        row = Row("evaluated", "files", len(tried) + summary, len(engines) + 1)
        left, prompts = [e for e in engines if e not in tried], self.root / "evaluation/prompts.jsonl"
        if left and prompts.is_file() and (kept := self._tried(left[0], prompts)):
            row.parts = [kept]
        return row

    def _tried(self, engine: str, prompts: Path) -> Row | None:
        """What an engine has tried of this draft, as its journal or its passes tell."""
        job, folder = self.job("evaluate_draft", engine=engine), self.root / "state/evaluation"
        draft = _moved(self.root / "draft/model.safetensors")
        if engine == "sglang":
            files, of = list(folder.glob("pass-*.json")), 2 * len(self.config.evaluate.concurrency)
            done = min(of, sum(_moved(f) > draft for f in files))
            row = Row(engine, "passes", done, of)
        else:
            files = [f for f in folder.glob(f"{engine}-*.jsonl") if _moved(f) > draft]
            of = _lines(prompts)
            row = Row(engine, "prompts", min(of, _lines(max(files, key=_moved))) if files else 0, of)
        if not job and not row.done:
            return None
        row.note = "" if job else "no job is seen here"
        return row

    def deployed(self) -> Row:
        files = ("deploy/draft/model.safetensors", "deploy/launch_server.sh", "deploy/check")
        return Row("deployed", "folder", int(self.there(*files)), 1)

    # The machine

    def snakemake(self) -> dict:
        """state: running, planning (it holds no lock, or is only asked), killed (nobody holds its lock here), none."""
        pids = [pid for pid, _ in self.snakemakes]
        state = ("running" if self.locks else "planning") if pids else "killed" if self.locks else "none"
        return {"state": state, "pids": pids, "since": min((s for _, s in self.snakemakes), default=None)}

    def servers(self) -> list[dict]:
        """Of every server.json, the living first; a server that runs already (target.sglang.url) is one of them."""
        found = []
        for path in sorted((self.root / "state/server").glob("*/*/server.json"), key=_moved, reverse=True):
            remedy = "remove its folder when no server runs; the next job starts one"
            kinds = {"state": str, "message": str, "url": (str, type(None)), "time": (int, float)}
            state = self.json(path, remedy, **kinds)
            if state:
                found.append(self._server(path.parts[-3], path.parts[-2], state))
        sglang = self.config.target.sglang
        if self.config.target.engine == "sglang" and sglang.url is not None:
            found.insert(0, {**_NO_SERVER, "key": "url", "state": "named", "url": sglang.url, "alive": None})
        asked = [s for s in found if s["url"] and s["alive"] is not False and s["host"] in (None, socket.gethostname())]
        with ThreadPoolExecutor(max(1, len(asked))) as pool:
            for server, health in zip(asked, pool.map(lambda s: health_of(s["url"]), asked), strict=True):
                server["health"] = health
        return sorted(found, key=lambda s: s["alive"] is False)

    def _server(self, host: str, key: str, state: dict) -> dict:
        """alive: whether its keeper lives, and so itself; None on another host. since: of the server's process."""
        ended, here = state["state"] not in ("starting", "ready"), host == socket.gethostname()
        keeper, own = (_started(state.get(k), state["time"]) for k in ("keeper_pid", "pid"))
        begun = state.get("keeper_pid") is None and self.now - state["time"] < STALE_S  # a client starts its keeper
        alive = False if ended else keeper is not None or begun if here else None
        return {
            **_NO_SERVER,
            **{k: state[k] for k in _NO_SERVER if k in state},
            **{"host": host, "key": key, "alive": alive, "pid_alive": own is not None if here else None},
            "since": own if alive else None,
        }

    def gpus(self, servers: list[dict]) -> dict:
        try:
            devices, waiting = holders(visible_gpus())
        except (EyasError, OSError, ValueError) as error:
            self.problems.append(f"GPUs: {error}")
            devices, waiting = {}, {}
        return {
            "devices": [{"id": i, "pid": pid, "who": self._who(pid, servers)} for i, pid in devices.items()],
            "waiting": [{"pid": pid, "who": self._who(pid, servers), "gpus": n} for pid, n in waiting.items()],
        }

    def _who(self, pid: int | None, servers: list[dict]) -> str | None:
        """What holds a lease, or waits for one, in words."""
        if not pid:
            return None if pid is None else "whose file does not name it"
        if server := next((s for s in servers if s["keeper_pid"] == pid), None):
            return f"server {server['key']}"
        if job := next((j for j in self.jobs if pid in j.pids), None):
            return job.name
        try:
            process = psutil.Process(pid)
            job = _job(pid, process.cmdline(), process.create_time())
            return f"{job.name if job else process.name()} in {process.cwd()}"
        except psutil.NoSuchProcess:
            return "ended; what it started still holds them"
        except psutil.Error:
            return "somebody else's"

    def _planned(self) -> dict:
        """The plan's numbers; {"why": …} when it has none."""
        try:
            shape = Shape.of(self.root / "target/tokenizer", self.root / self.config.target.model)
        except EyasError:
            return {"why": "the target's width comes with target/tokenizer/"}
        try:
            return plan(self.config, self.root, shape.hidden)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            self.problems.append(f"the plan cannot be made ({error!r}): `snakemake tally` names the damaged file")
            return {"why": "see below"}

    def disk(self) -> dict:
        """bound: "" for a count, "at most", or "at least" while something is unknown."""
        planned, free = self.planned, free_bytes(self.root / "hidden_states")
        unknown = {"free_bytes": free, "needed_bytes": None, "bound": "", "fits": None}
        if "why" in planned:
            return {**unknown, "why_unknown": planned["why"]}
        if planned["unknown"] and not planned["tokens"]:
            return {**unknown, "why_unknown": "nothing is prepared yet"}
        bound = "at least" if planned["unknown"] else "at most" if planned["at_most"] else ""
        known = {"needed_bytes": planned["bytes_needed"], "bound": bound, "fits": planned["fits"]}
        return {**unknown, **known, "why_unknown": None}

    def _prepared_file(self, name: str) -> str:
        return f"prepared/{name}/{RECORD_FILES[self.config.dataset(name).produces]}"

    def _short(self, path: Path) -> str:
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


_NO_SERVER = {
    **{"host": None, "key": "", "state": "", "message": "", "url": None, "pid": None, "keeper_pid": None},
    **{"pid_alive": None, "alive": None, "health": None, "since": None, "time": None, "restarts": 0, "gpus": []},
}


def health_of(url: str) -> str:
    """What a server answers to /health, in words; it begins with "ok" when all is well.

    SGLang takes a second for it, or until its next token; it generates one when it has nothing else to do.
    """
    opener, started = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic()
    try:
        with opener.open(f"{url.rstrip('/')}/health", timeout=HEALTH_TIMEOUT_S):
            return f"ok in {time.monotonic() - started:.2f} s"
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        late = isinstance(why, TimeoutError)
        return f"no answer within {HEALTH_TIMEOUT_S:g} s: busy, or hanging" if late else f"no answer ({why})"


def _processes(root: Path) -> tuple[list[Job], list[tuple[int, float]]]:
    """(the jobs in the working directory, (pid, start) of each Snakemake in it), as far as this user may see them."""
    jobs: dict[str, Job] = {}
    snakemakes = []
    for process in psutil.process_iter():  # in the order of their numbers
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE or process.cwd() != str(root):
                continue
            command, since = process.cmdline(), process.create_time()
        except (psutil.Error, OSError):  # it ended, or is somebody else's
            continue
        if any(os.path.basename(word) == "snakemake" for word in command):
            snakemakes.append((process.pid, since))
        elif job := _job(process.pid, command, since):
            known = jobs.get(job.name)
            same = sorted([job] if known is None else [known, job], key=lambda j: j.since)
            jobs[job.name] = replace(same[0], pids=tuple(pid for j in same for pid in j.pids))
    return list(jobs.values()), snakemakes


def _job(pid: int, command: list[str], since: float) -> Job | None:
    """The job that a command line runs; None when it runs no script of this workflow."""
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    name = os.path.basename(script).removesuffix(".py")
    if not script.endswith(".py") or not (SCRIPTS / f"{name}.py").is_file():
        return None
    told = {k: command[command.index(f"--{k}") + 1 :][:1] for k in TELLS_WHICH if f"--{k}" in command}
    return Job((pid,), name, {k: value[0] for k, value in told.items() if value}, since)


def _started(pid: object, told_at: float) -> float | None:
    """When a process began that was told of at a time; None when it has ended (another one may have its number)."""
    try:
        process = psutil.Process(pid) if isinstance(pid, int) and pid > 0 else None
        if process is None or process.status() == psutil.STATUS_ZOMBIE or process.create_time() > told_at + 1:
            return None
        return process.create_time()
    except psutil.Error:
        return None


def _open_files(job: Job, name: str) -> list[Path]:
    """Files of that name that a job's processes have open."""
    found = []
    for pid in job.pids:
        with suppress(psutil.Error, OSError):
            found += [Path(f.path) for f in psutil.Process(pid).open_files() if os.path.basename(f.path) == name]
    return found


def _span(seconds: float) -> str:
    """A time that is over, in whole minutes once it is some."""
    return duration(seconds if seconds < 60 else seconds - seconds % 60).removesuffix(" 0 s")


def _moved(path: Path) -> float:
    """When a file was last written, as Unix time; 0 when it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _lengths(lines: list[dict]) -> str:
    """Simulated acceptance lengths, the last of each kind."""
    last = {line["kind"]: line["acceptance_length"] for line in lines}
    words = {"train": "{:.2f}", "heldout": "held out {:.2f}"}
    told = [words[kind].format(last[kind]) for kind in words if kind in last]
    return f"simulated acceptance length {', '.join(told)}" if told else ""


def _listed(what: str, names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{what}: {', '.join(names[:NAMED])}{more}" if names else ""
