"""Bookkeeping of KV slots: which slot of the cache holds which token of which request.

`table` is SGLang's req_to_token: table[row, position] is the slot of that token of the request in that row. Arguments
named `_width` and the like repeat what a tensor's shape says; compiled kernels need them.

Called by sglang/srt/mem_cache/allocation.py and sglang/kernels/ops/{speculative,kvcache}/*.py.
"""

import ctypes

import torch


def assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, _width) -> None:
    """Enter `slots` (all requests' in a row) into the table, request i at positions starts[i] to ends[i]."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[at : at + end - start].to(table.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(rows, table, starts, ends, out, _width) -> None:
    """The inverse: read the slots at positions starts[i] to ends[i] of each request into `out`, in a row."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        out[at : at + end - start] = table[row, start:end].to(out.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(rows, table, lengths, out, _width, topk, steps) -> None:
    """Read the topk * steps slots that a draft may use, from each request's length on, into `out`."""
    assign_extend_cache_locs_cpu(rows, table, lengths, lengths + topk * steps, out, _width)


def build_draft_decode_metadata_cpu(table, rows, lengths, topk, steps, _width):
    """A table with one row for each of a request's `topk` branches: the prefix, then the branch's own slots.

    Branch k has the slots at positions length + k * steps and on; they move to position length and on.
    """
    branches = table[rows].repeat_interleave(topk, dim=0)  # [requests * topk, width], a copy
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for k in range(1, topk):
            own = length + k * steps
            branches[i * topk + k, length : length + steps] = table[row, own : own + steps]
    return branches


def fill_bonus_tokens_cpu(tokens, accepted, out, stride) -> None:
    """The last accepted token of each request; tokens: flat [requests * stride], accepted: how many are."""
    last = torch.arange(len(accepted)) * stride + accepted.long() - 1
    out.copy_(tokens.flatten()[last])


def fill_accept_out_cache_loc_cpu(accept_index, slots, out) -> None:
    """Pack the slots of the accepted tokens at the front of `out`; accept_index is -1 where none was."""
    accepted = accept_index.flatten()
    accepted = accepted[accepted >= 0].long()
    out[: len(accepted)] = slots[accepted].to(out.dtype)


def copy_all_layer_kv_cache_cpu(addresses, slot_bytes, targets, sources) -> None:
    """Copy slots to slots in each layer's k and v buffer, given by address and bytes per slot."""
    moves = [(s, t) for s, t in zip(sources.tolist(), targets.tolist(), strict=True) if s != t]
    for address, size in zip(addresses.tolist(), slot_bytes.tolist(), strict=True):
        # All are read before one is written: a slot can be source and target.
        held = [ctypes.string_at(address + source * size, size) for source, _ in moves]
        for (_, target), content in zip(moves, held, strict=True):
            ctypes.memmove(address + target * size, content, size)
