"""Pieces of the pages that people read: self-contained HTML, no network, everything escaped.

Every function takes plain values and returns `Html`; only `Html` goes into a page as it is. The one script sorts
tables; a page runs nothing else, whatever is in the data. Pictures: charts.py.
"""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from eyas.theme import CSS, POLICY, SCRIPT


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


@dataclass(frozen=True)
class Page:
    """What one page tells: parts [Html], one below the other."""

    title: str
    parts: Sequence[Any]
    subtitle: str = ""

    def html(self) -> str:
        """As a document of its own."""
        return _document(self.title, tag("main", self._head(), self._body()))

    def chapter(self, name: str) -> Html:
        """As a part of a book; name: its anchor."""
        return tag("article", self._head(), self._body(), cls="chapter", id=name)

    def _head(self) -> Html:
        return join(tag("h1", self.title), tag("p", self.subtitle, cls="soft") if self.subtitle else "")

    def _body(self) -> Html:
        return join(*self.parts, between="\n")


def page(title: str, *parts: Any, subtitle: str = "") -> Page:
    return Page(title, parts, subtitle)


def book(first: Page, chapters: Sequence[tuple[str, Page]]) -> str:
    """One document of many pages: the first, a table of contents, then (its group, page) of each chapter."""
    groups: dict[str, list[Html]] = {}
    for k, (group, chapter) in enumerate(chapters, start=1):
        link = tag("li", tag("a", chapter.title, href=f"#chapter-{k}"))
        groups.setdefault(group, []).append(link)
    contents = [join(tag("h3", group), tag("ol", *links)) for group, links in groups.items()]
    nav = tag("nav", *contents, **{"aria-label": "contents"})
    return _document(
        first.title,
        tag(
            "main",
            first._head(),
            section("Contents", nav) if contents else "",
            first._body(),
            *(chapter.chapter(f"chapter-{k}") for k, (_, chapter) in enumerate(chapters, start=1)),
        ),
    )


def _document(title: str, body: Html) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"{tag('title', title)}\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
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

    Without `numeric`: those in which every cell is a number or empty. Rows in groups stay as they are, others can be
    sorted by the reader; a total stays below them.
    """
    rows = [r if isinstance(r, Row) else Row(r) for r in rows]
    if numeric is None:
        full = [r.cells for r in rows if len(r.cells) == len(heads)]
        numeric = {k for k in range(len(heads)) if full and all(_is_number(c[k]) for c in full)}
    cls = ["n" if k in numeric else "" for k in range(len(heads))]
    head = tag("tr", *(tag("th", h, cls=c, scope="col") for h, c in zip(heads, cls, strict=True)))
    lines = []
    for row in rows:
        if len(row.cells) == 1:
            cells = [tag("td", row.cells[0], colspan=len(heads))]
        else:
            cells = [tag("td", value, cls=c) for value, c in zip(row.cells, cls, strict=True)]
        lines.append(tag("tr", *cells, cls=row.cls))
    movable = [row for row in rows if not row.cls]
    sortable = len(movable) > 1 and all(row.cls in ("", "total") for row in rows)
    whole = tag("table", tag("thead", head), tag("tbody", *lines), cls="sortable" if sortable else "")
    return tag("div", whole, cls="wide")


def _is_number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def valued(words: str, value: float) -> Html:
    """A number in words, such as 1.2 GB, that a table sorts by its value."""
    return tag("span", words, **{"data-value": value})


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
            runs.append(f'<rect x="{start}" width="{k - start}" height="1" class="f-kept"/>')
            start = None
    return Html(
        f'<svg viewBox="0 0 {max(1, len(mask))} 1" preserveAspectRatio="none" role="img" '
        f'class="strip">{"".join(runs)}</svg>'
    )


def flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value as JSON) of what is set; nulls below the first level say nothing."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield from flat(v, f"{key}.{k}" if key else k)
    elif value is not None or "." not in key:
        yield key, orjson.dumps(value).decode()
