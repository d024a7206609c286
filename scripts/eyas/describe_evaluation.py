"""Pages about the evaluation: the verdict, what the draft gains and what a step costs; other chains; more data."""

import math
from pathlib import Path

import orjson

from eyas import charts, pages
from eyas.errors import EyasError
from eyas.evaluation import ENGINES
from eyas.pages import Html, Page
from eyas.records import read_json

# What public drafts report of benchmark sets, with chains of 3: target, draft, benchmark's name without its number.
PUBLIC = {
    "Kimi-K2.5": [
        ("lightseekorg/kimi-k2.5-eagle3", {"mtbench": 2.69, "gsm8k": 3.20, "humaneval": 3.29, "math500": 3.34}),
        ("AQ-MedAI/Kimi-K2-Instruct-eagle3", {"mtbench": 2.39, "gsm8k": 3.17, "humaneval": 3.37, "math500": 3.49}),
    ],
}


def describe_evaluation(path: Path) -> Page:
    """path: evaluation/summary.json."""
    summary = read_json(path)
    if "verdict" not in summary:
        raise EyasError(f"{path}: cannot be read (it has no verdict): run `snakemake --force {path}`")
    verdict = summary["verdict"]
    return pages.page(
        "Does the draft make serving faster?",
        _headline(verdict),
        pages.section("Verdict", pages.tag("p", verdict["sentence"])),
        *(pages.notice(finding["text"]) for finding in summary["findings"]),
        _engines(summary),
        _simulation(summary),
        _concurrency(summary),
        _positions(summary),
        _datasets(summary, "by_dataset", "Held-out prompts, by dataset"),
        _datasets(summary, "by_benchmark", "Public benchmark sets"),
        _public(summary),
        _speed(summary),
        _same(summary),
        _settings(summary),
        subtitle="Held-out prompts, answered with the draft and without it",
    )


def describe_sweep(path: Path) -> Page:
    """path: evaluation/sweep.json."""
    sweep = read_json(path)
    heads = ["chain", "branches (topk)", "verified at once", "acceptance length", "cost of a step", "speedup"]
    rows = [
        [
            *(row["chain"], row["topk"], row["draft_tokens"]),
            *(f"{row[key]:.2f}" for key in ("acceptance_length", "cost_ratio", "speedup")),
        ]
        for row in sweep["tried"]
    ]
    lines: dict = {}
    for row in sweep["tried"]:
        lines.setdefault(f"topk {row['topk']}", []).append((row["chain"], row["speedup"]))
    chains = sorted({row["chain"] for row in sweep["tried"]})
    lines["break-even"] = [(chains[0], 1.0), (chains[-1], 1.0)]
    left_out = sweep["left_out"]
    return pages.page(
        "Which chain is the fastest?",
        pages.section("Verdict", pages.tag("p", sweep["sentence"])),
        pages.section(
            "Speedup by length of the chain",
            charts.line_chart_svg(lines, "tokens ahead (chain)", "speed over that without a draft", whole=True),
        ),
        pages.section("What was tried", pages.table(heads, rows, numeric=set(range(len(heads))))),
        pages.notice(f"Not tried, since the reference drafts chains alone: {', '.join(left_out)}.") if left_out else "",
        subtitle=f"Measured with {ENGINES[sweep['engine']]}, {sweep['concurrency']} at once",
    )


def describe_scaling(path: Path) -> Page:
    """path: scaling/summary.json."""
    scaling = read_json(path)
    heads = ["samples", "tokens", "steps", "acceptance length", "by the fit"]
    rows = [
        [d["samples"], d["tokens"], d["steps"], f"{d['acceptance_length']:.3f}", f"{d['fitted']:.3f}"]
        for d in scaling["drafts"]
    ]
    lines = {
        label: [(math.log2(d["tokens"]), d[key]) for d in scaling["drafts"]]
        for label, key in (("measured", "acceptance_length"), ("fitted", "fitted"))
    }
    note = (
        f"Each draft was trained with the same settings, on a part of the samples; {scaling['prompts']} held-out "
        "prompts. The interval is the wider of two: prompts drawn anew, and the drafts' distance from the line. What "
        "another seed of the training would give is in neither."
    )
    return pages.page(
        "Would more data help?",
        pages.section("Verdict", pages.tag("p", scaling["sentence"])),
        pages.section(
            "Acceptance length by tokens", charts.line_chart_svg(lines, "log₂ of the tokens", "acceptance length")
        ),
        pages.section("Drafts", pages.table(heads, rows, numeric=set(range(len(heads)))), note=note),
        subtitle="Drafts trained on parts of the corpus",
    )


def _headline(verdict: dict) -> Html:
    facts = [
        ("times the speed without a draft", f"{verdict['speedup']:.2f}"),
        ("acceptance length", f"{verdict['acceptance_length']:.2f}"),
        ("measured with", ENGINES[verdict["engine"]]),
        ("answers at once", verdict["concurrency"]),
    ]
    return pages.tiles(facts)


