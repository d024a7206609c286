"""Pictures of the pages: SVG in the page itself, in the theme's colours, so that they read well in light and dark.

What a mark stands for is said under the mouse (<title>), and to a screen reader by the picture's label. No colour is
the only sign: lines differ in their strokes, bars have their names beside them.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eyas.pages import Html, join, share, tag
from eyas.theme import SERIES

MARKED_POINTS = 40  # a line with more has no circles
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 4")


def colour(k: int) -> str:
    """Of the k-th of a series."""
    return f"var(--s{k % len(SERIES)})"


def swatch(name: str, names: Sequence[str]) -> Html:
    """The name of a dataset behind the colour that it has on every page; names: all, in the configuration's order."""
    if name not in names:
        return Html(html.escape(name))
    style = f"background:{colour(names.index(name))}"
    return join(tag("span", cls="swatch", style=style), name)


def stacked_bar(parts: Sequence[tuple[str, int, str]]) -> Html:
    """(label, count, class of its colour) as one thin bar with its key."""
    whole = sum(count for _, count, _ in parts)
    key = [tag("span", tag("i", cls=c), f"{label} {n:,} ({share(n, whole)})") for label, n, c in parts]
    return join(thin_bar(parts), tag("div", *key, cls="key"))


def thin_bar(parts: Sequence[tuple[str, int, str]]) -> Html:
    """The bar alone, for a cell of a table; what the parts are is said under the mouse and to a screen reader."""
    whole = sum(count for _, count, _ in parts) or 1
    said = ", ".join(f"{label} {n:,}" for label, n, _ in parts)
    bar = [tag("div", cls=c, style=f"width:{100 * n / whole:.3f}%") for _, n, c in parts if n]
    return tag("div", *bar, cls="bar", role="img", title=said, **{"aria-label": said}, style="min-width:90px")


def bars(rows: Iterable[tuple[str, float, str, str]], label: str, *, line: tuple[float, str] | None = None) -> Html:
    """Horizontal bars: (name, value, the value in words, colour), scaled to the longest; label: of the axis, with unit.

    line: (value, what it is), dashed across all bars.
    """
    rows = list(rows)
    if not rows:
        return tag("p", "nothing to show", cls="soft")
    left, wide, tall = 8 + max(text_width(name) for name, *_ in rows), 480, 22
    most = max([value for _, value, *_ in rows] + ([line[0]] if line else [])) or 1.0
    top = 20 if line else 4
    parts = []
    for k, (name, value, words, fill) in enumerate(rows):
        y, length = top + tall * k, wide * value / most
        parts.append(text(left - 8, y + 15, name, "end"))
        parts.append(
            f'<rect x="{left}" y="{y + 3}" width="{max(length, 1):.1f}" height="{tall - 6}" rx="2" '
            f'style="fill:{fill}"><title>{html.escape(f"{name}: {words}")}</title></rect>'
        )
        parts.append(text(left + length + 6, y + 15, words, "start"))
    bottom = top + tall * len(rows)
    right = max([left + wide, *(left + wide * value / most + 6 + text_width(words) for _, value, words, _ in rows)])
    if line:
        x = left + wide * line[0] / most
        right = max(right, x + text_width(line[1]) / 2)
        parts.append(rule(x, top - 2, x, bottom + 2, "var(--rejected)", "4 3"))
        parts.append(text(x, top - 6, line[1], "middle"))
    parts.append(text(left, bottom + 16, label, "start"))
    said = f"{label}: " + ", ".join(f"{name} {words}" for name, _, words, _ in rows)
    return picture(right + 2, bottom + 24, said, parts)


def length_histogram_svg(
    edges: Sequence[int], counts: Sequence[int], limit: int | None = None, what: str = "tokens in a record"
) -> Html:
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
                f'rx="2" class="f-kept"><title>{name}</title></rect>'
            )
            parts.append(text(x + wide / 2, ground - height - 6, f"{counts[k]:,}"))
    right = left + wide * len(bins)
    parts.append(rule(left, ground + 0.5, right, ground + 0.5, "var(--axis)"))
    for k in range(first, last + 2):  # the bounds below and above each bin
        x = left + wide * (k - first)
        parts.append(rule(x, ground, x, ground + 5, "var(--axis)"))
        parts.append(text(x, ground + 19, _bound(edges, k - 1)))
    if limit is not None and edges[0] <= limit <= edges[-1]:
        below = max(k for k, edge in enumerate(edges) if edge <= limit)
        x = left + wide * (below + 1 + math.log2(limit / edges[below]) - first)
        if left <= x <= right:
            parts.append(rule(x, top, x, ground, "var(--rejected)", "4 3"))
            parts.append(text(x, top - 8, f"limit {limit:,}", "end"))
    label = f"{what} (1k = 1,024)"
    width = max(right + left, text_width(label))
    parts.append(text(width / 2, ground + 38, label))
    return picture(width, ground + 46, f"records by {what}", parts)


