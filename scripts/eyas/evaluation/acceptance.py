"""From counts of accepted drafts to acceptance lengths.

An acceptance length is tokens for each verification, the target's own token included: (completion − 1) / verifications,
since the first token comes from the prompt's pass. `accepted[k]` counts verifications that accepted k drafts, so the
share that accepted at least k is the rate of position k, and a chain cut at n would have 1 + Σ_{k ≤ n} rate_k.

These are measured. The lengths that a training tells are simulated: over all positions of a text, by
`eagle3.trainer.rates`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Acceptance:
    """tokens: of the answers, without each one's first. accepted [chain + 1]: see the module. Weighed: no integers."""

    answers: int
    tokens: float
    accepted: tuple[float, ...]

    @classmethod
    def of(cls, trials: Iterable[dict]) -> "Acceptance":
        """trials: lines of an engine's file, with output_ids and accepted, all of one chain."""
        trials = list(trials)
        accepted = np.sum([t["accepted"] for t in trials], axis=0, dtype=np.int64) if trials else []
        tokens = sum(len(t["output_ids"]) - 1 for t in trials)
        return cls(len(trials), tokens, tuple(int(n) for n in accepted))

    @property
    def verifications(self) -> float:
        return sum(self.accepted)

    @property
    def length(self) -> float | None:
        """None when nothing was verified."""
        return self.tokens / self.verifications if self.verifications else None

    @property
    def rates(self) -> list[float]:
        """The share of verifications that accepted position 1, 2, …"""
        at_least = np.cumsum(self.accepted[::-1])[::-1][1:]
        return [float(n) / self.verifications for n in at_least] if self.verifications else []

    def of_chain(self, drafts: int) -> float:
        """The acceptance length that chains of so many drafts would have, at most those that were tried."""
        return 1 + sum(self.rates[:drafts])

    def as_dict(self) -> dict:
        length = self.length
        return {
            "answers": self.answers,
            "verifications": round(self.verifications),
            "acceptance_length": None if length is None else round(length, 4),
            "accepted_by_position": [round(r, 4) for r in self.rates],
        }


def by_dataset(trials: list[dict]) -> Iterator[tuple[str, Acceptance]]:
    """Each dataset's acceptance, by name."""
    for name in sorted({t["dataset"] for t in trials}):
        yield name, Acceptance.of(t for t in trials if t["dataset"] == name)


def weighed(trials: list[dict], population: Mapping[str, int]) -> Acceptance:
    """Over all that the trials stand for: each dataset counts as it does in the population (dataset → samples).

    Without a population each answer counts as one.
    """
    parts = dict(by_dataset(trials))
    share = {name: population[name] / own.answers if population else 1.0 for name, own in parts.items()}
    accepted = sum((share[name] * np.array(own.accepted) for name, own in parts.items()), start=np.zeros(1))
    tokens = sum(share[name] * own.tokens for name, own in parts.items())
    return Acceptance(len(trials), tokens, tuple(accepted.tolist()))