def _engines(summary: dict) -> Html:
    heads = ["engine", "acceptance length", "cost of a step (× one without)", "speedup", "best chain", "its speedup"]
    rows = []
    for engine, length in summary["acceptance_length"].items():
        for concurrency, ratio in summary["cost_ratio"][engine].items():
            best = summary["best_chain"][engine][concurrency]
            name = f"{ENGINES[engine]}, {concurrency} at once"
            speedup = summary["speedup"][engine][concurrency]
            rows.append(
                [name, f"{length:.2f}", f"{ratio:.2f}", f"{speedup:.2f}", best["drafts"], f"{best['speedup']:.2f}"]
            )
    note = (
        "Acceptance length: tokens for each pass of the target, its own token included; each dataset counts as it does "
        "among the held-out samples. The cost of a step is also the acceptance length at which the draft begins to pay."
    )
    return pages.section("By engine", pages.table(heads, rows, numeric={1, 2, 3, 4, 5}), note=note)


def _simulation(summary: dict) -> Html:
    rows = [
        [
            ENGINES[engine],
            f"{own['simulated']:.2f}",
            f"{own['measured']:.2f}" + ("" if own["error"] is None else f" ± {2 * own['error']:.2f}"),
        ]
        for engine, own in summary["simulation"].items()
        if own
    ]
    if not rows:
        return Html("")
    note = (
        "Of the datasets that the target answered, both weighed alike; ± two standard errors over prompts. The "
        "simulation looks at all positions, serving walks on from its own hits and gains less."
    )
    heads = ["engine", "simulated by the training", "measured"]
    return pages.section("Against the training", pages.table(heads, rows, numeric={1, 2}), note=note)


def _concurrency(summary: dict) -> Html:
    lines = {
        ENGINES[engine]: sorted((int(c), speedup) for c, speedup in speedups.items())
        for engine, speedups in summary["speedup"].items()
        if len(speedups) > 1
    }
    if not lines:
        return Html("")
    ends = sorted({c for line in lines.values() for c, _ in line})
    lines["break-even"] = [(ends[0], 1.0), (ends[-1], 1.0)]
    picture = charts.line_chart_svg(lines, "answers at once", "speed over that without a draft", whole=True)
    return pages.section("Speedup by concurrency", picture)


def _positions(summary: dict) -> Html:
    lines = {
        ENGINES[engine]: [(k, 100 * rate) for k, rate in enumerate(rates, start=1)]
        for engine, rates in summary["accepted_by_position"].items()
    }
    picture = charts.line_chart_svg(lines, "position in the chain", "verifications that accept it (%)", whole=True)
    return pages.section("Accepted by position", picture)


def _datasets(summary: dict, key: str, heading: str) -> Html:
    heads = ["dataset", "engine", "answers", "verifications", "acceptance length"]
    heads += [f"position {k + 1}" for k in range(summary["chain"])]
    rows = [
        [
            *(name, ENGINES[engine], own["answers"], own["verifications"]),
            "–" if own["acceptance_length"] is None else f"{own['acceptance_length']:.2f}",
            *(pages.percent(rate) for rate in own["accepted_by_position"] or [None] * summary["chain"]),
        ]
        for engine, datasets in summary[key].items()
        for name, own in datasets.items()
    ]
    return pages.section(heading, pages.table(heads, rows, numeric=set(range(2, len(heads))))) if rows else Html("")


def _public(summary: dict) -> Html:
    """Beside what public drafts for the same target report."""
    published = PUBLIC.get(summary["settings"].get("target", {}).get("name"), [])
    own = summary["by_benchmark"][summary["verdict"]["engine"]]
    if not published or not own:
        return Html("")
    names = list(own)
    rows = [["this draft", *(own[name]["acceptance_length"] for name in names)]]
    rows += [[draft, *(lengths.get(name.partition("_")[2]) for name in names)] for draft, lengths in published]
    cells = [[row[0], *("–" if x is None else f"{x:.2f}" for x in row[1:])] for row in rows]
    note = "Acceptance lengths as their pages report them, with chains of 3; prompts, lengths and servers may differ."
    table = pages.table(["draft", *names], cells, numeric=set(range(1, 1 + len(names))))
    return pages.section("Beside public drafts", table, note=note)


def _speed(summary: dict) -> Html:
    heads = ["answers at once", "draft", "requests", "tokens/s in all", "tokens/s of a request", "first token (s)"]
    rows = [
        [
            *(int(concurrency), how, own["requests"], f"{own['tokens_per_s']:,.1f}"),
            *(f"{own['tokens_per_s_of_a_request']:,.1f}", f"{own['first_token_s']:.3f}"),
        ]
        for concurrency, both in summary["speed"].items()
        for how, own in both.items()
    ]
    if not rows:
        return Html("")
    note = "Of a request: the median, after its first token."
    return pages.section("Speed of the server", pages.table(heads, rows, numeric={0, 2, 3, 4, 5}), note=note)


def _same(summary: dict) -> Html:
    rows = [[ENGINES[engine], own["answers"], own["same"]] for engine, own in summary["lossless"].items()]
    note = "A draft changes the speed, not the words: greedy answers differ only where two tokens are equally likely."
    table = pages.table(["engine", "answers", "the same without the draft"], rows, numeric={1, 2})
    return pages.section("Nothing is lost", table, note=note)


def _settings(summary: dict) -> Html:
    rows = [[key, orjson.dumps(value).decode()] for key, value in summary["settings"]["evaluate"].items()]
    return pages.section("Settings", pages.table(["key of evaluate", "value"], rows))
