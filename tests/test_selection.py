"""Caps and repeats: the same sample and the same counts in whatever order the rows come."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from eyas.selection import Everything, Sample


def run(keys, cap, seed):
    order = list(keys)
    random.Random(seed).shuffle(order)
    sample = Sample(cap)
    for n, key in enumerate(order):
        sample.offer(hash((key, "place")) % 2**64, f"k{key:04}", f"copy {n}", key)
    ranked = sample.ranked()
    kept, spare = ranked[:cap], ranked[cap:]
    duplicates = sum(c.count - 1 for c in kept)
    beyond = sample.beyond_cap + sum(c.count for c in spare)
    return [c.key for c in kept], duplicates, beyond


@given(keys=st.lists(st.integers(0, 400), max_size=600), cap=st.integers(1, 100), seed=st.integers())
def test_sample_and_counts_do_not_depend_on_the_order(keys, cap, seed):
    first = run(keys, cap, 0)
    assert run(keys, cap, seed) == first
    kept, duplicates, beyond = first
    assert len(kept) == min(cap, len(set(keys)))
    copies = Counter(keys)
    assert duplicates == sum(copies[int(k[1:])] - 1 for k in kept)
    assert len(kept) + duplicates + beyond == len(keys)


def test_a_sample_holds_no_more_than_its_capacity():
    sample = Sample(100)
    for n in range(10_000):
        sample.offer(hash((n, 1)) % 2**64, str(n), "", None)
    assert len(sample.best) == len(sample.heap) == sample.capacity == 164
    assert sample.threshold == max(c.place for c in sample.best.values())


def test_of_copies_with_one_key_the_lowest_tag_stays():
    for tags in ("abc", "cab", "bca"):
        sample = Sample(5)
        for tag in tags:
            sample.offer(1, "issue", tag, tag)
        assert sample.ranked()[0].payload == "a"


def test_everything_keeps_first_copies():
    selection = Everything()
    kept = [selection.offer(0, key, "", key) for key in "abcab"]
    assert [c.payload for c in kept if c] == ["a", "b", "c"]
    assert selection.duplicates == 2


@given(keys=st.lists(st.integers(0, 200), max_size=400), cap=st.integers(1, 60), parts=st.integers(1, 5))
def test_samples_of_parts_make_the_sample_of_all(keys, cap, parts):
    def sample(rows):
        found = Sample(cap)
        for row in rows:
            found.offer(*row)
        return found

    rows = [(key % 150, f"k{key:04}", f"tag {n % 3}", n) for n, key in enumerate(keys)]  # some keys share a place
    whole, merged = sample(rows), Sample(cap)
    for k in range(parts):
        part = sample(rows[len(rows) * k // parts : len(rows) * (k + 1) // parts])
        merged.beyond_cap += part.beyond_cap
        for c in part.ranked():
            merged.offer(c.place, c.key, c.tag, c.payload, c.count)
    assert (merged.ranked(), merged.beyond_cap) == (whole.ranked(), whole.beyond_cap)
