"""AdamW and Muon over the draft's parameters, and one schedule for both."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from eyas.compute import fast_dtype
from eyas.config import Training

LM_HEAD = "lm_head.weight"
QUINTIC = (3.4445, -4.775, 2.0315)  # steepest at zero: five rounds bring all singular values near 1
ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """For matrices: the step is the momentum with all its singular values near 1 (Keller Jordan, 2024).

    m ← m + (1 − μ)(g − m);  u = orthogonal(g + μ(m − g));  w ← (1 − lr·decay)·w − lr·√max(1, rows/columns)·u

    As torch.optim.Muon, but for the products, which are in bf16 only where that is fast.
    """

    def __init__(self, groups: list[dict], momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(groups, {"momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight.grad))
                mean.lerp_(weight.grad, 1 - momentum)
                update = orthogonal(weight.grad.lerp(mean, momentum))
                rows, columns = weight.shape
                weight.mul_(1 - lr * group["weight_decay"])
                weight.add_(update, alpha=-lr * math.sqrt(max(1, rows / columns)))


def orthogonal(matrix: Tensor) -> Tensor:
    """Of matrix = U S Vᵀ about U Vᵀ, singular values within 0.7 and 1.2 but for tiny ones (Newton-Schulz, quintic)."""
    a, b, c = QUINTIC
    x = matrix.to(fast_dtype(torch.bfloat16, matrix.device))
    wide = x if x.shape[0] <= x.shape[1] else x.T
    wide = wide / wide.norm().clamp_min(1e-7)
    for _ in range(ROUNDS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if x.shape[0] <= x.shape[1] else wide.T


def optimizers_of(parameters: dict[str, nn.Parameter], training: Training) -> list[torch.optim.Optimizer]:
    """What trains the named parameters; each group's `peak_lr` is what the schedule scales.

    muon: the matrices but lm_head by Muon; the rest, and all with adamw, by AdamW.
    """
    matrices = {n: p for n, p in parameters.items() if training.optimizer == "muon" and p.dim() == 2 and n != LM_HEAD}
    head = {n: p for n, p in parameters.items() if n == LM_HEAD}
    rest = {n: p for n, p in parameters.items() if n not in matrices and n not in head}
    groups = [
        {"params": list(group.values()), "lr": lr, "peak_lr": lr}
        for group, lr in ((rest, training.lr), (head, training.lm_head_lr or training.lr))
        if group
    ]
    shared = {"betas": training.betas, "weight_decay": training.weight_decay}
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, **shared)]
    if matrices:
        group = {"params": list(matrices.values()), "lr": training.muon_lr, "peak_lr": training.muon_lr}
        found.append(Muon([group], weight_decay=training.weight_decay))
    return found


def schedule(progress: float, training: Training) -> float:
    """The share of the peak rate at `progress` (0 to 1): a straight warm-up, then half a cosine down to min_lr."""
    if progress < training.warmup:
        return max(progress / training.warmup, 1e-3)
    left = (progress - training.warmup) / max(1 - training.warmup, 1e-9)
    return training.min_lr + (1 - training.min_lr) * 0.5 * (1 + math.cos(math.pi * min(left, 1.0)))


def set_rates(optimizers: Iterable[torch.optim.Optimizer], share: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * share
