"""The draft as a server runs it: token after token, with a cache of its own.

Same mathematics as a row of the training-time test (ttt.py): position t of the context sees the target's aux states of
t and the token after it; a chain goes on from the last position with the draft's own states, each of its tokens seeing
the context and the chain before it. In fp32.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from eyas.eagle3.model import Draft
from eyas.eagle3.products import rms_norm
from eyas.eagle3.ttt import fuse, rope_tables, rotate


class Proposer:
    """Proposes what comes after a context that grows; `positions`: the most tokens of context and chain together."""

    def __init__(self, draft: Draft, positions: int):
        c = draft.config
        self.draft, self.length = draft, 0  # tokens of the context whose keys are kept
        self.cos, self.sin = rope_tables(draft, positions)
        shape, device = (c.num_key_value_heads, positions, c.head_dim), draft.fc.weight.device
        self.keys, self.values = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        self.state: Tensor | None = None  # of the last position, before the final norm  [1, H]

    def restart(self) -> None:
        """Another context, from its start."""
        self.length, self.state = 0, None

    @torch.inference_mode()
    def extend(self, aux: Tensor, following: Tensor) -> None:
        """Context grows by aux [n, layers · size], the target's states, and following [n], the token after each."""
        hidden = fuse(self.draft, aux, torch.float32)  # [n, H]
        self.state = self._layer(hidden, following, self.length)[-1:]
        self.length += len(following)

    @torch.inference_mode()
    def logits(self, state: Tensor) -> Tensor:
        """Over the draft vocabulary, of one state before the final norm: [1, draft vocabulary]."""
        unit, _ = rms_norm(state, self.draft.config.rms_norm_eps)
        return F.linear(unit * self.draft.norm.weight, self.draft.lm_head.weight)

    @torch.inference_mode()
    def chain(self, count: int, choose) -> list[int]:
        """`count` tokens after the context; choose(logits [draft vocabulary]) gives a draft id at each."""
        state, tokens = self.state, []
        for step in range(count):
            if step:
                token = torch.tensor([tokens[-1]], device=state.device)
                state = self._layer(state, token, self.length + step - 1)
            chosen = choose(self.logits(state)[0])
            tokens.append(chosen + int(self.draft.d2t[chosen]))
        return tokens

    def _layer(self, hidden: Tensor, following: Tensor, start: int) -> Tensor:
        """The decoder layer on rows hidden [n, H] that stand at positions from `start` on; their keys are kept."""
        c, layer, eps = self.draft.config, self.draft.midlayer, self.draft.config.rms_norm_eps
        n, end = len(hidden), start + len(hidden)
        embedded = self.draft.embed_tokens(following).float()
        u = torch.cat(
            [
                rms_norm(embedded, eps)[0] * layer.input_layernorm.weight,
                rms_norm(hidden, eps)[0] * layer.hidden_norm.weight,
            ],
            -1,
        )  # [n, 2H]
        attention, (cos, sin) = layer.self_attn, (self.cos[start:end], self.sin[start:end])
        q, k, v = (
            projection(u).view(n, -1, c.head_dim).transpose(0, 1)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )  # [heads, n, d], [kv, n, d]
        self.keys[:, start:end] = rotate(k, cos, sin, torch.float32)
        self.values[:, start:end] = v
        seen = torch.ones(n, end, dtype=torch.bool, device=hidden.device).tril_(start)
        out = F.scaled_dot_product_attention(
            rotate(q, cos, sin, torch.float32)[None],
            self.keys[None, :, :end],
            self.values[None, :, :end],
            attn_mask=seen,
            enable_gqa=True,
        )[0]
        h = hidden + attention.o_proj(out.transpose(0, 1).reshape(n, -1))
        x = rms_norm(h, eps)[0] * layer.post_attention_layernorm.weight
        return h + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(x)) * layer.mlp.up_proj(x))
