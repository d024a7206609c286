"""Attention over the steps of the training-time test: two forms with one meaning.

At step i a query at t attends K₀[≤ t] of its own document and exactly the keys K_j[t], j = 1..i, of its own position,
in one softmax (the scale is in the query). The first part is dense: in blocks of queries (any device, fp32 scores), or
by flex_attention (CUDA). It gives its output and its log Σ exp; `MergeOwn` adds the later steps' keys:

    total = log(exp lse + Σ_j exp s_j),  s_j = q·K_j[t],  out = exp(lse − total)·dense + Σ_j exp(s_j − total)·V_j[t]

Shapes: queries [kv, n, group, d], keys and values [kv, n, d]; query head h reads key head h // group.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.autograd import Function

QUERIES = 128  # a block's; with a group of 3 that is 384 rows of scores


@dataclass(frozen=True)
class Reach:
    """Which of K₀'s rows the queries of one step see: rows first[q] ≤ k ≤ last[q], all int64 [n]; spans as in Plan."""

    first: Tensor
    last: Tensor
    spans: list[tuple[int, int]]

    def blocks(self) -> list[tuple[slice, slice, Tensor]]:
        """(queries, keys, mask [queries, tail] fp32 added to the scores of the last keys) of each block."""
        out, ends = [], torch.searchsorted(self.last, torch.tensor([b for _, b in self.spans], device=self.last.device))
        start = 0
        for (first, _), end in zip(self.spans, ends.tolist(), strict=True):
            for a in range(start, end, QUERIES):
                last = self.last[a : min(a + QUERIES, end)]
                low, high = int(last[0]), int(last[-1])
                later = torch.arange(low, high + 1, device=last.device) > last[:, None]  # [queries, tail]
                mask = torch.zeros(later.shape, device=last.device).masked_fill_(later, -torch.inf)
                out.append((slice(a, a + len(last)), slice(first, high + 1), mask))
            start = end
        return out


class BlockAttention(Function):
    """apply(q [kv, n, group, d], k, v [kv, rows, d], blocks) → (out as q, lse [kv, n, group]); fp32.

    Scores of a block are made, used and dropped; the backward makes them again (arXiv 2205.14135).
    """

    @staticmethod
    def forward(ctx, q, k, v, blocks):
        kv, _, group, d = q.shape
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3])
        for queries, keys, mask in blocks:
            scores = _scores(q[:, queries], k[:, keys], mask)  # [kv, queries · group, keys]
            top = scores.amax(-1, keepdim=True)
            p = scores.sub_(top).exp_()
            total = p.sum(-1, keepdim=True)
            out[:, queries] = torch.bmm(p, v[:, keys]).div_(total).view(kv, -1, group, d)
            lse[:, queries] = total.log_().add_(top).view(kv, -1, group)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.blocks = blocks
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        # p = exp(s − lse); ds = p · (dP − Σ dO·O + dlse), dP = dO Vᵀ; dq = ds K, dk = dsᵀ q, dv = pᵀ dO
        q, k, v, out, lse = ctx.saved_tensors
        kv, _, group, d = q.shape
        shift = (d_out * out).sum(-1).sub_(d_lse)  # [kv, n, group]
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for queries, keys, mask in ctx.blocks:
            rows_q, rows_o = (x[:, queries].reshape(kv, -1, d) for x in (q, d_out))  # [kv, queries · group, d]
            p = _scores(q[:, queries], k[:, keys], mask, lse[:, queries]).exp_()
            ds = torch.baddbmm(shift[:, queries].reshape(kv, -1, 1), rows_o, v[:, keys].mT, beta=-1).mul_(p)
            d_v[:, keys].baddbmm_(p.mT, rows_o)
            d_k[:, keys].baddbmm_(ds.mT, rows_q)
            d_q[:, queries] = torch.bmm(ds, k[:, keys]).view(kv, -1, group, d)
        return d_q, d_k, d_v, None


def _scores(q: Tensor, k: Tensor, mask: Tensor, minus: Tensor | None = None) -> Tensor:
    """q·k − minus, masked: [kv, queries · group, keys]."""
    (kv, n, group, d), keys = q.shape, k.shape[1]
    rows = q.reshape(kv, n * group, d)
    if minus is None:
        scores = torch.bmm(rows, k.mT)
    else:
        scores = torch.baddbmm(minus.reshape(kv, n * group, 1), rows, k.mT, beta=-1)
    scores.view(kv, n, group, keys)[..., keys - mask.shape[1] :].add_(mask[:, None])
    return scores


