"""The two forms of attention have one meaning."""

import pytest
import torch

from eyas.eagle3 import attention
from eyas.eagle3.attention import BlockAttention, MergeOwn, Reach, flex_attend


def inputs(kv, group, spans, active, d=8, device="cpu", dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    rows = spans[-1][1]
    q, k, v = (
        torch.randn(shape, generator=g).to(device, dtype).requires_grad_(True)
        for shape in ((kv, len(active), group, d), (kv, rows, d), (kv, rows, d))
    )
    first = torch.tensor([max(a for a, _ in spans if a <= t) for t in active], device=device)
    return q, k, v, Reach(first, torch.tensor(active, device=device), spans)


def dense(q, k, v, reach):
    """(out, lse) with every score at once."""
    scores = torch.einsum("hngd,hkd->hngk", q, k)
    at = torch.arange(k.shape[1], device=k.device)
    seen = (at >= reach.first[:, None]) & (at <= reach.last[:, None])  # [n, keys]
    scores = scores.masked_fill(~seen[None, :, None], -torch.inf)
    return torch.einsum("hngk,hkd->hngd", scores.softmax(-1), v), scores.logsumexp(-1)


SHAPES = [
    (2, 2, [(0, 7)], [0, 1, 2, 3, 4, 5, 6]),
    (3, 1, [(0, 4), (4, 13), (13, 14)], [1, 3, 4, 9, 12, 13]),
    (1, 3, [(0, 90), (90, 260)], [*range(5, 88), *range(100, 260, 3)]),
]


def gradients(out, lse, *inputs):
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=g).to(x) for x in (out, lse)]
    return torch.autograd.grad((out * weights[0]).sum() + (lse * weights[1]).sum(), inputs)


@pytest.mark.parametrize("form", ["blocks", "flex"])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_forms_equal_dense_attention(shape, form):
    q, k, v, reach = inputs(*shape)
    expected = dense(q, k, v, reach)
    if form == "blocks":
        found = BlockAttention.apply(q, k, v, reach.blocks())
        for ours, theirs in zip(gradients(*found, q, k, v), gradients(*expected, q, k, v), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)
    else:
        q, k, v = (x.detach() for x in (q, k, v))  # on a CPU it has no backward
        found = flex_attend(q, k, v, reach, compiled=False)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_compiled_form_equals_the_blocks_on_a_gpu(shape):
    q, k, v, reach = inputs(*shape, d=64, device="cuda")
    found, expected = flex_attend(q, k, v, reach), BlockAttention.apply(q, k, v, reach.blocks())
    pairs = zip([*found, *gradients(*found, q, k, v)], [*expected, *gradients(*expected, q, k, v)], strict=True)
    for ours, theirs in pairs:
        assert torch.allclose(ours, theirs, atol=2e-2, rtol=2e-2)  # tf32


def test_the_own_position_s_keys_join_the_same_softmax():
    """Merged by log-sum-exp, values and gradients are those of one softmax; keys are taken where queries stand."""
    q, k, v, reach = inputs(2, 2, [(0, 5), (5, 9)], [0, 2, 3, 5, 8])
    g = torch.Generator().manual_seed(2)
    wide = torch.tensor([1, 2, 4, 5, 6])  # where the queries stand among the first later step's keys
    rows = [wide, None]
    own = [torch.randn(2, n, 8, generator=g).requires_grad_(True) for n in (7, 5, 7, 5)]
    merged = MergeOwn.apply(q, *BlockAttention.apply(q, k, v, reach.blocks()), rows, *own)
    k1, k2, v1, v2 = own[0][:, wide], own[1], own[2][:, wide], own[3]
    at = torch.arange(9)
    seen = (at >= reach.first[:, None]) & (at <= reach.last[:, None])
    scores = torch.einsum("hngd,hkd->hngk", q, k).masked_fill(~seen[None, :, None], -torch.inf)
    later = torch.stack([torch.einsum("hngd,hnd->hng", q, x) for x in (k1, k2)], -1)
    share = torch.cat([scores, later], -1).softmax(-1)
    expected = torch.einsum("hngk,hkd->hngd", share[..., :9], v)
    expected = expected + share[..., 9, None] * v1[:, :, None] + share[..., 10, None] * v2[:, :, None]
    assert torch.allclose(merged, expected, atol=1e-5)
    weights = torch.randn(merged.shape, generator=g)
    pairs = zip(*(torch.autograd.grad((x * weights).sum(), [q, k, v, *own]) for x in (merged, expected)), strict=True)
    for ours, theirs in pairs:
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_blocks_skip_what_no_query_of_theirs_sees(monkeypatch):
    """Scores are made for a block's own document up to its last query: about half of a long document."""
    monkeypatch.setattr(attention, "QUERIES", 8)
    spans = [(0, 64), (64, 128)]
    reach = Reach(torch.tensor([0] * 64 + [64] * 64), torch.arange(128), spans)
    made = sum((q.stop - q.start) * (k.stop - k.start) for q, k, _ in reach.blocks())
    assert made <= 2 * 64 * 64 * 0.57


def test_without_a_gpu_the_blocks_are_used():
    assert not attention.use_flex(torch.zeros(1))
