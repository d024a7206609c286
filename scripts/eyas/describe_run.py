"""The first page of the report: one run from data to speedup, told from what is there; what is not there is said.

Every section reads files of the working directory alone, so the page can be made at any time of a run.
"""

from dataclasses import dataclass
from pathlib import Path

import orjson

from eyas import charts, pages
from eyas.charts import Box
from eyas.config import Config
from eyas.cost import costs
from eyas.eagle3.metrics import FILE as METRICS
from eyas.eagle3.metrics import read_metrics
from eyas.evaluation import ENGINES
from eyas.pages import Html, Page, join, tag
from eyas.progress import duration
from eyas.storage import size

PIPELINE = "✓ done, … going on, – not there. Prompts are answered by the target; records are its own words already."
FOLDERS = {
    **{"sources": "the datasets' files", "target": "the target's tokenizer, weights that were converted, its lm_head"},
    **{"prepared": "prompts and token records", "responses": "the target's answers", "corpus": "token records, split"},
    **{"hidden_states": "the target's states", "draft": "the draft", "evaluation": "what it was asked, and answered"},
    **{"scaling": "drafts on parts of the corpus", "deploy": "what is copied, or pushed"},
    **{"state": "journals, checkpoints, servers' logs", "reports": "pages"},
}


def describe_run(config: Config, root: Path) -> Page:
    """root: the working directory."""
    run = Run.read(config, root)
    return pages.page(
        f"A draft for {config.target.name}",
        _headline(run),
        _missing(run),
        pages.section("From data to speedup", charts.pipeline_svg(*pipeline(run)), note=PIPELINE),
        _rows(run),
        _tokens(run),
        _answers(run),
        _training(run),
        _evaluation(run),
        _cost(run),
        _disk(root),
        _settings(config),
        subtitle="One run of eyas, from data to speedup",
    )


@dataclass(frozen=True)
class Run:
    """What a working directory holds: {} for a file that is not there, or (a problem) is not what it should be."""

    config: Config
    root: Path
    prepared: dict[str, dict]  # stats.json by dataset
    responses: dict[str, dict]
    corpus: dict
    coverage: dict
    shards: list[dict]
    training: dict
    evaluation: dict
    problems: list[str]

    @classmethod
    def read(cls, config: Config, root: Path) -> "Run":
        problems: list[str] = []

        def json(path: str, *needed: str) -> dict:
            try:
                found = orjson.loads((root / path).read_bytes())
            except FileNotFoundError:
                return {}
            except (OSError, orjson.JSONDecodeError) as error:
                problems.append(f"{path}: cannot be read ({error}): run `snakemake --force {path}`")
                return {}
            if lacking := [key for key in needed if not isinstance(found, dict) or key not in found]:
                problems.append(f"{path}: lacks {', '.join(lacking)}: run `snakemake --force {path}`")
                return {}
            return found

        rows = "rows_read", "kept", "rejected", "duplicates", "beyond_cap", "reasons"
        answered = *rows, "finished", "trainable_tokens", "seconds"
        figures = "verdict", "findings", "by_dataset", "by_benchmark", "speedup", "break_even_acceptance_length"
        shards = [str(path.relative_to(root)) for path in sorted((root / "hidden_states").rglob("*-of-*.json"))]
        return cls(
            config,
            root,
            {name: json(f"prepared/{name}/stats.json", *rows) for name in config.names()},
            {name: json(f"responses/{name}/stats.json", *answered) for name in config.names("prompts")},
            json("corpus/stats.json", "train", "heldout"),
            json("draft_vocab/coverage.json", "train", "size"),
            list(filter(None, (json(path, "bytes", "tokens") for path in shards))),
            json("draft/training.json", "steps", "best"),
            json("evaluation/summary.json", *figures),
            problems,
        )

    @property
    def names(self) -> list[str]:
        return self.config.names()

    def metrics(self, kind: str) -> list[dict]:
        """Of the draft that is there, or of the training that goes on."""
        published = self.root / "draft" / METRICS
        going_on = sorted((self.root / "state/train_draft").glob(f"*/{METRICS}"), key=lambda p: p.stat().st_mtime)
        path = published if published.exists() or not going_on else going_on[-1]
        return [line for line in read_metrics(path) if line["kind"] == kind]


# What is there, what is not