class MergeOwn(Function):
    """Add the keys of the own position: apply(q, out, lse, rows, *keys, *values) → out [kv, n, group, d].

    rows: for each later step, where the queries stand among its keys (None: all, in place). Keys and values come as
    they are, and are gathered again in the backward.
    """

    @staticmethod
    def forward(ctx, q, dense, lse, rows, *keys_values):
        keys, values = _gathered(keys_values, rows)
        scores = torch.stack([lse, *((q * k).sum(-1) for k in keys)], -1)  # [kv, n, group, 1 + i]
        share = torch.softmax(scores, -1)
        out = dense * share[..., :1]
        for j, v in enumerate(values):
            out.addcmul_(v, share[..., j + 1, None])
        ctx.save_for_backward(q, dense, out, share, *keys_values)
        ctx.rows = rows
        return out

    @staticmethod
    def backward(ctx, grad):
        # With share = softmax(lse, s_1, …): d_score_j = share_j · (grad·value_j − grad·out)
        q, dense, out, share, *keys_values = ctx.saved_tensors
        keys, values = _gathered(keys_values, ctx.rows)
        dot = (grad * out).sum(-1)  # [kv, n, group]
        d_lse = (grad * dense).sum(-1).sub_(dot).mul_(share[..., 0])
        d_q, d_keys, d_values = torch.zeros_like(q), [], []
        for j, (k, v) in enumerate(zip(keys, values, strict=True)):
            part = share[..., j + 1, None]  # [kv, n, group, 1]
            d_score = (grad * v).sum(-1).sub_(dot).unsqueeze(-1).mul_(part)
            d_q.addcmul_(d_score, k)
            d_keys.append((q * d_score).sum(2))  # the group's heads share a key  [kv, n, d]
            d_values.append((grad * part).sum(2))
        d_keys, d_values = (_scattered(d, k, ctx.rows) for d, k in ((d_keys, keys_values), (d_values, keys_values)))
        return d_q, grad * share[..., :1], d_lse, None, *d_keys, *d_values


def _gathered(keys_values: tuple[Tensor, ...], rows: list[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """(keys, values) at the queries' positions, each [kv, n, 1, d]."""
    here = [
        (x if at is None else x.index_select(1, at)).unsqueeze(2)
        for x, at in zip(keys_values, [*rows, *rows], strict=True)
    ]
    return here[: len(rows)], here[len(rows) :]


def _scattered(grads: list[Tensor], like: tuple[Tensor, ...], rows: list[Tensor | None]) -> list[Tensor]:
    """Gradients [kv, n, d] brought back to where the keys came from."""
    return [
        g if at is None else torch.zeros_like(x).index_copy_(1, at, g)
        for g, x, at in zip(grads, like[: len(rows)], rows, strict=True)
    ]


def attend(
    q: Tensor, k: Tensor, v: Tensor, reach: Reach, rows: list[Tensor | None], keys: list[Tensor], values: list[Tensor]
) -> Tensor:
    """All keys in one softmax: k, v [kv, rows, d] of step 0, and the own position's of the steps since.

    Out: as q [kv, n, group, d]. Queries are scaled already.
    """
    dense, lse = flex_attend(q, k, v, reach) if use_flex(q) else BlockAttention.apply(q, k, v, reach.blocks())
    return MergeOwn.apply(q, dense, lse, rows, *keys, *values) if keys else dense


# CUDA


def use_flex(q: Tensor) -> bool:
    """Whether flex_attention can be compiled for these queries."""
    return q.is_cuda and _flex() is not None


def flex_attend(q: Tensor, k: Tensor, v: Tensor, reach: Reach, compiled: bool = True) -> tuple[Tensor, Tensor]:
    """The dense part by flex_attention: (out as q, lse [kv, n, group] fp32); gradients flow through both.

    compiled=False runs PyTorch's own eager form of it (any device, for tests).
    """
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    (kv, n, group, d), first, last = q.shape, reach.first, reach.last

    def seen(batch, head, query, key):
        return (key >= first[query]) & (key <= last[query])

    attention = _flex() if compiled else flex_attention
    mask = create_block_mask(seen, None, None, n, k.shape[1], device=q.device, _compile=compiled)
    heads = q.transpose(1, 2).reshape(1, kv * group, n, d)
    shared = {"scale": 1.0, "enable_gqa": group > 1, "return_aux": AuxRequest(lse=True)}
    out, aux = attention(heads, k[None], v[None], block_mask=mask, **shared)
    out, lse = (x[0].unflatten(0, (kv, group)).transpose(1, 2) for x in (out, aux.lse))
    return out, lse


@cache
def _flex():
    """flex_attention, compiled; None where it cannot be (no Triton)."""
    try:
        import triton  # noqa: F401
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError:
        return None
    return torch.compile(flex_attention, dynamic=True)
