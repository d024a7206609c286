"""One page about one dataset of prepared/: where every row went, how long the records are, and what they look like."""

from pathlib import Path
from typing import Any

import orjson

from eyas import charts, pages
from eyas.chat import Chat, chat_of
from eyas.differences import differences
from eyas.errors import EyasError
from eyas.pages import Html, Page, join, tag
from eyas.records import RECORD_FILES, fault_in_prompt, fault_in_tokenized
from eyas.tally import CLASSES

EXAMPLES_AT = (0.0, 0.25, 0.5, 0.75, 0.95)  # of the record file
FIRST_TOKENS, LAST_TOKENS, TOKENS_AROUND = 120, 60, 24
FIRST_MESSAGES, LAST_MESSAGES = 5, 3
FILES_NAMED = 6
STATS_USED = [
    *("dataset", "produces", "rows_read", "kept", "rejected", "duplicates", "beyond_cap", "reasons", "filters"),
    *("tokens", "trainable_tokens", "length_quantiles", "length_histogram", "files"),
    *("tokenizer", "vocabulary", "settings"),
]


def describe(folder: Path, tokenizer: Path | None, settings: dict | None = None) -> Page:
    """The page for prepared/<ds>. tokenizer: folder of the target's tokenizer, read for token records only.

    settings: today's (config.Config.prepare_settings); how they differ from those of the records is said.
    EyasError when stats.json or the records are missing or unreadable.
    """
    stats = _read_stats(folder / "stats.json")
    changed = differences(stats["settings"], settings) if settings else []
    return pages.page(
        stats["dataset"],
        pages.notice(pages.lines([tag("b", "Made under other settings than today's"), *changed])) if changed else "",
        _headline(stats),
        _rows_read(stats),
        _answers(stats),
        _lengths(stats),
        _examples(folder, stats, tokenizer),
        _reasons(stats, _first_rejects(folder / "rejects.jsonl")),
        _sources(stats) if "sources" in stats["settings"] else "",
        _settings(stats),
        subtitle=f"{CLASSES[stats['produces']]}, for {stats['settings']['target']['name']}",
    )


def _read_stats(path: Path) -> dict:
    try:
        stats = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise EyasError(f"{path}: no such file: prepare the dataset first") from None
    except orjson.JSONDecodeError as error:
        raise EyasError(f"{path}: not JSON ({error}): prepare the dataset again") from None
    if lacking := [key for key in STATS_USED if not isinstance(stats, dict) or key not in stats]:
        raise EyasError(f"{path}: lacks {', '.join(lacking)}: prepare the dataset again")
    return stats


# From stats.json and rejects.jsonl


def _headline(stats: dict) -> Html:
    kept = stats["kept"]
    facts = [("records", kept), ("tokens", stats["tokens"])]
    if stats["produces"] == "tokenized_data":
        trained = stats["trainable_tokens"]
        facts.append((f"trainable tokens, {pages.share(trained, stats['tokens'])}", trained))
    facts += [("tokens a record, mean", round(stats["tokens"] / kept) if kept else None)]
    facts += [("tokens, longest record", stats["length_quantiles"].get("100"))]
    if "finished" in stats:
        facts.append(
            (f"answers cut by length, {pages.share(stats['finished']['length'], kept)}", stats["finished"]["length"])
        )
    if stats.get("reasoning_left_out"):
        facts.append(("reasonings the chat format has no place for", stats["reasoning_left_out"]))
    return pages.tiles(facts)


def _rows_read(stats: dict) -> Html:
    parts = [
        ("kept", stats["kept"], "kept"),
        ("rejected", stats["rejected"], "rejected"),
        ("duplicates", stats["duplicates"], "duplicates"),
        ("beyond the cap", stats["beyond_cap"], "beyond"),
    ]
    sum_of = " + ".join(f"{count:,} {label}" for label, count, _ in parts)
    return pages.section(
        "Where each row went", charts.stacked_bar(parts), note=f"{stats['rows_read']:,} rows read = {sum_of}"
    )


def _answers(stats: dict) -> Html:
    """Of responses: how the target's turns ended, how long they are, how fast they came."""
    if "finished" not in stats:
        return Html("")
    ends = [
        ("ended by itself", stats["finished"]["stop"], "kept"),
        ("cut by length", stats["finished"]["length"], "rejected"),
    ]
    answers, asked = stats.get("answers"), stats.get("asked_tokens")  # files of older versions lack them
    picture = ""
    if answers:
        histogram = answers["length_histogram"]
        picture = charts.length_histogram_svg(histogram["edges"], histogram["counts"], what="tokens in an answer")
    rate = f"{asked / stats['seconds']:,.0f} tokens a second in the job that asked last." if asked else ""
    return pages.section("How the target answered", charts.stacked_bar(ends), picture, note=rate)