def line_chart_svg(
    lines: dict[str, Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    *,
    logarithmic: bool = False,
    whole: bool = False,
) -> Html:
    """label → points (x, y), as lines; both axes end at round numbers around what there is.

    logarithmic: the x axis (x > 0), with a tick at each x. whole: x are whole numbers, and so are their ticks.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        return tag("p", "nothing to show", cls="soft")
    xs = sorted({x for x, _ in points})
    x_ticks = xs if logarithmic else round_ticks(xs[0], xs[-1], whole)
    y_ticks = round_ticks(min(y for _, y in points), max(y for _, y in points))
    left, top, wide, tall = 64, 16, 560, 200
    scale = math.log if logarithmic else float
    low, high = scale(x_ticks[0]), scale(x_ticks[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (scale(x) - low) / (high - low) if high > low else 0.5
        return left + wide * across, top + tall * (1 - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]))

    parts = []
    for y in y_ticks:
        _, height = at(x_ticks[0], y)
        parts.append(rule(left, height, left + wide, height, "var(--line)"))
        parts.append(text(left - 8, height + 4, f"{y:,g}", "end"))
    for x in x_ticks:
        across, _ = at(x, y_ticks[0])
        parts.append(text(across, top + tall + 18, f"{x:,g}"))
    for k, (label, line) in enumerate(lines.items()):
        stroke = f'style="stroke:{colour(k)}" stroke-width="2" stroke-dasharray="{DASHES[k % len(DASHES)]}"'
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')
        for x, y in line if len(line) <= MARKED_POINTS else ():
            across, height = at(x, y)
            name = html.escape(f"{label}: {y:,.4g} at {x:,g}")
            place = f'cx="{across:.1f}" cy="{height:.1f}" r="4"'
            parts.append(f'<circle {place} style="fill:{colour(k)}"><title>{name}</title></circle>')
        key = left + wide + 16
        parts.append(f'<line x1="{key}" y1="{top + 20 + 20 * k}" x2="{key + 24}" y2="{top + 20 + 20 * k}" {stroke}/>')
        parts.append(text(key + 32, top + 24 + 20 * k, label, "start"))
    middle, bottom = left + wide / 2, top + tall
    parts.append(text(middle, bottom + 38, x_label))
    turned = f'transform="rotate(-90 12 {top + tall / 2})"'
    parts.append(text(12, top + tall / 2, y_label, "middle", turned))
    right = left + wide + 60 + max(text_width(label) for label in lines)
    return picture(right, bottom + 46, f"{y_label} against {x_label}: {', '.join(lines)}", parts)


@dataclass(frozen=True)
class Box:
    """A stage in the picture of the pipeline. column, row: its place. state: done, going on, or missing."""

    name: str
    words: Sequence[str]
    column: int
    row: int
    state: str


SIGNS = {"done": "✓", "going on": "…", "missing": "–"}


def pipeline_svg(boxes: Mapping[str, Box], arrows: Sequence[tuple[str, str]]) -> Html:
    """Stages as boxes, what flows between them as arrows (key → key, from left to right)."""
    wide, tall, across, down = 107, 62, 13, 20
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" style="fill:var(--axis)"/></marker></defs>'
    ]

    def corner(box: Box) -> tuple[float, float]:
        return 2 + box.column * (wide + across), 2 + box.row * (tall + down)

    for start, end in arrows:
        (x, y), (u, v) = corner(boxes[start]), corner(boxes[end])
        x, y, v = x + wide, y + tall / 2, v + tall / 2
        bend = f"M{x},{y}" + (f" L{u},{v}" if y == v else f" L{u - across + 3},{y} L{u - across + 3},{v} L{u},{v}")
        parts.append(
            f'<path d="{bend}" fill="none" style="stroke:var(--axis)" stroke-width="1.5" marker-end="url(#tip)"/>'
        )
    edges = {"done": ("var(--kept)", ""), "going on": ("var(--rejected)", ""), "missing": ("var(--axis)", "4 3")}
    for box in boxes.values():
        x, y = corner(box)
        stroke, dash = edges[box.state]
        parts.append(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{tall}" rx="6" stroke-width="1.5" stroke-dasharray="{dash}" '
            f'style="fill:var(--sum);stroke:{stroke}"><title>{html.escape(f"{box.name}: {box.state}")}</title></rect>'
        )
        parts.append(text(x + 8, y + 18, box.name, "start", 'class="strong"'))
        parts.append(text(x + wide - 8, y + 18, SIGNS[box.state], "end", 'class="strong"'))
        parts += [text(x + 8, y + 36 + 14 * k, line, "start") for k, line in enumerate(box.words)]
    columns, rows = (1 + max(getattr(box, way) for box in boxes.values()) for way in ("column", "row"))
    said = "the pipeline: " + "; ".join(f"{b.name} ({b.state}) {', '.join(b.words)}" for b in boxes.values())
    return picture(columns * (wide + across) - across + 4, rows * (tall + down) - down + 4, said, parts)


def picture(width: float, height: float, label: str, parts: Sequence[str]) -> Html:
    """An SVG of its natural size: on a narrow screen, or enlarged, it scrolls instead of shrinking."""
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    svg = f'<svg {size} role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    return tag("div", Html(svg), cls="wide", tabindex=0)


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(words)}</text>'


def text_width(words: str) -> int:
    """About how wide the SVG draws it."""
    return math.ceil(7.4 * len(words))


def rule(x: float, y: float, u: float, v: float, stroke: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" style="stroke:{stroke}"{dashed}/>'


def round_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Four to seven round numbers, from below `low` to above `high`; whole: none between two whole numbers."""
    spread = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(spread / 4))
    step *= next(m for m in (1, 2, 5, 10) if spread / (m * step) <= 5)
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _bound(edges: Sequence[int], k: int) -> str:
    """edges[k] as a label; 0 below the first, ∞ above the last."""
    if k < 0:
        return "0"
    if k >= len(edges):
        return "∞"
    return f"{edges[k] >> 10}k" if edges[k] >= 1024 and edges[k] % 1024 == 0 else f"{edges[k]:,}"
