"""Attention over the paged KV cache, one request at a time, by PyTorch's scaled_dot_product_attention.

Called by SGLang's sglang/srt/layers/attention/intel_amx_backend.py, with positional arguments. Shapes:

    q, out            [tokens, heads, head_dim]
    k_cache, v_cache  [slots, kv_heads, head_dim]
    slot_table        [requests that fit, longest context]: the KV slot of each token of each running request
    rows, lengths     [requests of the batch]: row in slot_table; tokens so far, the new ones included
"""

import torch
from torch.nn.functional import scaled_dot_product_attention


def decode_attention_cpu(
    q, k_cache, v_cache, k_scale, v_scale, out, k, v, new_slots, workspace, slot_table, rows, lengths, scaling,
    logit_cap, is_cross_attention, sliding_window, encoder_lengths, sinks,
):  # fmt: skip
    """One new token for each request: store its k and v at `new_slots`, attend to all of the request's tokens."""
    _refuse_what_llama_has_not(k_scale, v_scale, logit_cap, is_cross_attention, sliding_window, sinks)
    if k is not None:
        k_cache[new_slots] = k.view(-1, *k_cache.shape[1:]).to(k_cache.dtype)
        v_cache[new_slots] = v.view(-1, *v_cache.shape[1:]).to(v_cache.dtype)
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        slots = slot_table[row, :length].long()
        out[i : i + 1] = _attend(q[i : i + 1], k_cache[slots], v_cache[slots], scaling, None)


def extend_attention_cpu(
    q, k, v, out, k_cache, v_cache, k_scale, v_scale, slot_table, rows, lengths, new_lengths, starts, longest_new,
    scaling, logit_cap, is_cross_attention, sliding_window, encoder_lengths, sinks, tree_mask, is_causal,
):  # fmt: skip
    """Several new tokens for each request (prefill, or a tree to verify); their k and v are in the cache already.

    new_lengths, starts: [requests]: how many of q's tokens are the request's, and where they start.
    tree_mask: flat [requests * new * new] of bool, which new tokens each new token sees; None: those before it.
    """
    _refuse_what_llama_has_not(k_scale, v_scale, logit_cap, is_cross_attention, sliding_window, sinks)
    batch = zip(rows.tolist(), lengths.tolist(), new_lengths.tolist(), starts.tolist(), strict=True)
    for i, (row, length, new, start) in enumerate(batch):
        if new == 0:
            continue
        slots = slot_table[row, :length].long()
        visible = None
        if is_causal:
            before = length - new
            visible = torch.ones(new, length, dtype=torch.bool).tril(before)  # [new, length]
            if tree_mask is not None:
                visible[:, before:] = tree_mask.view(-1, new, new)[i]
        tokens = slice(start, start + new)
        out[tokens] = _attend(q[tokens], k_cache[slots], v_cache[slots], scaling, visible)


def _attend(q, k, v, scaling, visible):
    """softmax(scaling · q kᵀ) v; q [new, heads, dim], k and v [length, kv_heads, dim] → [new, heads, dim]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # [1, heads, tokens, dim]
    out = scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)


def _refuse_what_llama_has_not(k_scale, v_scale, logit_cap, is_cross_attention, sliding_window, sinks):
    if (k_scale, v_scale) != (1, 1) or logit_cap or is_cross_attention or sliding_window > 0 or sinks is not None:
        raise NotImplementedError(  # on purpose: ignoring one of these would give wrong numbers in silence
            "the CPU stand-in for attention has no KV scales, logit cap, cross attention, sliding window or sinks: "
            "serve a Llama-family model"
        )
