"""A place in the sample for every text of an Arrow column, computed for the whole column at once.

Hashing five million texts one by one in Python takes longer than reading them. Here each text is
represented by its length and WORDS eight-byte words, spread evenly from its first byte to its last, mixed by the
finalizer of splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"). Two texts
that differ elsewhere get one place: harmless for a sample, where the full hash then decides.
"""

import numpy as np
import pyarrow as pa

WORDS = 8


def content_order(texts: pa.Array) -> np.ndarray:
    """uint64 [n]: pseudo-random places that depend on each text alone. `texts`: utf8 [n] without nulls."""
    n = len(texts)
    if n == 0:
        return np.empty(0, np.uint64)
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + n + 1]
    base, size = int(ends[0]), int(ends[-1] - ends[0])
    padded = np.zeros(size + 8, np.uint8)  # so that a word may start at any byte
    if size:
        padded[:size] = np.frombuffer(data, np.uint8)[base : base + size]
    words = np.ndarray(size + 1, "<u8", padded, strides=(1,))  # the eight bytes from each byte on
    starts, lengths = ends[:-1] - base, np.diff(ends)
    mixed = _mix(lengths.astype(np.uint64))
    room = np.maximum(lengths - 8, 0)  # from the first word's start to the last word's
    for k in range(WORDS):
        word = words[starts + room * k // (WORDS - 1)]
        mixed = _mix(mixed ^ np.where(lengths >= 8, word, word & _low_bytes(lengths)))
    return mixed


def _low_bytes(lengths: np.ndarray) -> np.ndarray:
    """Masks that keep the first `length` bytes of a little-endian word. [n] → uint64 [n]"""
    bits = (8 * np.clip(lengths, 0, 7)).astype(np.uint64)
    return (np.uint64(1) << bits) - np.uint64(1)


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
