"""The page about the training: what each step of the training-time test learned, and what held-out samples say."""

from pathlib import Path

import orjson

from eyas import charts, pages
from eyas.eagle3.metrics import read_metrics
from eyas.pages import Html, Page
from eyas.records import read_json

POINTS = 200  # of a curve; more are averaged


def describe_training(metrics: Path, summary: Path) -> Page:
    """metrics: metrics.jsonl; summary: training.json."""
    lines = read_metrics(metrics)
    training = read_json(summary)
    trained, heldout = ([line for line in lines if line["kind"] == kind] for kind in ("train", "heldout"))
    return pages.page(
        "Training of the draft",
        _headline(training),
        _acceptance(trained, heldout),
        _losses(trained, heldout),
        _accuracies(heldout),
        _datasets(heldout),
        _speed(trained),
        _settings(training),
        subtitle="The training-time test, step by step",
    )


def _headline(training: dict) -> Html:
    best = training["best"]
    facts = [
        ("optimizer steps", f"{training['steps']:,}"),
        ("tokens, all passes", f"{training['tokens']:,}"),
        ("minutes", f"{training['seconds'] / 60:,.1f}"),
        ("tokens a second", "–" if training["tokens_per_s"] is None else f"{training['tokens_per_s']:,.0f}"),
        ("of the time waited for data", pages.percent(training["data_wait"])),
        ("simulated acceptance length, held out", f"{best['acceptance_length']:.2f}" if best else "–"),
    ]
    return pages.tiles(facts)


def _acceptance(trained: list[dict], heldout: list[dict]) -> Html:
    lines = {"training": curve(trained, "acceptance_length"), "held out": curve(heldout, "acceptance_length")}
    note = (
        "1 + the share of positions where the draft is right at step 1, at steps 1 and 2, and so on: the token that "
        "the target gives for free is counted. Simulated over all positions; serving walks on from its own hits, and "
        "is some 10 % below."
    )
    picture = charts.line_chart_svg(_filled(lines), "optimizer step", "tokens for each step of the target")
    return pages.section("Simulated acceptance length", picture, note=note)


def _losses(trained: list[dict], heldout: list[dict]) -> Html:
    lines = {"training": curve(trained, "loss"), "held out": curve(heldout, "loss")}
    picture = charts.line_chart_svg(_filled(lines), "optimizer step", "weighted sum of losses (nats)")
    return pages.section("Loss", picture)


def _accuracies(heldout: list[dict]) -> Html:
    if not heldout:
        return Html("")
    steps = len(heldout[0]["accuracy"])
    lines = {f"step {i + 1}": [(x["step"], 100 * x["accuracy"][i]) for x in heldout] for i in range(steps)}
    note = "How often the draft's first choice is the target's, at each step ahead."
    picture = charts.line_chart_svg(lines, "optimizer step", "held-out accuracy (%)")
    return pages.section("Accuracy by step", picture, note=note)


def _datasets(heldout: list[dict]) -> Html:
    if not heldout:
        return Html("")
    last = heldout[-1]
    heads = [
        "dataset",
        "supervised positions",
        "acceptance length",
        *(f"step {i + 1}" for i in range(len(last["joint"]))),
    ]
    rows = [
        [name, f["supervised"], f"{f['acceptance_length']:.2f}", *(pages.percent(x) for x in f["accuracy"])]
        for name, f in [*last["datasets"].items(), ("together", last)]
    ]
    note = f"At optimizer step {last['step']:,}: simulated acceptance length, and accuracy at each step ahead."
    return pages.section("Held out, by dataset", pages.table(heads, rows, numeric=set(range(1, len(heads)))), note=note)


def _speed(trained: list[dict]) -> Html:
    if not trained:
        return Html("")
    speed = charts.line_chart_svg({"tokens": curve(trained, "tokens_per_s")}, "optimizer step", "tokens a second")
    rates = charts.line_chart_svg(
        {"share": [(x, 100 * y) for x, y in curve(trained, "lr_share")]},
        "optimizer step",
        "learning rate (% of its peak)",
    )
    norms = charts.line_chart_svg({"norm": curve(trained, "gradient_norm")}, "optimizer step", "norm of the gradient")
    memory = max(line["memory_gb"] for line in trained)
    return pages.section("Speed and rates", speed, rates, norms, note=f"Peak memory of a process: {memory:.1f} GB.")


def _settings(training: dict) -> Html:
    rows = [[key, orjson.dumps(value).decode()] for key, value in training["settings"]["train"].items()]
    return pages.section("Settings", pages.table(["key of train", "value"], rows))


def curve(lines: list[dict], key: str) -> list[tuple[float, float]]:
    """(step, value) of a metric; long ones as means of stretches."""
    points = [(line["step"], line[key]) for line in lines]
    size = -(-len(points) // POINTS)
    stretches = (points[k : k + size] for k in range(0, len(points), max(1, size)))
    return [(stretch[-1][0], sum(y for _, y in stretch) / len(stretch)) for stretch in stretches]


def _filled(lines: dict[str, list]) -> dict[str, list]:
    return {label: line for label, line in lines.items() if line}
