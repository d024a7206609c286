"""Which rows of a dataset are kept: repeats dropped, and at most a cap, chosen by content.

A row has a key (rows with equal keys are repeats) and a place (a pseudo-random number that depends on the
key or the content alone). A capped selection keeps the lowest places: the same sample in whatever order the
files are read, in memory that does not grow with the number of rows.
"""

import heapq
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Candidate:
    """A row that may be kept. tag: tells copies apart, the lowest stays. count: copies met so far."""

    place: int
    key: str
    tag: str
    payload: Any
    count: int = 1


class Everything:
    """No cap: each first copy is kept as it comes; `duplicates` counts the others."""

    beyond_cap = 0
    threshold = None

    def __init__(self):
        self.seen: set[str] = set()
        self.duplicates = 0

    def offer(self, place: int, key: str, tag: str, payload: Any) -> Candidate | None:
        """The candidate when it is to be kept at once; None for a repeat."""
        if key in self.seen:
            self.duplicates += 1
            return None
        self.seen.add(key)
        return Candidate(place, key, tag, payload)

    def ranked(self) -> list[Candidate]:
        """None: each was kept as it came."""
        return []


class Sample:
    """At most `cap` keys by lowest place, with a reserve for those that fall out later (too long).

    Counts do not depend on the order of the rows: copies of a kept key are duplicates, copies of a key that is not
    kept are beyond the cap, whenever they came. So samples of parts of the rows, offered in turn with the counts of
    their candidates, make the sample of all rows.
    """

    duplicates = 0  # those of a kept key are in its candidate's count

    def __init__(self, cap: int):
        self.cap = cap
        self.capacity = cap + max(64, cap // 50)
        self.best: dict[str, Candidate] = {}
        self.heap: list[tuple[int, str]] = []  # (-place, key), so that the worst is on top
        self.beyond_cap = 0

    @property
    def threshold(self) -> int | None:
        """Places above this can no longer enter; None while there is room."""
        return -self.heap[0][0] if len(self.heap) >= self.capacity else None

    def offer(self, place: int, key: str, tag: str, payload: Any, count: int = 1) -> None:
        """count: copies that the row stands for, itself included."""
        known = self.best.get(key)
        if known is not None:
            known.count += count
            if tag < known.tag:
                known.tag, known.payload = tag, payload
            return
        if len(self.heap) < self.capacity:
            heapq.heappush(self.heap, (-place, key))
        elif (-place, key) > self.heap[0]:
            _, out = heapq.heapreplace(self.heap, (-place, key))
            self.beyond_cap += self.best.pop(out).count
        else:
            self.beyond_cap += count
            return
        self.best[key] = Candidate(place, key, tag, payload, count)

    def ranked(self) -> list[Candidate]:
        """The candidates by place: the first `cap` that pass all later checks are kept."""
        return sorted(self.best.values(), key=lambda c: (c.place, c.key))