def _lengths(stats: dict) -> Html:
    quantiles = stats["length_quantiles"]
    heads = ["longest" if q == "100" else "median" if q == "50" else f"{q} % up to" for q in quantiles]
    histogram, limit = stats["length_histogram"], stats["settings"].get("max_tokens")
    return pages.section(
        "Length in tokens",
        charts.length_histogram_svg(histogram["edges"], histogram["counts"], limit),
        pages.table(heads, [list(quantiles.values())]) if quantiles else "",
        note=f"Longer than {limit:,} tokens counts as too_long; nothing is cut." if limit else "",
    )


def _first_rejects(path: Path) -> dict[str, dict]:
    """The first reject of each reason; none when there is no such file."""
    first: dict[str, dict] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                reject = orjson.loads(line)
                first.setdefault(
                    reject["reason"], {"file": reject["file"], "row": reject["row"], "detail": reject["detail"]}
                )
    except FileNotFoundError:
        return {}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise EyasError(f"{path}: holds a line that is no reject: prepare the dataset again") from None
    return first


def _reasons(stats: dict, examples: dict[str, dict]) -> Html:
    if not stats["reasons"]:
        return pages.section("Why rows were rejected", tag("p", "No row was rejected.", cls="soft"))
    rows = []
    for reason, count in stats["reasons"].items():
        example = examples.get(reason)
        where = (
            join(tag("span", f"{example['file']} row {example['row']}: ", cls="soft"), example["detail"])
            if example
            else None
        )
        kind = "filter" if reason in stats["filters"] else "damage"
        rows.append([reason, kind, count, pages.share(count, stats["rows_read"]), where])
    note = "A filter leaves out what the dataset's adapter does not want; damage counts toward max_rejected."
    heads = ["reason", "kind", "rows", "of all rows", "an example"]
    return pages.section("Why rows were rejected", pages.table(heads, rows, numeric={2, 3}), note=note)


def _sources(stats: dict) -> Html:
    resolved = stats.get("sources") or []
    rows = []
    for k, source in enumerate(stats["settings"]["sources"]):
        place = source["repo"] or source["folder"] or source["package"]
        kind = "Hub" if source["repo"] else "folder" if source["folder"] else "package"
        revision = source["revision"] if source["repo"] else None
        commit = resolved[k].get("commit") if k < len(resolved) else None
        rows.append(
            [
                tag("span", place, cls="anywhere"),
                kind,
                revision,
                tag("code", commit[:12]) if commit else None,
                pages.lines(source["files"]),
            ]
        )
    files = stats["files"]
    named = ", ".join(files[:FILES_NAMED]) + (
        f" and {len(files) - FILES_NAMED:,} more" if len(files) > FILES_NAMED else ""
    )
    note = f"{len(files):,} file{'s' if len(files) > 1 else ''} read: {named}"
    heads = ["source", "kind", "revision", "commit", "files asked for"]
    return pages.section("Where it came from", pages.table(heads, rows, numeric=set()), note=note)


def _settings(stats: dict) -> Html:
    shown = {k: v for k, v in stats["settings"].items() if k not in ("sources", "dataset")}
    rows = [[key, tag("code", value)] for key, value in pages.flat(shown)]
    rows.append(["tokenizer (digest)", tag("code", stats["tokenizer"])])
    rows.append(["vocabulary", stats["vocabulary"]])
    return pages.section("Settings it was made with", pages.table(["key", "value"], rows, numeric=set()))


# Examples


def _examples(folder: Path, stats: dict, tokenizer: Path | None) -> Html:
    path = folder / RECORD_FILES[stats["produces"]]
    lines = _lines_across(path)
    if stats["produces"] == "prompts":
        parts = [_prompt(line, stats) for line in lines]
        return pages.section(
            "Examples",
            *parts,
            note="What the target will be asked: five prompts from the start to the end of the file.",
        )
    if tokenizer is None:
        raise EyasError(f"{path}: token records are shown as text: name the tokenizer's folder with --tokenizer")
    chat = chat_of(tokenizer, stats["settings"]["target"])
    note = join(
        "Tokens that are trained on look ",
        tag("mark", "like this"),
        ", control tokens ",
        tag("span", "like this", cls="control"),
        ". The strip shows where in the whole record the trained ones are; a token's id shows under the mouse.",
    )
    other = ""
    if chat.fingerprint != stats["tokenizer"]:
        other = pages.notice(
            f"{tokenizer} is not the tokenizer these records were made with: the text below may be wrong."
        )
    return pages.section("Examples", other, *(_tokenized(line, stats, chat) for line in lines), note=note)


