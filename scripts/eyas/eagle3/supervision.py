"""Which positions count at which step, and what must be computed at all.

Position t of a document sees the target's aux states of t and, at step i, the embedding of token t+1+i; it predicts
token t+2+i, whose distribution is the target's at row τ = t+1+i. So everything about a target is a property of τ alone,
and a position counts at step i when its row τ does and lies in the same document.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.errors import EyasError

# Which entry of the loss mask decides about row τ, as a shift of τ.
SUPERVISION = {
    "predicted_token": 1,  # m[t+2+i]: exactly the positions whose predicted token is trained on
    "next_token": 0,  # m[t+1+i], as speculators has it
    "position": -1,  # m[t+i], as EAGLE and SpecForge have it (reported as a bug: SpecForge #885)
}
LOSSES = ("kl", "hard", "lk")


@dataclass(frozen=True)
class Objective:
    """What is trained.

    steps: of the training-time test. step_weights: of each step's mean loss; default 0.8^i.
    supervision: a key of SUPERVISION.
    loss: kl, cross entropy against the target's distribution over the kept tokens; hard, against the next token, which
    is the target's top-1 in greedy data and needs no teacher; lk, −log of the acceptance rate Σ min(p, q).
    """

    steps: int = 7
    step_weights: tuple[float, ...] | None = None
    supervision: str = "predicted_token"
    loss: str = "kl"
    train_lm_head: bool = True

    def __post_init__(self):
        if self.steps < 1:
            raise EyasError(f"steps: expected at least 1, found {self.steps}: EAGLE-3 uses 7")
        if self.step_weights is not None and len(self.step_weights) != self.steps:
            raise EyasError(
                f"step_weights: expected {self.steps}, one for each step, found {len(self.step_weights)}: give as many"
            )
        for key, value, known in (("supervision", self.supervision, SUPERVISION), ("loss", self.loss, LOSSES)):
            if value not in known:
                raise EyasError(f"{key}: expected {', '.join(known)}, found {value!r}: choose one of them")

    @property
    def weights(self) -> tuple[float, ...]:
        return self.step_weights or tuple(0.8**i for i in range(self.steps))


@dataclass(frozen=True)
class Batch:
    """Documents, one after the other, without padding; all tensors on one device.

    input_ids [T] int64, loss_mask [T] (0 or 1), aux [T, layers · size], last [T, size] (the target's last hidden
    states after its final norm; None where no teacher is needed), offsets [documents + 1].
    """

    input_ids: Tensor
    loss_mask: Tensor
    aux: Tensor
    last: Tensor | None
    offsets: Tensor

    def __post_init__(self):
        tokens = len(self.input_ids)
        for name in ("loss_mask", "aux", "last"):
            value = getattr(self, name)
            if value is not None and len(value) != tokens:
                raise EyasError(f"{name}: expected {tokens:,} rows, one for each token, found {len(value):,}")
        ends = self.offsets.tolist()
        if ends[:1] != [0] or ends[-1] != tokens or any(a >= b for a, b in zip(ends, ends[1:], strict=False)):
            raise EyasError(f"offsets: expected to rise from 0 to {tokens:,}, the number of tokens, found {ends[:8]} …")


@dataclass(frozen=True)
class Targets:
    """What is known of the target at each row; made by Teacher.targets, or by `hard_targets`.

    allowed [T] bool: the mask trains on the row. top1 [T] int64: the target's choice over its whole vocabulary, −1
    where not allowed. log_total [T] fp32: log Σ exp of its logits (loss lk). head [draft vocabulary, size]: its head's
    rows of the kept tokens (None: hard labels).
    """

    allowed: Tensor
    top1: Tensor
    log_total: Tensor | None = None
    head: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """The positions computed at one step, A_i, sorted; A_0 ⊇ A_1 ⊇ …

    active [n] rows of the plan; kept [n] where these stood in the step before (None: all of them, in place).
    """

    active: Tensor
    kept: Tensor | None


@dataclass(frozen=True)
class Plan:
    """What one batch needs. Rows are the positions up to the last one of each document that any step supervises.

    rows [n] position in the batch; place [n] position in the document; spans [(start, end)] of the documents' rows.
    Row r of step i's input is token rows[r+i]+1, and its target is row r+i's: good [g], sorted, the rows whose target
    counts, with top1 [g]. queries [m]: the rows r+i that occur, sorted.
    counted [steps, n] bool: which rows count at which step. chain [steps, n] bool: which the mask allows at all steps
    up to this one.
    counts [steps]: supervised positions, by which sums of losses are divided. masked [steps]: those that the mask
    allows, a top-1 outside of the draft vocabulary included, by which hits are divided. chains [steps]: positions
    allowed at all steps up to this one, by which the joint hits are divided. All int64, on the batch's device.
    """

    rows: Tensor
    place: Tensor
    spans: list[tuple[int, int]]
    steps: list[Step]
    queries: Tensor
    good: Tensor
    top1: Tensor
    counted: Tensor
    chain: Tensor
    targets: Targets
    counts: Tensor
    masked: Tensor
    chains: Tensor


def allowed_rows(batch: Batch, objective: Objective) -> Tensor:
    """Target rows τ that the mask trains on and that some position of the same document predicts.  [T] bool"""
    place, left = places(batch.offsets)
    shift = SUPERVISION[objective.supervision]
    allowed = torch.roll(batch.loss_mask.bool(), -shift)  # m[τ + shift]; what wraps around is excluded next
    last = 1 if shift > 0 or objective.loss == "hard" else 0  # entries after τ that must exist
    return allowed & (place >= 1) & (left >= last)


def places(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """(position in its document, positions after it in its document), both [T] int64."""
    lengths = offsets.diff()
    positions = torch.arange(int(offsets[-1]), device=offsets.device)
    return positions - offsets[:-1].repeat_interleave(lengths), offsets[1:].repeat_interleave(lengths) - 1 - positions


def hard_targets(batch: Batch, objective: Objective) -> Targets:
    """The target's top-1 is taken to be the next token itself, as in greedy answers; no teacher."""
    allowed = allowed_rows(batch, objective)
    return Targets(allowed, torch.where(allowed, torch.roll(batch.input_ids, -1), -1))


