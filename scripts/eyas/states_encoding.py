"""How states stand in a shard: bf16 as they are, or fp8 with a scale for each state of each token.

fp8 is e4m3 (3 bits of mantissa): state / scale, where scale = max |state| / 448, so that the largest number of a state
is the largest that e4m3 has. A number is off by at most 1/16 of itself, or 2⁻¹⁰ of the scale where that is more.
"""

import numpy as np
import torch

LARGEST = 448.0  # that e4m3 holds


def encode(aux: list[torch.Tensor], last: torch.Tensor, encoding: str) -> dict[str, torch.Tensor]:
    """The tensors of a shard (see states.py), on the device of the states. aux: one [rows, H] a layer; last: [rows, H].

    A state that is infinite or NaN stays so: in fp8 its scale is.
    """
    if encoding == "bf16":
        return {"aux": torch.cat(aux, dim=-1).to(torch.bfloat16), "last": last.to(torch.bfloat16)}
    tensors = {}
    for name, states in (("aux", torch.stack(aux, dim=1)), ("last", last[:, None])):  # [rows, layers, H]
        states = states.float()
        scale = states.abs().amax(dim=-1) / LARGEST  # [rows, layers]
        scale = torch.where(scale == 0, 1.0, scale)
        tensors[f"{name}_scale"] = scale
        tensors[name] = (states / scale[..., None]).to(torch.float8_e4m3fn).flatten(1)  # [rows, layers · H]
    return tensors


def decode(arrays: dict[str, np.ndarray], name: str, rows: slice | np.ndarray) -> torch.Tensor:
    """Rows of `aux` or `last` of a shard's arrays: bf16 [rows, layers · H]."""
    states = torch.from_numpy(np.array(arrays[name][rows]))  # a copy: the file is mapped read-only
    if f"{name}_scale" not in arrays:
        return states.view(torch.bfloat16)
    scale = torch.from_numpy(np.array(arrays[f"{name}_scale"][rows]))  # [rows, layers]
    states = states.view(torch.float8_e4m3fn).to(torch.float32).unflatten(1, (scale.shape[1], -1))
    return (states * scale[..., None]).to(torch.bfloat16).flatten(1)


def as_bytes(tensors: dict[str, torch.Tensor]) -> dict[str, memoryview]:
    """The bytes of tensors in the CPU's memory."""
    return {name: t.reshape(-1).view(torch.uint8).numpy().data for name, t in tensors.items()}
