"""The training-time test: the draft predicts several tokens ahead from its own states, as it will when it serves.

Only K₀, V₀ and fc are needed at all rows of the plan; everything else is computed where a step that is still to come
counts (Plan.steps), and the head where a step counts itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from eyas.eagle3.attention import Reach, attend, use_flex
from eyas.eagle3.loss import LossInputs, StepLosses
from eyas.eagle3.model import Draft, rope_frequencies
from eyas.eagle3.products import GatedProduct, NormProducts, Product, rms_norm
from eyas.eagle3.supervision import Batch, Objective, Plan


@dataclass(frozen=True)
class Result:
    """Of one batch. loss []: Σ_i weight_i · sums_i / counts_i, to call backward on. The rest is detached.

    sums [steps]: of the losses of supervised positions. hits [steps]: positions where the draft's choice is the
    target's top-1; accuracy_i = hits_i / Plan.masked_i. joint [steps]: positions whose choices are right at all steps
    up to this one; the simulated acceptance length is 1 + Σ_k joint_k / Plan.chains_k. overlaps [steps]: Σ of the
    acceptance rates Σ min(p, q) (loss lk; else 0).
    """

    loss: Tensor
    sums: Tensor
    hits: Tensor
    joint: Tensor
    overlaps: Tensor


def training_time_test(
    draft: Draft, batch: Batch, plan: Plan, objective: Objective, counts: Tensor | None = None
) -> Result:
    """All steps on one batch; products in autocast's dtype where it is on, else in fp32.

    counts [steps]: supervised positions by which each step's sum is divided (default: this batch's; across ranks and
    accumulated batches, the global ones). Without a supervised position the loss is 0 and still touches every trainable
    parameter.
    """
    device = batch.input_ids.device
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
    counts = plan.counts if counts is None else counts.to(device)
    weights = torch.tensor(objective.weights, device=device)
    coefficients = torch.where(counts > 0, weights / counts.clamp_min(1), 0)
    with torch.autocast(device.type, enabled=False):
        if not len(plan.rows):
            nothing = torch.zeros(objective.steps, device=device)
            touched = sum(p.flatten()[:0].sum() for p in draft.parameters() if p.requires_grad)
            return Result(nothing.sum() + touched, nothing, nothing.long(), nothing.long(), nothing)
        hidden = list(hidden_states(draft, batch, plan, dtype))
        head = draft.lm_head.weight
        inputs = LossInputs(
            plan=plan,
            objective=objective,
            coefficients=coefficients,
            last=batch.last,
            d2t=draft.d2t,
            t2d=draft.t2d,
            eps=draft.config.rms_norm_eps,
            gradient=torch.is_grad_enabled(),
        )
        loss, sums, hits, overlaps = StepLosses.apply(inputs, draft.norm.weight, head.detach().to(dtype), head, *hidden)
    joint = (hits.cummin(0).values & plan.chain).sum(1)
    return Result(loss, sums, hits.sum(1), joint, overlaps)


def hidden_states(draft: Draft, batch: Batch, plan: Plan, dtype: torch.dtype) -> Iterator[Tensor]:
    """Step by step, hⁱ⁺¹ before the final norm at the step's positions, [n_i, H] fp32, as long as there are any.

    u = [input_layernorm(embedding), hidden_norm(hⁱ)]; the projections of u are the sum of those of its halves, and
    those of the embeddings are the same at every step but for their place: made once.
    """
    c, layer, eps = draft.config, draft.midlayer, draft.config.rms_norm_eps
    attention, mlp = layer.self_attn, layer.mlp
    heads, kv, d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    projections = [p.weight.split(c.hidden_size, dim=1) for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
    (q_e, q_h), (k_e, k_h), (v_e, v_h) = ([Weight.of(w, dtype) for w in halves] for halves in projections)
    o_w, gate_w, up_w, down_w = (
        Weight.of(m.weight, dtype) for m in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    )

    # The embeddings' part of q, k, v, for every row r: token rows[r] + 1.
    tokens = batch.input_ids[plan.rows + 1]
    norm_e = layer.input_layernorm.weight
    embedded = draft.embed_tokens(tokens).float()  # [n, H]
    k_of, v_of = norm_products(embedded, norm_e, eps, k_e, v_e)  # [n, kv · d] each
    (q_of,) = norm_products(embedded.index_select(0, plan.queries), norm_e, eps, q_e)  # [m, heads · d]
    query_at = torch.empty_like(plan.rows)  # row of the plan → row of q_of
    query_at[plan.queries] = torch.arange(len(plan.queries), device=plan.rows.device)

    cos, sin = rope_tables(draft, int(plan.place.max()) + len(plan.steps) + 1)
    scale, score_dtype = d**-0.5, dtype if use_flex(q_of) else torch.float32
    starts = torch.zeros_like(plan.rows)
    for a, b in plan.spans:
        starts[a:b] = a

    def turned(x: Tensor, count: int, at: Tensor, factor: float = 1.0) -> Tensor:
        """RoPE at positions `at`: [n, count · d] → [count, n, d]."""
        return Rotate.apply(x.unflatten(1, (count, d)).transpose(0, 1), cos[at], sin[at], factor, score_dtype)

    h = fuse(draft, batch.aux[plan.rows], dtype)  # [n, H] fp32
    (k0_h, v0_h) = norm_products(h, layer.hidden_norm.weight, eps, k_h, v_h)
    k0 = turned(k0_h + k_of, kv, plan.place)  # [kv, n, d]
    v0 = (v0_h + v_of).unflatten(1, (kv, d)).transpose(0, 1).to(score_dtype)
    h = h.index_select(0, plan.steps[0].active)
    keys, values, rows = [], [], []
    for i, step in enumerate(plan.steps):
        at, n = step.active, len(step.active)
        if not n:
            return
        if i == 0:
            (q_part,) = norm_products(h, layer.hidden_norm.weight, eps, q_h)
        else:
            if step.kept is not None:
                h = h.index_select(0, step.kept)
                rows = [step.kept if r is None else r[step.kept] for r in rows]
            q_part, k_part, v_part = norm_products(h, layer.hidden_norm.weight, eps, q_h, k_h, v_h)
            keys.append(turned(k_part + k_of.index_select(0, at + i), kv, plan.place[at] + i))  # [kv, n_i, d]
            v = v_part + v_of.index_select(0, at + i)
            values.append(v.unflatten(1, (kv, d)).transpose(0, 1).to(score_dtype))
            rows.append(None)
        q = turned(q_part + q_of.index_select(0, query_at[at + i]), heads, plan.place[at] + i, scale)
        q = q.unflatten(0, (kv, heads // kv)).transpose(1, 2)  # [kv, n_i, group, d]
        out = attend(q, k0, v0, Reach(starts[at], at, plan.spans), rows, keys, values)  # [kv, n_i, group, d]
        out = out.transpose(0, 1).reshape(n, heads * d).to(dtype)
        h = Product.apply(h, out, *o_w)
        gate, up = norm_products(h, layer.post_attention_layernorm.weight, eps, gate_w, up_w)  # [n_i, inner] each
        h = GatedProduct.apply(h, gate, up, *down_w)
        yield h


class Weight(tuple):
    """(its cast to the compute dtype, the parameter itself): what the products take."""

    @classmethod
    def of(cls, weight: Tensor, dtype: torch.dtype) -> "Weight":
        return cls((weight.detach().to(dtype), weight))


def norm_products(x: Tensor, scale: Tensor, eps: float, *weights: Weight) -> tuple[Tensor, ...]:
    casts, masters = zip(*weights, strict=True)
    return NormProducts.apply(x, scale, eps, casts, *masters)


def fuse(draft: Draft, aux: Tensor, dtype: torch.dtype) -> Tensor:
    """fc of the aux states [n, layers · size] → [n, H] fp32."""
    c = draft.config
    states = aux.float().unflatten(1, (len(c.aux_layers), c.aux_size))  # [n, layers, size]
    if c.fc_norm:
        norms = torch.stack([norm.weight for norm in draft.fc_norm])  # [layers, size]
        states = rms_norm(states, c.rms_norm_eps)[0] * norms
    else:
        states = states / draft.aux_scale[:, None]
    return F.linear(states.flatten(1).to(dtype), draft.fc.weight.to(dtype)).float()


def rope_tables(draft: Draft, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin of positions 0..length−1, [length, d / 2] fp32."""
    frequencies, factor = rope_frequencies(draft.config)
    device = draft.fc.weight.device
    angle = torch.arange(length, device=device)[:, None] * frequencies.to(device)
    return angle.cos() * factor, angle.sin() * factor


class Rotate(Function):
    """RoPE on halves (a, b) of x [heads, n, d]: (a·cos − b·sin, b·cos + a·sin) · factor, in `dtype`.

    The gradient turns back: sin changes its sign.
    """

    @staticmethod
    def forward(ctx, x, cos, sin, factor, dtype):
        ctx.save_for_backward(cos, sin)
        ctx.factor, ctx.dtype = factor, x.dtype
        return rotate(x, cos * factor, sin * factor, dtype)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos * ctx.factor, sin * -ctx.factor, ctx.dtype), None, None, None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half].float(), x[..., half:].float()
    out = torch.empty(x.shape, device=x.device)
    torch.mul(a, cos, out=out[..., :half]).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=out[..., half:]).addcmul_(a, sin)
    return out.to(dtype)
