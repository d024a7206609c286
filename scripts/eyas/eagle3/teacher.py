"""The target as a teacher, without ever holding its logits: top-1 over its whole vocabulary, streamed."""

import torch
from torch import Tensor

from eyas.compute import top_tokens
from eyas.eagle3.supervision import Batch, Objective, Targets, allowed_rows, hard_targets
from eyas.errors import EyasError


class Teacher:
    """lm_head [vocab, size] of the target; t2d [vocab] bool of the draft; products in `dtype` (default: the head's)."""

    def __init__(self, lm_head: Tensor, t2d: Tensor, dtype: torch.dtype | None = None):
        if len(t2d) != len(lm_head):
            raise EyasError(
                f"t2d: expected {len(lm_head):,} tokens, the rows of the target's lm_head, found {len(t2d):,}: take "
                "the map of this target"
            )
        self.lm_head = lm_head.detach().to(dtype or lm_head.dtype)
        self.kept = self.lm_head[t2d.to(lm_head.device)]  # [draft vocabulary, size]

    @torch.no_grad()
    def targets(self, batch: Batch, objective: Objective) -> Targets:
        """The target's choices at the rows that the mask trains on."""
        if objective.loss == "hard":
            return hard_targets(batch, objective)
        if batch.last is None:
            raise EyasError(
                f"last: loss {objective.loss} needs the target's last hidden states: capture them, or use hard"
            )
        allowed = allowed_rows(batch, objective)
        rows = allowed.nonzero().flatten()
        top1 = torch.full_like(batch.input_ids, -1)
        log_total = None if objective.loss != "lk" else torch.zeros(len(top1), device=top1.device)
        top1[rows], total = top_tokens(self.lm_head, batch.last[rows], log_total is not None)
        if log_total is not None:
            log_total[rows] = total
        return Targets(allowed, top1, log_total, self.kept)
