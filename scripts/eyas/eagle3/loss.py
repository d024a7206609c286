"""Losses over the draft vocabulary and their gradients, chunk by chunk.

The gradients are made together with the losses, so nothing of [positions, vocabulary] outlives its chunk. A chunk is a
stretch of target rows with all steps that predict them, so the target's distribution is made once for all steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import Function

from eyas.compute import row_max
from eyas.eagle3.products import accumulate, rms_norm, rms_norm_backward
from eyas.eagle3.supervision import Objective, Plan

# Logits held at once, in numbers: for the products, and in fp32 between them. Their buffers are made once.
CHUNK = {"cpu": (1 << 24, 1 << 21), "cuda": (1 << 28, 1 << 27)}


@dataclass(frozen=True)
class LossInputs:
    """What the loss needs beside the hidden states and weights.

    coefficients [steps]: weight of a step divided by its count. last [T, size]: the batch's last hidden states.
    """

    plan: Plan
    objective: Objective
    coefficients: Tensor
    last: Tensor | None
    d2t: Tensor
    t2d: Tensor
    eps: float
    gradient: bool


class StepLosses(Function):
    """norm, lm_head and loss of all steps.

    apply(inputs, scale [H], cast, head [draft vocabulary, H], *hidden [n_i, H] fp32 of the steps that have any)
      → (total [], sums [steps], hits [steps, n] bool, overlaps [steps])
    total = Σ_i coefficient_i · sum_i. hits by row of the plan. overlaps: Σ of Σ min(p, q) (loss lk, else zeros).
    """

    @staticmethod
    def forward(ctx, inputs, scale, cast, head, *hidden):
        plan, n, device = inputs.plan, len(hidden), scale.device
        compare, train_head = _LOSSES[inputs.objective.loss], inputs.gradient and ctx.needs_input_grad[3]
        sums, overlaps = (torch.zeros(len(plan.steps), device=device) for _ in range(2))
        hits = torch.zeros(len(plan.steps), len(plan.rows), dtype=torch.bool, device=device)
        d_hidden = [torch.zeros_like(h) for h in hidden] if inputs.gradient else []
        d_scale = torch.zeros_like(scale)
        # fp32 products are faster into [draft vocabulary, H], bf16 ones into its transpose.
        wide = cast.dtype == torch.float32
        d_head = torch.zeros(head.shape if wide else head.shape[::-1], device=device) if train_head else None
        where = torch.zeros(n, len(plan.rows), dtype=torch.int64, device=device)  # row of the plan → row of hidden_i
        for at, step in zip(where, plan.steps, strict=False):
            at[step.active] = torch.arange(len(step.active), device=device)
        labels = (torch.cumsum(inputs.t2d, 0) - 1)[plan.top1]  # the draft's token for each good row's top-1  [g]
        steps = torch.arange(n, device=device)
        large, small = (max(1, size // (n * len(cast))) for size in CHUNK.get(device.type) or CHUNK["cuda"])
        large, small = min(large, len(plan.good)), min(small, large, len(plan.good))
        held = cast.new_empty(large, n, len(cast))  # logits, then their gradient
        room = None if wide else torch.empty(small, n, len(cast), device=device)
        teacher = _Teacher(inputs, large, small)
        for start in range(0, len(plan.good), large):
            good, top1 = (x[start : start + large] for x in (plan.good, plan.top1))  # [c] rows of the plan
            c = len(good)
            # Step i predicts row r from row r − i; the few that would lie before their document count as nothing.
            before = good[:, None] - steps  # [c, steps]
            counted = (before >= 0) & plan.counted[steps, before.clamp_min(0)]  # [c, steps]
            at = where[steps, before.clamp_min(0)]  # [c, steps] rows of hidden_i
            x = torch.stack([h[a] for h, a in zip(hidden, at.T, strict=True)], 1).flatten(0, 1)  # [c · steps, H]
            unit, inverse = rms_norm(x, inputs.eps)
            y = (unit * scale).to(cast.dtype)
            logits = held[:c]  # [c, steps, draft vocabulary]
            torch.mm(y, cast.t(), out=logits.flatten(0, 1))
            teacher.look_at(good, labels[start : start + c])
            for a in range(0, c, small):
                part = slice(a, min(a + small, c))
                z = logits[part] if wide else room[: min(a + small, c) - a].copy_(logits[part])
                loss, guess, overlap = compare(z, teacher.of(part), inputs.gradient)
                if inputs.gradient and not wide:
                    logits[part].copy_(z)
                sums[:n] += torch.where(counted[part], loss, 0).sum(0)
                overlaps[:n] += torch.where(counted[part], overlap, 0).sum(0)
                right = counted[part] & (guess + inputs.d2t[guess] == top1[part, None])  # [.., steps]
                hits[steps.expand_as(right)[right], before[part][right]] = True
            if not inputs.gradient:
                continue
            weight = (counted * inputs.coefficients[:n]).view(-1, 1)  # [c · steps, 1]
            g = logits.flatten(0, 1)  # the gradients by now  [c · steps, draft vocabulary]
            if train_head:
                weighted = y * weight.to(y.dtype)
                accumulate(d_head, *((g.t(), weighted) if wide else (weighted.t().contiguous(), g)))
            d_x, d = rms_norm_backward((g @ cast).float().mul_(weight), scale, unit, inverse)
            d_scale += d
            for i, d in enumerate(d_x.unflatten(0, (c, n)).unbind(1)):
                d_hidden[i].index_add_(0, at[:, i], d)
        total = (sums * inputs.coefficients).sum()
        ctx.save_for_backward(
            d_scale, *([d_head if wide else d_head.t().contiguous()] if train_head else []), *d_hidden
        )
        ctx.train_head, ctx.dtype = train_head, head.dtype
        ctx.mark_non_differentiable(sums, hits, overlaps)
        return total, sums, hits, overlaps

    @staticmethod
    def backward(ctx, grad, *_):
        d_scale, *rest = ctx.saved_tensors
        d_head = rest.pop(0).mul(grad).to(ctx.dtype) if ctx.train_head else None
        return None, d_scale * grad, None, d_head, *(d * grad for d in rest)


class _Teacher:
    """What the losses compare with: draft tokens [c] (hard), or p over the kept tokens [c, draft vocabulary] fp32."""

    def __init__(self, inputs: LossInputs, large: int, small: int):
        self.inputs, head = inputs, inputs.plan.targets.head
        if head is not None:
            self.held = head.new_empty(large, len(head))
            self.room = torch.empty(small, len(head), device=head.device)

    def look_at(self, good: Tensor, labels: Tensor) -> None:
        """Take these rows of the plan, [c]."""
        self.labels, self.rows, targets = labels, self.inputs.plan.rows[good] + 1, self.inputs.plan.targets
        if targets.head is not None:  # the target's row is the next
            states = self.inputs.last[self.rows].to(targets.head.dtype)
            torch.mm(states, targets.head.t(), out=self.held[: len(good)])

    def of(self, part: slice) -> Tensor:
        if self.inputs.objective.loss == "hard":
            return self.labels[part]
        p = self.room[: part.stop - part.start]
        if self.inputs.objective.loss == "lk":  # the share of the whole vocabulary: what sampling accepts by
            total = self.inputs.plan.targets.log_total[self.rows[part]]
            return torch.sub(p.copy_(self.held[part]), total[:, None], out=p).exp_()
        return torch.softmax(self.held[part], -1, dtype=torch.float32, out=p)


# Each: (z: logits in fp32 [c, steps, V], teacher, gradient?) → (loss, argmax, overlap [c, steps]).
# z becomes the draft's distribution q; with gradient, d loss / d logits takes its place.


def _kl(z: Tensor, p: Tensor, gradient: bool):
    """−Σ p log q = log Σ exp z − Σ p·z, since Σ p = 1; gradient q − p.  KL without the target's constant entropy."""
    dot = torch.bmm(p[:, None], z.mT).squeeze(1)  # [c, steps]
    guess, log_sum = _softmax(z)
    loss = log_sum - dot
    if gradient:
        z.sub_(p[:, None])
    return loss, guess, torch.zeros_like(loss)


