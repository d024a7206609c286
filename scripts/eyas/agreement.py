"""Are these the states that the target chose its words from? What lm_head says of them, beside the text.

Under greedy sampling the target's next token is lm_head's first choice, up to numerical ties; sampled, it often is.
States that are shifted by a position, of another layer, or of another model agree with the text almost nowhere. What
agreement cannot tell, a state from before the final norm (its first choice may be the same), its size does: after an
RMSNorm with weights w, state / w has a root mean square of 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import torch

from eyas.compute import top_tokens
from eyas.states import Sample
from eyas.target.head import Head

POSITIONS = 32  # looked at in one sample, spread over what is trained
CHANCE = 1e-3  # a sample fails when so few agreements are as improbable at the floor
SIZE_BOUND = 0.1  # of the root mean square, beside 1
EPSILON = 1e-6


@dataclass(frozen=True)
class Finding:
    """Of one sample: positions looked at, those where lm_head's first choice is the text's, and whether it passes."""

    checked: int
    agreed: int
    passes: bool


class Judge:
    """floors: the least share of agreement, of samples whose answers are greedy and of others."""

    def __init__(self, head: Head, greedy: set[str], floor: float, sampled_floor: float):
        self.head, self.greedy, self.floors = head, greedy, {True: floor, False: sampled_floor}

    def floor(self, dataset: str) -> float:
        return self.floors[dataset in self.greedy]

    @torch.inference_mode()
    def judge(self, samples: Sequence[Sample], last: Sequence[torch.Tensor]) -> Iterator[Finding]:
        """One finding a sample. last: at positions_of(sample), [positions, H]."""
        if not samples:
            return
        tops, _ = top_tokens(self.head.lm_head, torch.cat(list(last)))
        tops = tops.split([len(states) for states in last])
        for sample, states, top in zip(samples, last, tops, strict=True):
            text = _text(sample, 1)
            agreed = int((top == text).sum())
            improbable = _at_most(agreed, len(text), self.floor(sample.dataset)) < CHANCE
            yield Finding(len(text), agreed, not improbable and self._is_normed(states))

    def _is_normed(self, states: torch.Tensor) -> bool:
        """Whether the states have the size of those after the final norm; weights may be stored as w or as w - 1."""
        if self.head.norm is None or not len(states):
            return True
        weights = self.head.norm.float()
        for w in (weights, weights + 1):
            rms = (states.float() / torch.where(w.abs() < EPSILON, EPSILON, w)).square().mean(dim=-1).sqrt()
            if abs(rms.median().item() - 1) < SIZE_BOUND:
                return True
        return False

    @torch.inference_mode()
    def diagnosis(self, samples: Sequence[Sample], last: Sequence[torch.Tensor]) -> str:
        """In words, which convention looks wrong; last: as for `judge`."""
        states = torch.cat(list(last))
        if not all(map(self._is_normed, last)):
            return "the states have another size than after the final norm: they look like those before it"
        tops, _ = top_tokens(self.head.lm_head, states)
        for shift, words in ((0, "before"), (2, "after")):
            texts = [_text(sample, shift) for sample in samples]
            known = torch.cat(texts) >= 0
            if known.any() and (tops == torch.cat(texts))[known].float().mean() > self.floors[False]:
                return f"each state looks like the one of the position {words} it: the rows are shifted"
        return (
            "neither shifted rows nor a missing final norm explains it: the states, lm_head and the text may be of "
            "different models or revisions, or the text was made with another tokenizer"
        )


def positions_of(sample: Sample) -> np.ndarray:
    """Rows of a sample whose next token is trained on, at most POSITIONS of them, evenly spread."""
    rows = np.flatnonzero(sample.loss_mask[1:])
    return rows[np.linspace(0, len(rows) - 1, min(POSITIONS, len(rows))).round().astype(np.int64)]


def _text(sample: Sample, shift: int) -> torch.Tensor:
    """The tokens `shift` places after the positions; -1 behind the end."""
    padded = np.concatenate([sample.input_ids.astype(np.int64), [-1]])
    return torch.from_numpy(padded[positions_of(sample) + shift])


def _at_most(successes: int, trials: int, chance: float) -> float:
    """The probability of so few successes (binomial)."""
    return sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(successes + 1))
