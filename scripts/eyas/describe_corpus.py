"""The page about what the draft is trained on: the corpus, its split, the draft vocabulary, the captured states."""

from pathlib import Path

from eyas import charts, pages
from eyas.errors import EyasError
from eyas.pages import Html, Page
from eyas.records import read_json


def describe_corpus(corpus: Path, vocabulary: Path, states: list[Path]) -> Page:
    """corpus: stats.json; vocabulary: coverage.json; states: the statistics of each captured shard, maybe none."""
    stats, coverage = read_json(corpus), read_json(vocabulary)
    shards = [read_json(path) for path in states]
    _agree(states, shards)
    return pages.page(
        "Corpus, draft vocabulary, hidden states",
        _headline(stats, coverage, shards),
        _datasets(stats, coverage),
        _entered(stats),
        _lengths(stats),
        _coverage(coverage),
        _states(states, shards) if shards else "",
        subtitle="What the draft is trained and judged on",
    )


def _agree(paths: list[Path], shards: list[dict]) -> None:
    """EyasError when two shards are of different targets, tokenizers or layers."""
    for path, shard in zip(paths, shards, strict=True):
        for key, expected in shards[0]["metadata"].items():
            if key != "shard" and (found := shard["metadata"].get(key)) != expected:
                raise EyasError(
                    f"{path}: {key} is {found!r}, expected {expected!r} as in {paths[0]}: the older of the two was "
                    f"captured under other settings: run `snakemake --force {path.with_suffix('.safetensors')}`"
                )


def _headline(stats: dict, coverage: dict, shards: list[dict]) -> Html:
    train = stats["train"]
    facts = [
        ("samples that train", train["samples"]),
        ("tokens", train["tokens"]),
        (f"trainable tokens, {pages.share(train['trainable_tokens'], train['tokens'])}", train["trainable_tokens"]),
        ("held-out samples", stats["heldout"]["samples"]),
        ("of trainable tokens are in the draft vocabulary", pages.percent(coverage["train"]["share"])),
    ]
    if shards:
        facts.append(("GB of hidden states", f"{sum(s['bytes'] for s in shards) / 1e9:,.1f}"))
    return pages.tiles(facts)


def _datasets(stats: dict, coverage: dict) -> Html:
    rows = []
    for name, of_dataset in stats["by_dataset"].items():
        train, heldout = (stats[split]["datasets"][name] for split in ("train", "heldout"))
        covered = (pages.percent(coverage[split]["datasets"].get(name)) for split in ("train", "heldout"))
        cells = [train["samples"], train["tokens"], train["trainable_tokens"], heldout["samples"]]
        quantiles = train["length_quantiles"]
        rows.append([name, *cells, quantiles.get("50"), quantiles.get("95"), of_dataset["duplicates"], *covered])
    heads = ["dataset", "samples", "tokens", "trainable", "held out", "median", "95 % up to", "repeats"]
    heads += ["covered", "covered, held out"]
    note = "Lengths in tokens. Covered: the share of trainable tokens that the draft can propose."
    return pages.section("By dataset", pages.table(heads, rows, numeric=set(range(1, len(heads)))), note=note)


def _entered(stats: dict) -> Html:
    parts = [
        ("kept", stats["kept"], "kept"),
        ("rejected", stats["rejected"], "rejected"),
        ("duplicates", stats["duplicates"], "duplicates"),
    ]
    sum_of = " + ".join(f"{count:,} {label}" for label, count, _ in parts)
    limit = stats["settings"]["max_tokens"]
    note = f"{stats['rows_read']:,} records read = {sum_of}. {stats['cut']:,} were cut at {limit:,} tokens."
    reasons = [[reason, count] for reason, count in stats["reasons"].items()]
    table = pages.table(["reason", "records"], reasons) if reasons else ""
    return pages.section("Where each record went", charts.stacked_bar(parts), table, note=note)


def _lengths(stats: dict) -> Html:
    histogram = stats["train"]["length_histogram"]
    picture = charts.length_histogram_svg(histogram["edges"], histogram["counts"], stats["settings"]["max_tokens"])
    return pages.section("Length in tokens, training samples", picture)


def _coverage(coverage: dict) -> Html:
    splits = {"training": "train", "held out": "heldout"}
    lines = {
        label: [(s["size"], 100 * s[split]["share"]) for s in coverage["ladder"] if s[split]["share"] is not None]
        for label, split in splits.items()
    }
    rows = [[s["size"], *(pages.percent(s[split]["share"]) for split in splits.values())] for s in coverage["ladder"]]
    note = (
        f"The draft has {coverage['size']:,} of the target's {coverage['vocabulary']:,} tokens; {coverage['seen']:,} "
        "occur in what is trained. A token that it lacks it cannot propose: the share is a ceiling of its acceptance."
    )
    if coverage["warm_start"]:
        note += f" They are those of {coverage['warm_start']}."
    axes = "size of the draft vocabulary (tokens)", "trainable tokens covered (%)"
    picture = charts.line_chart_svg(lines, *axes, logarithmic=True)
    table = pages.table(["size", *splits], rows, numeric={0, 1, 2})
    return pages.section("Coverage of the draft vocabulary", picture, table, note=note)


def _states(paths: list[Path], shards: list[dict]) -> Html:
    rows = []
    for path, s in zip(paths, shards, strict=True):
        checked, agreed = (sum(kind[key] for kind in s["agreement"].values()) for key in ("checked", "agreed"))
        set_aside = (len(s["quarantined"][reason]) for reason in ("not_finite", "disagrees"))
        name, gigabytes = f"{path.parent.name}/{path.stem}", f"{s['bytes'] / 1e9:.2f}"
        share = pages.percent(agreed / checked if checked else None)
        rows.append([name, s["samples"], s["tokens"], gigabytes, share, *set_aside, f"{s['seconds']:,.0f}"])
    metadata = shards[0]["metadata"]
    note = (
        f"States of layers {metadata['layers']} (indexes into output_hidden_states) and after the final norm, in "
        f"{metadata['dtype']}. Agreement: how often lm_head, given the state, proposes the token that the text has "
        "next: nearly always for greedy answers, often for sampled ones. Samples that disagree, or are not finite, are "
        "set aside."
    )
    heads = ["shard", "samples", "tokens", "GB", "agreement", "not finite", "disagree", "seconds"]
    return pages.section("Hidden states", pages.table(heads, rows, numeric=set(range(1, len(heads)))), note=note)
