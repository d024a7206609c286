"""What a device computes fast: the dtype of products, memory, and the first choice out of a vocabulary."""

import ctypes
import math

import torch
from torch import Tensor
from torch.nn import functional as F

# Logits held at once: rows that fill the products, and no more than some MB.
BLOCK = {"cpu": (2048, 4096), "cuda": (8192, 16384)}  # rows, tokens


def bf16_is_fast(device: torch.device) -> bool:
    """On a GPU, and on a CPU with instructions for it; on others oneDNN takes ten times as long as in fp32."""
    return device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fast_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """`dtype`, or fp32 where bf16 is asked for and slow."""
    return torch.float32 if dtype == torch.bfloat16 and not bf16_is_fast(device) else dtype


def keep_freed_memory() -> None:
    """Let this process reuse what it freed, where glibc would give large blocks back and take new ones, page by page.

    The same tensors come and go at every step of a training on a CPU: 3 to 10 % of its time. Elsewhere: nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_max = -1, -4
        mallopt(m_trim_threshold, -1)
        mallopt(m_mmap_max, 0)


def block_of(device: torch.device) -> tuple[int, int]:
    """(rows, tokens) of logits that are held at once."""
    return BLOCK.get(device.type) or BLOCK["cuda"]


def top_tokens(lm_head: Tensor, states: Tensor, with_total: bool = False) -> tuple[Tensor, Tensor | None]:
    """(argmax [n], log Σ exp [n] fp32 or None) over the vocabulary of states [n, H], lm_head [vocabulary, H].

    No more than a block of the logits is held. Equals go to the lower id.
    """
    rows, tokens = block_of(states.device)
    parts = [_stream(lm_head, block, tokens, with_total) for block in states.split(rows)]
    choices, totals = zip(*parts, strict=True)
    return torch.cat(choices), torch.cat(totals) if with_total else None


def _stream(lm_head: Tensor, states: Tensor, step: int, with_total: bool) -> tuple[Tensor, Tensor | None]:
    dtype = fast_dtype(lm_head.dtype, states.device)
    states = states.to(dtype)
    best = choice = total = None
    for start in range(0, len(lm_head), step):
        logits = F.linear(states, lm_head[start : start + step].to(dtype))  # [n, step]
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


def row_max(x: Tensor) -> tuple[Tensor, Tensor]:
    """(max, argmax) over the last dimension, equals to the lower index; on a CPU three times as fast as Tensor.max.

    First the maximum of each block, which needs no index, then the index within the best block.
    """
    size = math.gcd(x.shape[-1], 128)
    if size < 64 or not x.is_contiguous():
        return x.max(-1)
    blocks = x.view(-1, x.shape[-1] // size, size)  # [rows, blocks, size]
    rows, count, _ = blocks.shape
    top, block = blocks.amax(-1).max(-1)
    best = block + torch.arange(0, rows * count, count, device=x.device)
    inside = blocks.view(-1, size).index_select(0, best).argmax(-1)
    return top.view(x.shape[:-1]), (block * size + inside).view(x.shape[:-1])
