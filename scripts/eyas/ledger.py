"""What became of each row, counted and listed; how long the kept ones are."""

import bisect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

REJECTS_LISTED = 10_000  # for each reason; statistics count all of them
EXCERPT = 300  # characters of a row in an error message
LENGTH_EDGES = [2**k for k in range(4, 19)]  # tokens, of the histogram in stats.json


@dataclass
class Ledger:
    """Counts every row, and lists the rejected ones in rejects.jsonl."""

    file: Any = None
    rows_read: int = 0
    reasons: Counter = field(default_factory=Counter)
    filters: set = field(default_factory=set)
    examples: dict = field(default_factory=dict)
    listed_of: Counter = field(default_factory=Counter)  # reason → lines in the file

    def reject(
        self, reason: str, where: dict, detail: str, row: Any = None, *, is_filter: bool = False, count: int = 1
    ) -> None:
        """Count `count` copies of a row; `row`: its value, for the example in an error message."""
        self.reasons[reason] += count
        if is_filter:
            self.filters.add(reason)
        if self.room(reason):
            line = {**where, "reason": reason, "detail": detail[:500]}
            if reason not in self.examples:
                self.examples[reason] = {**line, "excerpt": "" if row is None else repr(row)[:EXCERPT]}
            if self.file is not None:
                self._list(reason, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def add(self, later: "Ledger", lines: Iterable[bytes]) -> None:
        """Go on with a ledger of later rows; `lines`: those that it listed. As if all rows had come to this one."""
        self.rows_read += later.rows_read
        self.reasons.update(later.reasons)
        self.filters |= later.filters
        self.examples = later.examples | self.examples
        for line in lines:
            reason = orjson.loads(line)["reason"]
            if self.room(reason):
                self._list(reason, line)

    def room(self, reason: str) -> int:
        """How many more rows are listed under a reason."""
        return REJECTS_LISTED - self.listed_of[reason]

    def _list(self, reason: str, line: bytes) -> None:
        self.listed_of[reason] += 1
        self.file.write(line)

    @property
    def listed(self) -> int:
        return self.listed_of.total()

    @property
    def rejected(self) -> int:
        return self.reasons.total()

    @property
    def filtered(self) -> int:
        return sum(self.reasons[r] for r in self.filters)

    @property
    def damaged(self) -> int:
        return self.rejected - self.filtered

    def top_reasons(self, n: int = 3) -> str:
        """The most frequent reasons with one example each, for an error message."""
        lines = []
        for k, (reason, count) in enumerate(self.reasons.most_common(n)):
            e = self.examples[reason]
            lines.append(f"  {reason}: {count:,}, e.g. {e['file']} row {e['row']}: {e['detail'][:200]}")
            if k == 0 and e["excerpt"]:
                lines.append(f"    that row: {e['excerpt']}")
        return "\n".join(lines) or "  no row was rejected"


def length_statistics(lengths: list[int]) -> dict:
    """Of records' lengths in tokens: {"tokens", "length_quantiles", "length_histogram"}, as stats.json holds them.

    The histogram counts lengths below the first edge, between edges, and from the last edge on.
    """
    lengths = sorted(lengths)
    below = [0, *(bisect.bisect_left(lengths, edge) for edge in LENGTH_EDGES), len(lengths)]
    last = len(lengths) - 1
    return {
        "tokens": sum(lengths),
        "length_quantiles": {str(q): lengths[min(last, q * len(lengths) // 100)] for q in (5, 25, 50, 75, 95, 100)}
        if lengths
        else {},
        "length_histogram": {"edges": LENGTH_EDGES, "counts": [b - a for a, b in pairwise(below)]},
    }