def _lines_across(path: Path) -> list[bytes]:
    """Up to one line for each of EXAMPLES_AT, none twice; only a little of the file is read."""
    found: dict[int, bytes] = {}  # by the byte where it begins
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            for fraction in EXAMPLES_AT:
                if start := int(size * fraction):
                    file.seek(start - 1)
                    file.readline()
                at = file.tell()
                if line := file.readline().strip():
                    found.setdefault(at, line)
    except OSError as error:
        raise EyasError(f"{path}: cannot be read ({error.strerror}): prepare the dataset again") from None
    return list(found.values())


def _faulty(fault: str) -> Html:
    return pages.notice(f"A damaged line: {fault}")


def _prompt(line: bytes, stats: dict) -> Html:
    if fault := fault_in_prompt(line, stats["dataset"]):
        return _faulty(fault)
    record = orjson.loads(line)
    meta = record.get("meta") or {}
    messages = record["messages"]
    turns = [_turn(m) for m in messages]
    left_out = len(turns) - FIRST_MESSAGES - LAST_MESSAGES
    if left_out > 1:
        between = tag("p", tag("span", f"… {left_out:,} messages left out …", cls="gap"))
        turns = [*turns[:FIRST_MESSAGES], between, *turns[-LAST_MESSAGES:]]
    facts = [f"{len(messages):,} message{'s' if len(messages) > 1 else ''}"]
    if tools := record.get("tools"):
        facts.append(
            f"{len(tools):,} tool{'s' if len(tools) > 1 else ''}: {', '.join(_tool_name(t) for t in tools[:8])}"
        )
    if type(meta.get("prompt_tokens")) is int:
        facts.append(f"{meta['prompt_tokens']:,} tokens")
    return join(_caption(record, facts, meta), *turns)


def _caption(record: dict, facts: list[str], meta: dict | None = None) -> Html:
    where = (
        f"{meta['file']} row {meta['row']}"
        if meta and {"file", "row"} <= meta.keys()
        else f"record {record['id'][:12]}"
    )
    return tag("h3", where, tag("span", f" · {' · '.join(facts)}", cls="soft"))


def _tool_name(tool: Any) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else {}
    return str(function.get("name", "?")) if isinstance(function, dict) else "?"


def _turn(message: dict) -> Html:
    more = {k: v for k, v in message.items() if k not in ("role", "content")}
    extras = [
        tag(
            "div",
            f"{k}: ",
            pages.shorten(v if isinstance(v, str) else orjson.dumps(v).decode(), 400, 150),
            cls="text mono soft",
        )
        for k, v in more.items()
    ]
    content = tag("div", pages.shorten(message["content"]), cls="text")
    return tag("div", tag("b", message["role"]), tag("div", content, *extras), cls="turn")


def _tokenized(line: bytes, stats: dict, chat: Chat) -> Html:
    if fault := fault_in_tokenized(line, stats["dataset"], stats["vocabulary"]):
        return _faulty(fault)
    record = orjson.loads(line)
    ids, mask = record["input_ids"], record["loss_mask"]
    texts, control = chat.text.decode_each(ids), set(chat.text.control.values())
    parts, at = [], 0
    for start, end in windows(mask):
        if start > at:
            trained = sum(mask[at:start])
            parts.append(pages.gap(f"… {start - at:,} tokens left out, {trained:,} of them trained …"))
        parts.append(pages.token_text(texts[start:end], ids[start:end], mask[start:end], control))
        at = end
    facts = [f"{len(ids):,} tokens", f"{sum(mask):,} trained ({pages.share(sum(mask), len(ids))})"]
    return join(_caption(record, facts), pages.mask_strip(mask), tag("div", *parts, cls="tokens"))


def windows(mask: list[int]) -> list[tuple[int, int]]:
    """[start, end) of the parts of a record that are shown: its start, its end, and where training first begins."""
    n = len(mask)
    begin = mask.index(1) if 1 in mask else 0
    wanted = [(0, FIRST_TOKENS), (begin - TOKENS_AROUND, begin + TOKENS_AROUND), (n - LAST_TOKENS, n)]
    out: list[tuple[int, int]] = []
    for start, end in sorted((max(0, s), min(n, e)) for s, e in wanted):
        if out and start <= out[-1][1] + TOKENS_AROUND:  # a gap that is hardly longer than its note
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out
