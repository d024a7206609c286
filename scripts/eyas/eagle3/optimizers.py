"""AdamW and Muon over the draft's parameters, and one schedule for both."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from eyas.config import Training

LM_HEAD = "lm_head.weight"


def optimizers_of(parameters: dict[str, nn.Parameter], training: Training) -> list[torch.optim.Optimizer]:
    """What trains the named parameters; each group's `peak_lr` is what the schedule scales.

    muon: the matrices but lm_head by Muon (Keller Jordan, 2024; torch.optim.Muon), whose step is a matrix with all
    singular values alike; the rest, and all with adamw, by AdamW.
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
        found.append(torch.optim.Muon([group], momentum=0.95, weight_decay=training.weight_decay))
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