def supervise(batch: Batch, targets: Targets, t2d: Tensor, objective: Objective) -> Plan:
    """Which positions count at which step; t2d [vocab] bool is the draft's.

    A position t counts at step i when the mask allows row t+1+i, which lies in its document, and the target's top-1
    there is one of the draft's tokens.
    """
    place, _ = places(batch.offsets)  # [T]
    documents = torch.repeat_interleave(batch.offsets.diff())  # [T] which document
    good = targets.allowed & t2d[targets.top1.clamp_min(0)]  # [T] by row τ

    # By position t: τ = t+1+i lies in the same document when its place is above i.
    inside = [place > i for i in range(objective.steps)]
    counted = torch.stack([ahead(good & same, i + 1) for i, same in enumerate(inside)])  # [steps, T]
    allowed = torch.stack([ahead(targets.allowed & same, i + 1) for i, same in enumerate(inside)])  # [steps, T]
    chain = allowed.cummin(0).values  # broken by the mask; a top-1 that the draft lacks is a miss, not a break

    # Rows: what lies before the last good τ of its document.
    last = torch.zeros_like(batch.offsets[1:]).scatter_reduce_(0, documents, place * good, "amax")  # [documents]
    rows = (place < last[documents]).nonzero().flatten()  # [n]
    ends = [0, *last.cumsum(0).tolist()]
    at_row = counted[:, rows]  # [steps, n]

    # Steps: a row is computed as long as this step or a later one counts.
    needed = at_row.flip(0).cummax(0).values.flip(0)  # [steps, n]
    steps, queries = [], torch.zeros_like(needed[0])
    for i, row in enumerate(needed):
        active = row.nonzero().flatten()
        same = i == 0 or len(active) == len(steps[-1].active)
        steps.append(Step(active, None if same else torch.searchsorted(steps[-1].active, active)))
        queries[active + i] = True
    at = counted[0, rows].nonzero().flatten()
    return Plan(
        rows=rows,
        place=place[rows],
        spans=[(a, b) for a, b in zip(ends, ends[1:], strict=False) if b > a],
        steps=steps,
        queries=queries.nonzero().flatten(),
        good=at,
        top1=targets.top1[rows[at] + 1],
        counted=at_row,
        chain=chain[:, rows],
        targets=targets,
        counts=counted.sum(1),
        masked=allowed.sum(1),
        chains=chain.sum(1),
    )


def ahead(x: Tensor, by: int) -> Tensor:
    """x [T] moved left: entry t is x[t + by], zero-filled."""
    return torch.cat([x[by:], torch.zeros_like(x[:by])])
