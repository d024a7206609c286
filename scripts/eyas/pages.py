"""Pieces of the pages that people read: self-contained HTML, no network, no script, everything escaped.

Every function takes plain values and returns `Html`; only `Html` goes into a page as it is.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

CSS = """
:root { color-scheme: light; --ink: #1f2933; --soft: #5b6773; --line: #e3e7ec; --paper: #fff; --ground: #f6f7f9;
  --kept: #3f8f83; --rejected: #d08a4e; --duplicates: #8c9bb5; --beyond: #d5dae2; --trained: #cdebd6; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 28px 24px 56px; }
h1 { font-size: 24px; line-height: 1.25; font-weight: 650; margin: 0 0 4px; }
h2 { font-size: 16px; font-weight: 650; margin: 0 0 8px; }
h3 { font-size: 14px; font-weight: 600; margin: 20px 0 6px; }
p { margin: 0 0 10px; } .soft { color: var(--soft); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 18px 20px;
  margin-top: 18px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; font-size: 13px; vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; } tbody tr:last-child td { border-bottom: 0; }
td { overflow-wrap: break-word; unicode-bidi: isolate; } td:last-child, .anywhere { overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.group td { color: var(--soft); font-size: 13px; padding-top: 16px; }
tr.subtotal td { font-weight: 600; background: #fafbfc; }
tr.total td { font-weight: 700; border-top: 2px solid #cbd2da; }
code, .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 12.5px; }
code.command { display: inline-block; background: #f1f4f7; border-radius: 4px; padding: 2px 8px; margin-top: 2px; }
.badge { display: inline-block; border-radius: 10px; padding: 0 9px; font-size: 12.5px; line-height: 20px;
  background: #e8ecf1; }
.badge.ok { background: #dff1e6; color: #1d5b41; } .badge.stale { background: #fbf0d3; color: #6d5310; }
.badge.damaged { background: #f9e0dc; color: #86291c; }
.badge.missing, .badge.empty { background: #e8ecf1; color: #3e4c59; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 18px; }
.tiles div { flex: 1 1 130px; background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 16px; }
.tiles b { display: block; font-size: 21px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; }
.bar { display: flex; height: 12px; border-radius: 6px; overflow: hidden; background: var(--line);
  margin: 4px 0 10px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 14px; font-variant-numeric: tabular-nums; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.kept { background: var(--kept); } .rejected { background: var(--rejected); }
.duplicates { background: var(--duplicates); } .beyond { background: var(--beyond); }
.notice { background: #fbf6e6; border: 1px solid #eadfb8; border-radius: 8px; padding: 10px 16px; margin-top: 18px; }
.turn { display: grid; grid-template-columns: 96px 1fr; gap: 0 14px; padding: 8px 0;
  border-top: 1px solid var(--line); }
.turn > b { font-size: 12.5px; font-weight: 600; color: var(--soft); padding-top: 2px; overflow-wrap: anywhere; }
.text, .tokens { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
.tokens { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 12.5px;
  line-height: 1.75; color: #4a5561; border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; }
mark { background: var(--trained); color: #10291b; padding: 2px 0; }
.control { border: 1px solid #b9c3cf; border-radius: 4px; padding: 0 4px; margin: 0 1px; font-size: 11px;
  background: #eef1f5;
  color: #3e4c59; white-space: nowrap; } mark .control { background: #a9d9ba; border-color: #74b78d; color: #10291b; }
.strip { display: block; width: 100%; height: 8px; background: var(--line); border-radius: 4px; margin: 0 0 8px; }
.end { color: #a7b1bc; } mark .end { color: #6fa985; }
.gap { display: inline-block; color: var(--soft); font: italic 13px system-ui, sans-serif; padding: 2px 0; }
svg { max-width: 100%; height: auto; }
svg.strip { height: 8px; }
svg text { font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--soft); }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: Any) -> Html:
    """Html as it is; None as a dash; an int with thousands separators; all else as text in which nothing is markup."""
    if isinstance(value, Html):
        return value
    if value is None:
        return Html("–")
    if type(value) is int:
        return Html(f"{value:,}")
    return Html(html.escape(str(value).translate(_VISIBLE)))


# Control characters would vanish, or be refused by the browser: U+2400 to U+2421 are their pictures.
_VISIBLE = {c: 0x2400 + c for c in range(32) if c not in (9, 10)} | {0x7F: 0x2421}


def join(*parts: Any, between: str = "") -> Html:
    return Html(between.join(escape(p) for p in parts))


def tag(name: str, *parts: Any, cls: str = "", **attributes: Any) -> Html:
    """<name class=… attribute=…>parts</name>"""
    values = {**({"class": cls} if cls else {}), **attributes}
    inside = "".join(f' {k}="{html.escape(str(v))}"' for k, v in values.items())
    return Html(f"<{name}{inside}>{join(*parts)}</{name}>")


def page(title: str, *body: Any, subtitle: str = "") -> str:
    """A whole HTML document. It may load and run nothing, whatever is in the data."""
    head = tag("h1", title) + (tag("p", subtitle, cls="soft") if subtitle else "")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"{tag('title', title)}\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{head}\n{join(*body, between=chr(10))}\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, *parts: Any, note: Any = "") -> Html:
    return tag("section", tag("h2", heading), tag("p", note, cls="soft") if note else "", *parts)


def notice(*parts: Any) -> Html:
    return tag("div", *parts, cls="notice")


@dataclass(frozen=True)
class Row:
    """A row of a table with a class: group (one cell), subtotal, total."""

    cells: Sequence[Any]
    cls: str = ""


def table(heads: Sequence[str], rows: Iterable[Sequence[Any] | Row], *, numeric: set[int] | None = None) -> Html:
    """heads [k], rows of k cells; ints have thousands separators; the columns `numeric` are aligned right.

    Without `numeric`: those in which every cell is a number or empty.
    """
    rows = [r if isinstance(r, Row) else Row(r) for r in rows]
    if numeric is None:
        full = [r.cells for r in rows if len(r.cells) == len(heads)]
        numeric = {k for k in range(len(heads)) if full and all(_is_number(c[k]) for c in full)}
    cls = ["n" if k in numeric else "" for k in range(len(heads))]
    head = tag("tr", *(tag("th", h, cls=c) for h, c in zip(heads, cls, strict=True)))
    lines = []
    for row in rows:
        if len(row.cells) == 1:
            cells = [tag("td", row.cells[0], colspan=len(heads))]
        else:
            cells = [tag("td", value, cls=c) for value, c in zip(row.cells, cls, strict=True)]
        lines.append(tag("tr", *cells, cls=row.cls))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), cls="wide")


def _is_number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def tiles(facts: Iterable[tuple[str, Any]]) -> Html:
    """Headline numbers: (label, value)."""
    return tag("div", *(tag("div", tag("b", value), tag("span", label)) for label, value in facts), cls="tiles")


def badge(state: str) -> Html:
    return tag("span", state, cls=f"badge {html.escape(state)}")


def code(command: str) -> Html:
    return tag("code", command, cls="command")


def lines(texts: Iterable[Any], *more: Any) -> Html:
    return join(*texts, *more, between="<br>")


def share(part: int, whole: int) -> str:
    """A share in words: 12.3 %, < 0.1 %; a line does not break before the sign."""
    percent = 100 * part / whole if whole else 0.0
    return "< 0.1\xa0%" if 0 < percent < 0.1 else f"{percent:.1f}\xa0%"


def percent(share: float | None) -> str:
    """A share as a percentage; – for none."""
    return "–" if share is None else f"{100 * share:.1f}\xa0%"


def stacked_bar(parts: Sequence[tuple[str, int, str]]) -> Html:
    """(label, count, class of its colour) as one thin bar with its key."""
    whole = sum(count for _, count, _ in parts)
    bar = [
        tag("div", cls=c, style=f"width:{100 * n / whole:.3f}%", title=f"{label}: {n:,}") for label, n, c in parts if n
    ]
    key = [tag("span", tag("i", cls=c), f"{label} {n:,} ({share(n, whole)})") for label, n, c in parts]
    return join(tag("div", *bar, cls="bar"), tag("div", *key, cls="key"))


def shorten(text: str, head: int = 700, tail: int = 300) -> Html:
    """A long text without its middle; how much is left out is said."""
    left_out = len(text) - head - tail
    if left_out < 100:
        return escape(text)
    return join(text[:head], gap(f"… {left_out:,} characters left out …"), text[-tail:])


def gap(text: str) -> Html:
    return join(Html("\n"), tag("span", text, cls="gap"), Html("\n"))


def token_text(texts: Sequence[str], ids: Sequence[int], mask: Sequence[int], control: set[int]) -> Html:
    """texts, ids, mask [n] → tokens in a row: trainable ones in <mark>, control tokens as badges, line ends shown."""
    out = []
    for text, token, trained in zip(texts, ids, mask, strict=True):
        if token in control:
            inside = tag("span", text, cls="control")
        else:
            inside = Html(escape(text).replace("\n", '<span class="end">↵</span>\n'))
        out.append(tag("mark" if trained else "span", inside, title=token))
    return Html("".join(out))


def mask_strip(mask: Sequence[int]) -> Html:
    """mask [n] as a thin strip: where in the record the trainable tokens are."""
    runs, start = [], None
    for k, trained in enumerate([*mask, 0]):
        if trained and start is None:
            start = k
        elif not trained and start is not None:
            runs.append(f'<rect x="{start}" width="{k - start}" height="1" fill="#3f8f83"/>')
            start = None
    return Html(
        f'<svg viewBox="0 0 {max(1, len(mask))} 1" preserveAspectRatio="none" role="img" '
        f'class="strip">{"".join(runs)}</svg>'
    )


def length_histogram_svg(edges: Sequence[int], counts: Sequence[int], limit: int | None = None) -> Html:
    """Records by their length in tokens, as stats.json counts them.

    edges [k]: powers of two. counts [k + 1]: below the first edge, between two edges, from the last one on.
    limit: longest length that is kept; a dashed line where it lies in the picture.
    """
    filled = [k for k, count in enumerate(counts) if count]
    if not filled:
        return tag("p", "no record", cls="soft")
    first, last = max(0, filled[0] - 1), min(len(counts) - 1, filled[-1] + 1)
    bins = range(first, last + 1)
    wide, tall, top, left = 62, 130, 24, 26
    ground = top + tall
    most = max(counts)
    parts = []
    for k in bins:
        x, height = left + wide * (k - first), tall * counts[k] / most
        if counts[k]:
            name = f"{_bound(edges, k - 1)} to {_bound(edges, k)} tokens: {counts[k]:,} records"
            parts.append(
                f'<rect x="{x + 2}" y="{ground - max(height, 1):.1f}" width="{wide - 4}" height="{max(height, 1):.1f}" '
                f'rx="2" fill="#3f8f83"><title>{name}</title></rect>'
            )
            parts.append(
                f'<text x="{x + wide / 2}" y="{ground - height - 6:.1f}" text-anchor="middle">{counts[k]:,}</text>'
            )
    right = left + wide * len(bins)
    parts.append(f'<line x1="{left}" y1="{ground + 0.5}" x2="{right}" y2="{ground + 0.5}" stroke="#9aa5b1"/>')
    for k in range(first, last + 2):  # the bounds below and above each bin
        x = left + wide * (k - first)
        parts.append(f'<line x1="{x}" y1="{ground}" x2="{x}" y2="{ground + 5}" stroke="#9aa5b1"/>')
        parts.append(f'<text x="{x}" y="{ground + 19}" text-anchor="middle">{_bound(edges, k - 1)}</text>')
    if limit is not None and edges[0] <= limit <= edges[-1]:
        below = max(k for k, edge in enumerate(edges) if edge <= limit)
        x = left + wide * (below + 1 + math.log2(limit / edges[below]) - first)
        if left <= x <= right:
            parts.append(
                f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{ground}" stroke="#d08a4e" stroke-dasharray="4 3"/>'
            )
            parts.append(f'<text x="{x:.1f}" y="{top - 8}" text-anchor="end">limit {limit:,}</text>')
    middle = (left + right) / 2
    parts.append(f'<text x="{middle}" y="{ground + 38}" text-anchor="middle">tokens in a record (1k = 1,024)</text>')
    width, height = right + left, ground + 46
    return Html(
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="records by length in tokens">{"".join(parts)}</svg>'
    )


# Of lines, in order; told apart by the colour-blind, too.
COLOURS = ("#3f8f83", "#d08a4e", "#5a6fb0", "#b0577a", "#7a7a2e", "#4ba3c7", "#8c9bb5")
MARKED_POINTS = 40  # a line with more has no circles


def line_chart_svg(
    lines: dict[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, *, logarithmic: bool = False
) -> Html:
    """label → points (x, y), as lines; both axes end at round numbers around what there is.

    logarithmic: the x axis (x > 0), with a tick at each x.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        return tag("p", "nothing to show", cls="soft")
    xs = sorted({x for x, _ in points})
    x_ticks = xs if logarithmic else _round_ticks(xs[0], xs[-1])
    y_ticks = _round_ticks(min(y for _, y in points), max(y for _, y in points))
    left, top, wide, tall = 64, 16, 560, 200
    scale = math.log if logarithmic else float
    low, high = scale(x_ticks[0]), scale(x_ticks[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (scale(x) - low) / (high - low) if high > low else 0.5
        return left + wide * across, top + tall * (1 - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]))

    parts = []
    for y in y_ticks:
        _, height = at(x_ticks[0], y)
        parts.append(f'<line x1="{left}" y1="{height:.1f}" x2="{left + wide}" y2="{height:.1f}" stroke="#e3e7ec"/>')
        parts.append(f'<text x="{left - 8}" y="{height + 4:.1f}" text-anchor="end">{y:,g}</text>')
    for x in x_ticks:
        across, _ = at(x, y_ticks[0])
        parts.append(f'<text x="{across:.1f}" y="{top + tall + 18}" text-anchor="middle">{x:,g}</text>')
    for k, (label, line) in enumerate(lines.items()):
        colour = COLOURS[k % len(COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in line if len(line) <= MARKED_POINTS else ():
            across, height = at(x, y)
            name = html.escape(f"{label}: {y:,.4g} at {x:,g}")
            parts.append(
                f'<circle cx="{across:.1f}" cy="{height:.1f}" r="4" fill="{colour}"><title>{name}</title></circle>'
            )
        key = left + wide + 22
        parts.append(f'<circle cx="{key}" cy="{top + 20 + 20 * k}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{key + 10}" y="{top + 24 + 20 * k}">{html.escape(label)}</text>')
    middle, bottom = left + wide / 2, top + tall
    parts.append(f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">{html.escape(x_label)}</text>')
    turned = f'transform="rotate(-90 12 {top + tall / 2})"'
    parts.append(f'<text x="12" y="{top + tall / 2}" text-anchor="middle" {turned}>{html.escape(y_label)}</text>')
    width, height = left + wide + 120, bottom + 46
    return Html(
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(y_label)} against {html.escape(x_label)}">{"".join(parts)}</svg>'
    )


def _round_ticks(low: float, high: float) -> list[float]:
    """Four to seven round numbers, from below `low` to above `high`."""
    spread = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(spread / 4))
    step *= next(m for m in (1, 2, 5, 10) if spread / (m * step) <= 5)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _bound(edges: Sequence[int], k: int) -> str:
    """edges[k] as a label; 0 below the first, ∞ above the last."""
    if k < 0:
        return "0"
    if k >= len(edges):
        return "∞"
    return f"{edges[k] >> 10}k" if edges[k] >= 1024 and edges[k] % 1024 == 0 else f"{edges[k]:,}"
