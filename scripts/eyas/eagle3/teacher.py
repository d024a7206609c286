"""The target as a teacher, without ever holding its logits: top-1 over its whole vocabulary, streamed."""

import torch
from torch import Tensor
from torch.nn import functional as F

from eyas.eagle3.products import row_max
from eyas.eagle3.supervision import Batch, Objective, Targets, allowed_rows, hard_targets
from eyas.errors import EyasError

# Logits held at once, in numbers: small enough for a CPU's cache, large enough to fill a GPU.
BLOCK = {"cpu": (512, 8192), "cuda": (8192, 16384)}  # rows, tokens


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
        size, _ = _block(rows.device)
        for block in rows.split(size):
            choice, total = self._stream(batch.last[block], log_total is not None)
            top1[block] = choice
            if log_total is not None:
                log_total[block] = total
        return Targets(allowed, top1, log_total, self.kept)

    def _stream(self, states: Tensor, with_total: bool) -> tuple[Tensor, Tensor | None]:
        """(argmax [n], log Σ exp [n] or None) over the vocabulary of states [n, size]; equals go to the lower id."""
        states, (_, step) = states.to(self.lm_head.dtype), _block(states.device)
        best = choice = total = None
        for start in range(0, len(self.lm_head), step):
            logits = F.linear(states, self.lm_head[start : start + step])  # [n, step]
            value, at = row_max(logits)
            if with_total:
                part = torch.logsumexp(logits.float(), -1)
                total = part if total is None else torch.logaddexp(total, part)
            if best is None:
                best, choice = value, at
            else:
                choice = torch.where(value > best, at + start, choice)
                best = torch.maximum(best, value)
        return choice, total


def _block(device: torch.device) -> tuple[int, int]:
    return BLOCK.get(device.type) or BLOCK["cuda"]