def missing(run: Run) -> list[tuple[str, str]]:
    """(what is not there yet, the target that makes it), in the order of the stages."""
    config, found = run.config, []
    lacking = [name for name, stats in run.prepared.items() if not stats]
    if lacking:
        found.append((f"prepared: {', '.join(lacking)}", "prepared"))
    lacking = [name for name, stats in run.responses.items() if not stats]
    if lacking:
        found.append((f"answers: {', '.join(lacking)}", "generated"))
    if not (run.corpus and run.coverage):
        found.append(("the corpus and the draft's vocabulary", "corpus"))
    wanted = sum(config.capture.counts.values()) if config.capture.window is None else config.capture.heldout_shards
    if len(run.shards) < wanted:
        found.append((f"hidden states: {len(run.shards)} of {wanted} shards are there", "captured"))
    for there, what, target in (
        (run.training, "the draft", "trained"),
        (run.evaluation, "the evaluation: whether serving becomes faster is not known", "evaluated"),
        ((run.root / "deploy/launch_server.sh").exists(), "what is deployed", "deployed"),
    ):
        if not there:
            found.append((what, target))
    return found


def _missing(run: Run) -> Html:
    notices = [pages.notice(problem) for problem in run.problems]
    if found := missing(run):
        items = [tag("li", what, " ", pages.code(f"snakemake {target}")) for what, target in found]
        notices.insert(0, pages.notice(tag("b", "Not there yet"), tag("ul", *items)))
    return join(*notices)


def _headline(run: Run) -> Html:
    verdict, best = run.evaluation.get("verdict"), run.training.get("best")
    train = run.corpus.get("train", {})
    facts = [
        ("records prepared", sum(s["kept"] for s in run.prepared.values() if s)),
        ("answers of the target", sum(s["kept"] for s in run.responses.values() if s)),
        ("trainable tokens in the corpus", train.get("trainable_tokens")),
        ("hidden states", size(sum(s["bytes"] for s in run.shards)) if run.shards else None),
    ]
    if verdict:
        facts += [
            ("acceptance length", f"{verdict['acceptance_length']:.2f}"),
            (f"times the speed, {verdict['concurrency']} at once", f"{verdict['speedup']:.2f}"),
        ]
    elif best:
        facts.append(("acceptance length, simulated", f"{best['acceptance_length']:.2f}"))
    return pages.tiles(facts)


def pipeline(run: Run) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    """The boxes of the picture and what flows between them."""
    config, root = run.config, run.root

    def state(done: int, of: int) -> str:
        return "done" if done >= of else "going on" if done else "missing"

    sources = sum((root / f"sources/{name}/manifest.json").exists() for name in run.names)
    parts = {}
    for kind in ("prompts", "tokenized_data", "benchmark"):
        own = config.names(kind)
        there = [run.prepared[name] for name in own if run.prepared[name]]
        parts[kind] = (len(own), len(there), sum(s["kept"] for s in there))
    answered = [s for s in run.responses.values() if s]
    train, heldout = (run.corpus.get(split, {}) for split in ("train", "heldout"))
    window = config.capture.window is not None
    wanted = config.capture.heldout_shards if window else sum(config.capture.counts.values())
    verdict, best = run.evaluation.get("verdict"), run.training.get("best")
    deployed = (root / "deploy/launch_server.sh").exists()
    boxes = {"sources": Box("Sources", [f"{sources} of {len(run.names)} sets"], 0, 0, state(sources, len(run.names)))}
    rows = {"prompts": ("Prompts", 0, "prompts"), "tokenized_data": ("Records", 1, "records")}
    rows["benchmark"] = ("Benchmarks", 2, "prompts")
    for kind, (of, done, kept) in parts.items():
        name, row, unit = rows[kind]
        if of:
            boxes[kind] = Box(name, [f"{done} of {of} sets", f"{_short(kept)} {unit}"], 1, row, state(done, of))
    if "prompts" in boxes:
        said = sum(s["trainable_tokens"] for s in answered)
        words = [f"{_short(sum(s['kept'] for s in answered))} answers", f"{_short(said)} tokens"]
        boxes["answers"] = Box("Answers", words, 2, 0, state(len(answered), len(run.responses)))
    words = [f"{_short(train['tokens'])} tokens", f"{_short(heldout['samples'])} held out"] if train else []
    boxes["corpus"] = Box("Corpus", words, 3, 0, "done" if train else "missing")
    covered = run.coverage.get("train", {}).get("share")
    words = [f"{_short(run.coverage['size'])} tokens", f"of use: {pages.percent(covered)}"] if run.coverage else []
    boxes["vocabulary"] = Box("Vocabulary", words, 4, 1, "done" if run.coverage else "missing")
    words = [f"{len(run.shards)} of {wanted} shards", size(sum(s["bytes"] for s in run.shards))]
    words += ["in a window"] if window else []
    boxes["states"] = Box("States", words, 4, 0, state(len(run.shards), wanted))
    steps = run.training.get("steps")
    going_on = not steps and bool(run.metrics("train"))
    words = [f"{steps:,} steps"] if steps else []
    words += [f"simulated {best['acceptance_length']:.2f}"] if best else []
    boxes["draft"] = Box("Draft", words, 5, 0, "done" if steps else "going on" if going_on else "missing")
    words = [f"accepts {verdict['acceptance_length']:.2f}", f"speed × {verdict['speedup']:.2f}"] if verdict else []
    boxes["evaluation"] = Box("Evaluation", words, 6, 0, "done" if verdict else "missing")
    how = ["with the draft" if verdict["faster"] else "without draft"] if deployed and verdict else []
    boxes["deploy"] = Box("Deployment", how, 7, 0, "done" if deployed else "missing")
    flows = [
        *[("sources", kind) for kind in rows],
        *[("prompts", "answers"), ("answers", "corpus"), ("tokenized_data", "corpus"), ("corpus", "states")],
        *[("corpus", "vocabulary"), ("states", "draft"), ("vocabulary", "draft"), ("draft", "evaluation")],
        *[("benchmark", "evaluation"), ("evaluation", "deploy")],
    ]
    return boxes, [(a, b) for a, b in flows if a in boxes and b in boxes]


