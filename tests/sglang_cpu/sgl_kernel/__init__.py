"""SGLang's CPU kernels in plain PyTorch: what SGLang 0.5.23 needs to serve a Llama-family model without a GPU.

SGLang's wheel on PyPI is for CUDA; with `--device cpu` it asks the package `sgl_kernel` for a handful of kernels that
are published nowhere for a CPU. This package stands in their place, in front on PYTHONPATH. It is written to be read
and to be right, not to be fast.

    attention.py   torch.ops.sgl_kernel.{decode,extend}_attention_cpu: the attention backend `intel_amx`
    slots.py       which KV slot holds which token: assign_*, build_draft_decode_metadata_cpu, fill_*, copy_*
    tree.py        speculative decoding: build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

Plain generation on the backend `torch_native` calls assign_req_to_token_pool_cpu alone; the rest serves EAGLE drafts.
`torch.ops.sgl_kernel.convert_weight_packed` is left undefined on purpose: its absence tells SGLang that the CPU has no
AMX kernels, so linear layers, norms, activations and rotary embeddings run in SGLang's own PyTorch code.
"""

import torch

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.4.10"  # of sglang-kernel, as SGLang 0.5.23 pins it

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]

torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu


def __getattr__(name: str):
    """Any other kernel can be imported (SGLang does so for models that are not used here), and refuses to be called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        text = f"sgl_kernel.{name} has no CPU stand-in: see tests/sglang_cpu/README.md"
        raise NotImplementedError(text)  # on purpose: a kernel that SGLang imports, and that no model here needs

    return missing
