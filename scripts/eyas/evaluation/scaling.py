"""Does more data help? Acceptance length against the tokens that a draft was trained on.

A line is fitted to the length over log₂ of the tokens, by least squares: its slope is what a doubling brings. How sure
that is, two ways: by the prompts (they are drawn anew, with replacement, the same for all drafts: a paired bootstrap)
and by how far the drafts lie from the line (Student's t, with as many degrees of freedom as drafts are left). The wider
interval is the one that is told.
"""

import math
from collections.abc import Sequence

import numpy as np

from eyas.errors import EyasError
from eyas.evaluation.acceptance import Acceptance
from eyas.evaluation.summary import concurrencies

RESAMPLES = 2000
LEVEL = 0.9  # of the intervals
# Student's t of 1 to 10 degrees of freedom at LEVEL, two-sided; then the normal distribution's.
T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.645)


def fit_scaling(drafts: list[tuple[dict, list[dict]]]) -> dict:
    """scaling/summary.json. drafts: (training.json, lines as in trials.py) of each, from the least data on.

    The held-out prompts that all were tried on count. EyasError when these are none, or the tokens are not known.
    """
    tokens = [_tokens(training) for training, _ in drafts]
    tables = [_counts(lines) for _, lines in drafts]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    counts = np.array([[table[name] for name in shared] for table in tables])  # [drafts, prompts, 2]
    if not shared or not counts[..., 1].sum(1).all():
        raise EyasError("scaling: no held-out prompt was answered with all drafts: run `snakemake --force scaling`")
    at, lengths = np.log2(tokens), _lengths(counts)
    slope, start = _line(at, lengths)
    drawn = np.random.default_rng(0).integers(len(shared), size=(RESAMPLES, len(shared)))
    bootstrapped = [_line(at, _lengths(counts[:, own]))[0] for own in drawn if counts[:, own, 1].sum(1).all()]
    ends = np.quantile(bootstrapped, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    left = len(drafts) - 2
    residual = lengths - (start + slope * at)
    by_line = (
        T[min(left, len(T)) - 1] * math.sqrt((residual**2).sum() / left / ((at - at.mean()) ** 2).sum())
        if left > 0
        else 0.0
    )
    low, high = min(ends[0], slope - by_line), max(ends[1], slope + by_line)
    summary = {
        "drafts": [
            {
                "samples": training["samples"],
                "tokens": int(count),
                "steps": training["steps"],
                "acceptance_length": round(float(length), 4),
                "fitted": round(float(start + slope * place), 4),
            }
            for (training, _), count, length, place in zip(drafts, tokens, lengths, at, strict=True)
        ],
        "prompts": len(shared),
        "by_doubling": round(float(slope), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
        "interval_of_prompts": [round(float(e), 4) for e in ends],
        "interval_of_line": [round(float(slope - by_line), 4), round(float(slope + by_line), 4)],
        "level": LEVEL,
        "next": {"tokens": int(2 * tokens[-1]), "acceptance_length": round(float(lengths[-1] + slope), 4)},
    }
    return {**summary, "sentence": _sentence(summary)}


def _sentence(summary: dict) -> str:
    low, high = summary["interval"]
    last, coming = summary["drafts"][-1], summary["next"]
    words = (
        f"Twice the data changes the acceptance length by {summary['by_doubling']:+.3f} ({low:+.3f} to {high:+.3f}, "
        f"{summary['level']:.0%} sure): from {last['acceptance_length']:.2f} with {last['tokens']:,} tokens to about "
        f"{coming['acceptance_length']:.2f} with {coming['tokens']:,}."
    )
    if low > 0:
        return words + " More data helps."
    return words + (" More data does not help." if high < 0 else " Whether more data helps cannot be told from this.")


def _tokens(training: dict) -> int:
    if "corpus_tokens" not in training:
        raise EyasError(
            "scaling: training.json does not tell how many tokens the draft was trained on: it was trained in a "
            "window (capture.window), or by an older version: run `snakemake --force trained`"
        )
    return training["corpus_tokens"]


def _counts(lines: list[dict]) -> dict[str, tuple[int, int]]:
    """id → (tokens, verifications) of each held-out prompt, at the highest concurrency."""
    widest = max(concurrencies(lines))
    found = {}
    for line in lines:
        if line.get("concurrency", 1) == widest and not line.get("benchmark"):
            own = Acceptance.of([line])
            found[line["id"]] = (own.tokens, own.verifications)
    return found


def _lengths(counts: np.ndarray) -> np.ndarray:
    """counts [drafts, prompts, 2] → acceptance lengths [drafts]"""
    tokens, verifications = counts.sum(1).T
    return tokens / verifications


def _line(x: np.ndarray, y: Sequence[float]) -> tuple[float, float]:
    """(slope, value at 0) by least squares"""
    slope, start = np.polyfit(x, y, 1)
    return float(slope), float(start)