def _hard(z: Tensor, labels: Tensor, gradient: bool):
    """−log q[label]; gradient q − [label]."""
    at = labels[:, None, None].expand(*z.shape[:2], 1)  # [c, steps, 1]
    label = z.gather(-1, at).squeeze(-1)
    guess, log_sum = _softmax(z)
    loss = log_sum - label
    if gradient:
        z.scatter_add_(-1, at, z.new_full(at.shape, -1.0))
    return loss, guess, torch.zeros_like(loss)


def _lk(z: Tensor, p: Tensor, gradient: bool):
    """−log α, α = Σ min(p, q): the likelihood of acceptance (LK losses, arXiv 2602.23881, its L^α).

    With b = [q < p]: dα/dz_k = q_k·(b_k − Σ q·b), so the gradient is q_k·(Σ q·b − b_k)/α.
    """
    guess, _ = _softmax(z)
    q, p = z, p[:, None]
    alpha = torch.minimum(p, q).sum(-1).clamp_min(1e-20)  # [c, steps]
    if gradient:
        below = (q < p).to(q.dtype)
        share = (q * below).sum(-1, keepdim=True)
        q.mul_(below.neg_().add_(share)).div_(alpha[..., None])
    return -alpha.log(), guess, alpha


def _softmax(z: Tensor) -> tuple[Tensor, Tensor]:
    """Turns logits into their softmax q in place; (argmax, log Σ exp z): at the argmax, log Σ exp z = z − log q."""
    top, guess = row_max(z)
    torch.softmax(z, -1, out=z)
    return guess, top - z.gather(-1, guess.unsqueeze(-1)).squeeze(-1).log()


_LOSSES = {"kl": _kl, "hard": _hard, "lk": _lk}