def _short(count: int) -> str:
    """12,345 as 12.3 k: for a small box."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= factor:
            return f"{count / (1e3 if unit == 'k' else factor):,.1f} {unit}"
    return f"{count:,}"


# The sections


def _rows(run: Run) -> Html:
    rows = []
    for name, stats in run.prepared.items():
        if not stats:
            continue
        counts = [stats["kept"], stats["rejected"], stats["duplicates"], stats["beyond_cap"]]
        kinds = ["kept", "rejected", "duplicates", "beyond"]
        parts = list(zip(["kept", "rejected", "duplicates", "beyond the cap"], counts, kinds, strict=True))
        most = next(iter(stats["reasons"].items()), None)
        why = f"{most[0]}: {most[1]:,}" if most else None
        rows.append([charts.swatch(name, run.names), stats["rows_read"], *counts, charts.thin_bar(parts), why])
    if not rows:
        return Html("")
    heads = ["dataset", "rows read", "kept", "rejected", "repeats", "beyond the cap", "", "most common reason"]
    note = "Every row is in one of the four: rows read = kept + rejected + repeats + beyond the cap."
    return pages.section("Where each row went", pages.table(heads, rows, numeric=set(range(1, 6))), note=note)


def _tokens(run: Run) -> Html:
    by_dataset = run.corpus.get("train", {}).get("datasets", {})
    if not by_dataset:
        return Html("")
    whole = sum(own["trainable_tokens"] for own in by_dataset.values())
    rows = [
        (name, own["trainable_tokens"], f"{own['trainable_tokens']:,} ({pages.share(own['trainable_tokens'], whole)})")
        for name in run.names
        if (own := by_dataset.get(name))
    ]
    colours = [(*row, charts.colour(run.names.index(row[0]))) for row in rows]
    covered = pages.percent(run.coverage["train"]["share"]) if run.coverage else None
    note = f"The draft's vocabulary of {run.coverage['size']:,} tokens covers {covered} of them." if covered else ""
    return pages.section("What the draft is trained on", charts.bars(colours, "trainable tokens"), note=note)


def _answers(run: Run) -> Html:
    rows, counts, edges = [], [], []
    for name, stats in run.responses.items():
        if not stats:
            continue
        answers, finished, asked = stats.get("answers"), stats["finished"], stats.get("asked_tokens")
        quantiles = answers["length_quantiles"] if answers else {}  # files of older versions lack them
        rate = asked / stats["seconds"] if asked else None
        rows.append(
            [
                *(charts.swatch(name, run.names), stats["kept"], finished["stop"], finished["length"]),
                *(stats["rejected"], stats["trainable_tokens"], quantiles.get("50"), quantiles.get("95")),
                None if rate is None else f"{rate:,.0f}",
            ]
        )
        if answers:
            edges = answers["length_histogram"]["edges"]
            counts.append(answers["length_histogram"]["counts"])
    if not rows:
        return Html("")
    sums = [sum(row[k] for row in rows) for k in range(1, 6)]
    heads = ["dataset", "answers", "ended", "cut by length", "set aside", "tokens", "median", "95 % up to", "tokens/s"]
    note = (
        "How its turns ended, and how long they are in tokens. tokens/s: of the job that asked last, prompts' time "
        "included; none where all was answered before."
    )
    return pages.section(
        "What the target answered",
        pages.table(heads, [*rows, pages.Row(["together", *sums, "", "", ""], "total")], numeric=set(range(1, 9))),
        charts.length_histogram_svg(edges, [sum(of) for of in zip(*counts, strict=True)], what="tokens in an answer")
        if counts
        else "",
        note=note,
    )


def _training(run: Run) -> Html:
    trained, heldout = run.metrics("train"), run.metrics("heldout")
    lines = {
        label: [(line["step"], line["acceptance_length"]) for line in own]
        for label, own in (("training", trained), ("held out", heldout))
        if own
    }
    if not lines:
        return Html("")
    best = run.training.get("best")
    told = f"The best on held-out samples was published: step {best['step']:,}." if best else "It goes on."
    picture = charts.line_chart_svg(lines, "optimizer step", "simulated acceptance length (tokens)", whole=True)
    return pages.section("What the draft learned", picture, note=told)


def _evaluation(run: Run) -> Html:
    summary = run.evaluation
    if not summary:
        return Html("")
    verdict = summary["verdict"]
    engine = verdict["engine"]
    groups = []
    for key, heading in (("by_dataset", "held-out prompts"), ("by_benchmark", "public benchmark sets")):
        rows = [
            (name, own["acceptance_length"], f"{own['acceptance_length']:.2f}", charts.colour(run.names.index(name)))
            for name in run.names
            if (own := summary[key][engine].get(name)) and own["acceptance_length"]
        ]
        at = summary["break_even_acceptance_length"][engine][str(verdict["concurrency"])]
        if rows:
            line = (at, f"break-even {at:.2f}")
            groups.append(charts.bars(rows, f"acceptance length (tokens a step), {heading}", line=line))
    lines = {
        ENGINES[name]: sorted((int(c), s) for c, s in speedups.items()) for name, speedups in summary["speedup"].items()
    }
    ends = sorted({c for line in lines.values() for c, _ in line})
    lines["break-even"] = [(ends[0], 1.0), (ends[-1], 1.0)]
    axes = "answers at once", "speed over that without a draft"
    speed = charts.line_chart_svg(lines, *axes, whole=True) if len(ends) > 1 else ""
    return pages.section(
        "Does it make serving faster?",
        tag("p", verdict["sentence"]),
        *(pages.notice(finding["text"]) for finding in summary["findings"]),
        *groups,
        speed,
        note=f"Measured with {ENGINES[engine]}.",
    )


def _cost(run: Run) -> Html:
    found = costs(run.config, run.root)
    if not found:
        return Html("")

    def cells(jobs: int, wall_s: float, cpu_s: float, gpu_s: float, peak_mb: float) -> list:
        times = [pages.valued(duration(seconds), seconds) for seconds in (wall_s, cpu_s)]
        return [jobs, *times, f"{gpu_s / 3600:,.2f}", f"{peak_mb:,.0f}"]

    rows: list = [[c.stage, *cells(c.jobs, c.wall_s, c.cpu_s, c.gpu_s, c.peak_mb)] for c in found]
    sums = [sum(getattr(c, key) for c in found) for key in ("jobs", "wall_s", "cpu_s", "gpu_s")]
    rows.append(pages.Row(["together", *cells(*sums, max(c.peak_mb for c in found))], "total"))
    note = (
        "From the benchmark file of each job: the last time that it ran to its end. Times are summed over jobs, which "
        "may run side by side; what failed or was stopped before is not in them. GPU-hours: of the devices that a job "
        "holds."
    )
    parts = [(c.stage, c.wall_s, duration(c.wall_s), charts.colour(k)) for k, c in enumerate(found)]
    heads = ["stage", "jobs", "time of its jobs", "CPU time", "GPU-hours", "peak memory of a job (MB)"]
    table = pages.table(heads, rows, numeric=set(range(1, 6)))
    return pages.section("What it cost", charts.bars(parts, "time of its jobs"), table, note=note)


def _disk(root: Path) -> Html:
    rows = []
    for name, what in FOLDERS.items():
        folder = root / name
        if folder.is_dir():
            there = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
            rows.append([tag("code", f"{name}/"), what, there])
    if not rows:
        return Html("")
    whole = sum(there for *_, there in rows)
    cells = [
        [name, what, pages.valued(size(there), there)] for name, what, there in sorted(rows, key=lambda row: -row[2])
    ]
    total = pages.Row(["together", "", size(whole)], "total")
    return pages.section("Disk", pages.table(["folder", "holds", "size"], [*cells, total], numeric={2}))


def _settings(config: Config) -> Html:
    rows = [
        [key, tag("code", value)] for key, value in pages.flat(config.model_dump(mode="json", exclude={"datasets"}))
    ]
    table = pages.table(["key", "value"], rows, numeric=set())
    note = (
        "Those of today; each file says in its statistics which it was made with, and `snakemake tally` what differs."
    )
    return pages.section("Settings", tag("details", tag("summary", f"{len(rows)} keys"), table), note=note)
