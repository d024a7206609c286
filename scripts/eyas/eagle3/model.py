"""The draft: one decoder layer on [embedding, hidden], fed with three of the target's hidden states.

Parameters carry the names of the checkpoint that SGLang's LlamaForCausalLMEagle3 loads; config.json is DraftConfig.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eyas.errors import EyasError

ARCHITECTURE = "LlamaForCausalLMEagle3"
# What each RoPE scaling needs beside its type; yarn's other keys have defaults.
ROPE_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
ROPE_MAY = {"yarn": ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "attention_factor")}


@dataclass(frozen=True)
class DraftConfig:
    """Sizes and settings of a draft; `to_json` is its config.json. Frozen: what is trained is what is exported.

    rope_scaling: as in a Llama config.json (`rope_type` or `type`: default, linear, llama3, yarn), or None.
    aux_layers: ids of the target's layers whose inputs are the aux states, low to high, as SGLang has them for this
    target (layers.sglang_ids).
    fc_norm: an RMS norm of each aux state before fc (EAGLE-3.1).
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    aux_layers: tuple[int, ...]
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    target_hidden_size: int | None = None
    fc_norm: bool = False
    torch_dtype: str = "bfloat16"

    def __post_init__(self):
        if self.num_attention_heads % self.num_key_value_heads:
            raise EyasError(
                f"num_attention_heads: {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"({self.num_key_value_heads}): choose heads that can share keys"
            )
        if self.head_dim % 2:
            raise EyasError(f"head_dim: RoPE turns pairs, so it must be even, found {self.head_dim}: choose another")
        if self.draft_vocab_size > self.vocab_size:
            raise EyasError(
                f"draft_vocab_size: at most the target's {self.vocab_size:,} tokens, found {self.draft_vocab_size:,}: "
                "lower it"
            )
        if not self.aux_layers or len(set(self.aux_layers)) != len(self.aux_layers):
            raise EyasError(
                f"aux_layers: expected different layers, found {list(self.aux_layers)}: name them explicitly"
            )
        fault = fault_in_rope(self.rope_scaling)
        if fault:
            raise EyasError(f"rope_scaling: {fault}")

    @property
    def aux_size(self) -> int:
        """Width of one aux state."""
        return self.target_hidden_size or self.hidden_size

    def to_json(self) -> dict:
        """The fields of config.json that SGLang reads, all of them written."""
        out = {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling,
            "torch_dtype": self.torch_dtype,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": list(self.aux_layers),
                "use_aux_hidden_state": True,
            },
        }
        if self.aux_size != self.hidden_size:
            out["target_hidden_size"] = self.target_hidden_size
        if self.fc_norm:
            out["fc_norm"] = True
        return out

    @classmethod
    def from_json(cls, config: dict) -> "DraftConfig":
        """From the fields of a config.json, RoPE settings in either form; EyasError names a field that is off."""
        if ARCHITECTURE not in (config.get("architectures") or []):
            raise EyasError(
                f"architectures: expected {ARCHITECTURE}, found {config.get('architectures')}: name an EAGLE-3 draft"
            )
        for key, expected in (("num_hidden_layers", 1), ("tie_word_embeddings", False), ("hidden_act", "silu")):
            if config.get(key, expected) != expected:
                raise EyasError(f"{key}: expected {expected}, found {config[key]}: this structure is not supported")
        aux = config.get("eagle_config") or {}
        for key in ("norm_before_fc", "norm_output", "attention_bias", "mlp_bias", "bias"):
            if config.get(key) or aux.get(key):
                raise EyasError(f"{key}: expected false, found true: this structure is not supported")
        layers = aux.get("eagle_aux_hidden_state_layer_ids")
        if not layers:
            raise EyasError(
                "eagle_config.eagle_aux_hidden_state_layer_ids: missing: write the ids of the target's layers that the "
                "draft was trained on"
            )
        rope = dict(config.get("rope_parameters") or {})  # transformers 5 writes theta and scaling in one place
        theta = rope.pop("rope_theta", config.get("rope_theta", 10000.0))
        scaling = rope if rope.get("rope_type", "default") != "default" else config.get("rope_scaling")
        try:
            return cls(
                **{
                    key: int(config[key])
                    for key in (
                        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
                        *("vocab_size", "draft_vocab_size", "max_position_embeddings"),
                    )
                },
                head_dim=int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]),
                aux_layers=tuple(layers),
                rms_norm_eps=config["rms_norm_eps"],
                rope_theta=theta,
                rope_scaling=scaling,
                target_hidden_size=config.get("target_hidden_size"),
                fc_norm=bool(config.get("fc_norm") or config.get("use_aux_norm")),
                torch_dtype=config.get("torch_dtype") or config.get("dtype") or "bfloat16",
            )
        except (KeyError, TypeError) as error:
            raise EyasError(f"{error}: missing or null: expected a number, as in a draft's config.json") from None

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """name → shape of every weight that SGLang needs (it drops unknown and missing names in silence)."""
        h, i, d = self.hidden_size, self.intermediate_size, self.head_dim
        q, kv = self.num_attention_heads * d, self.num_key_value_heads * d
        layers = len(self.aux_layers)
        return {
            "fc.weight": (h, layers * self.aux_size),
            **({f"fc_norm.{k}.weight": (self.aux_size,) for k in range(layers)} if self.fc_norm else {}),
            "midlayer.hidden_norm.weight": (h,),
            "midlayer.input_layernorm.weight": (h,),
            "midlayer.post_attention_layernorm.weight": (h,),
            "midlayer.self_attn.q_proj.weight": (q, 2 * h),
            "midlayer.self_attn.k_proj.weight": (kv, 2 * h),
            "midlayer.self_attn.v_proj.weight": (kv, 2 * h),
            "midlayer.self_attn.o_proj.weight": (h, q),
            "midlayer.mlp.gate_proj.weight": (i, h),
            "midlayer.mlp.up_proj.weight": (i, h),
            "midlayer.mlp.down_proj.weight": (h, i),
            "norm.weight": (h,),
            "lm_head.weight": (self.draft_vocab_size, h),
        }


# RoPE


def fault_in_rope(scaling: dict | None) -> str | None:
    """What is wrong with RoPE settings; None when training and SGLang read them alike."""
    if scaling is None:
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPE_NEEDS:
        return f"expected type {', '.join(ROPE_NEEDS)}, found {kind!r}: choose one of them for the draft"
    missing = [key for key in ROPE_NEEDS[kind] if scaling.get(key) is None]
    if missing:
        return f"{kind} needs {', '.join(missing)}: copy them from the target's config.json"
    unknown = set(scaling) - {"rope_type", "type", *ROPE_NEEDS[kind], *ROPE_MAY.get(kind, ())}
    if unknown and kind != "default":
        return f"{kind} has no {', '.join(sorted(unknown))}: remove what the draft cannot have"
    derived = _yarn_magnitude(scaling) if kind == "yarn" else None
    given = scaling.get("attention_factor")
    if given is not None and derived is not None and not math.isclose(given, derived, rel_tol=1e-6):
        return f"attention_factor: SGLang derives {derived:.6f} from the factors, found {given}: remove it"
    return None


def rope_frequencies(config: DraftConfig) -> tuple[Tensor, float]:
    """(radians a position [head_dim / 2] fp32, factor of cos and sin).

    Formulas: RoPE arXiv 2104.09864; linear arXiv 2306.15595; YaRN arXiv 2309.00071; llama3 as in Llama 3.1's release.
    """
    scaling, d = config.rope_scaling or {}, config.head_dim
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    plain = config.rope_theta ** -(torch.arange(0, d, 2, dtype=torch.float32) / d)  # θ^(−2k/d)  [head_dim / 2]
    if kind == "default":
        return plain, 1.0
    slow = plain / scaling["factor"]
    if kind == "linear":
        return slow, 1.0
    original = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        # Turns within the original context: few → slow, many → plain, a straight line between.
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        share = ((original * plain / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return torch.lerp(slow, plain, share), 1.0

    def dimension(turns: float) -> float:  # that makes so many turns within the original context
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    first, last = dimension(scaling.get("beta_fast") or 32), dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, d - 1)
    ramp = ((torch.arange(d // 2) - first) / max(last - first, 0.001)).clamp(0, 1)  # 0: plain, 1: slow
    return torch.lerp(plain, slow, ramp), _yarn_magnitude(scaling)


def _yarn_magnitude(scaling: dict) -> float:
    """0.1·m·ln(factor) + 1; where both mscales are given (DeepSeek, Kimi), the ratio of the two."""

    def magnitude(m: float) -> float:
        return 0.1 * m * math.log(scaling["factor"]) + 1 if scaling["factor"] > 1 else 1.0

    m, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return magnitude(m) / magnitude(all_dim) if m and all_dim else magnitude(1)


# The model


class RMSNorm(nn.Module):
    """The weight of a norm; products.py computes it."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Attention(nn.Module):
    """The weights of the attention; ttt.py and propose.py compute it."""

    def __init__(self, c: DraftConfig):
        super().__init__()
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = nn.Linear(2 * c.hidden_size, q, bias=False)
        self.k_proj = nn.Linear(2 * c.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(2 * c.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(q, c.hidden_size, bias=False)


class MLP(nn.Module):
    """The weights of the MLP; ttt.py and propose.py compute it."""

    def __init__(self, c: DraftConfig):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)


class Layer(nn.Module):
    """The weights of the draft's one layer; ttt.py and propose.py compute it."""

    def __init__(self, c: DraftConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size)
        self.hidden_norm = RMSNorm(c.hidden_size)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size)
        self.mlp = MLP(c)


class Draft(nn.Module):
    """The draft's parameters (fp32 masters) and maps. Calling it is `ttt.training_time_test`.

    embed_tokens is the target's and frozen, in whatever dtype it came. aux_scale [layers] divides each aux state before
    fc; it is part of the state, not of the checkpoint: the export folds it into fc.
    """

    def __init__(self, config: DraftConfig):
        super().__init__()
        c, layers = config, len(config.aux_layers)
        self.config = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.embed_tokens.weight.requires_grad_(False)
        if c.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(c.aux_size) for _ in range(layers))
        self.fc = nn.Linear(layers * c.aux_size, c.hidden_size, bias=False)
        self.midlayer = Layer(c)
        self.norm = RMSNorm(c.hidden_size)
        self.lm_head = nn.Linear(c.hidden_size, c.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(c.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(c.vocab_size, dtype=torch.bool))
        self.register_buffer("aux_scale", torch.ones(layers))

    @classmethod
    def from_target(
        cls, config: DraftConfig, embeddings: Tensor, lm_head: Tensor, d2t: Tensor, t2d: Tensor, seed: int = 0
    ) -> "Draft":
        """A fresh draft: embeddings [vocab, hidden] as they are, lm_head [vocab, hidden] in the kept rows.

        The rest is drawn from `seed`: normal, σ = 1/√(inputs), as large as a unit input needs; o_proj and down_proj
        start at a tenth, so that the first steps of the test stay near fc's output.
        """
        for name, tensor in (("embed_tokens", embeddings), ("lm_head", lm_head)):
            expected = (config.vocab_size, config.hidden_size)
            if tuple(tensor.shape) != expected:
                raise EyasError(
                    f"the target's {name}: expected {list(expected)} as in the draft's config, found "
                    f"{list(tensor.shape)}: the draft's hidden size and vocabulary are the target's"
                )
        with torch.device("meta"):
            draft = cls(config)
        draft.embed_tokens.weight = nn.Parameter(embeddings, requires_grad=False)
        draft.to_empty_but(embeddings.device, keep={"embed_tokens.weight"})
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in draft.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0)
                elif name != "embed_tokens.weight":
                    std = parameter.shape[1] ** -0.5 * (0.1 if "o_proj" in name or "down_proj" in name else 1.0)
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
            draft.aux_scale.fill_(1.0)
            draft.set_vocabulary(d2t, t2d)
            draft.lm_head.weight.copy_(lm_head[draft.t2d.to(lm_head.device)])
        return draft

    def to_empty_but(self, device: torch.device, keep: set[str]) -> None:
        """Give every parameter and buffer storage on `device`, except those named in `keep`."""
        for prefix, module in self.named_modules():
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if f"{prefix}.{name}".lstrip(".") not in keep:
                    empty = torch.empty_like(tensor, device=device)
                    if isinstance(tensor, nn.Parameter):
                        empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
                    setattr(module, name, empty)

    def set_vocabulary(self, d2t: Tensor, t2d: Tensor) -> None:
        """Take a map of the draft vocabulary; EyasError when it has other sizes or the two do not belong together."""
        c = self.config
        if d2t.shape != (c.draft_vocab_size,) or t2d.shape != (c.vocab_size,):
            raise EyasError(
                f"d2t, t2d: expected {c.draft_vocab_size:,} and {c.vocab_size:,} entries, found {d2t.numel():,} and "
                f"{t2d.numel():,}: take the map of this draft and target"
            )
        if not torch.equal(t2d.nonzero().flatten(), torch.arange(len(d2t), device=d2t.device) + d2t):
            raise EyasError("d2t, t2d: they keep different tokens: take both from one file")
        self.d2t.copy_(d2t)
        self.t2d.copy_(t2d)

    def set_aux_scale(self, scale: Tensor) -> None:
        """Divide the aux states by `scale` [layers] from now on, fc adapted so that its output stays what it was."""
        if self.config.fc_norm:
            raise EyasError("aux_scale: fc_norm normalizes each aux state already: use one of the two")
        scale = scale.to(self.aux_scale)
        if scale.shape != self.aux_scale.shape or not bool((scale > 0).all() & scale.isfinite().all()):
            raise EyasError(
                f"aux_scale: expected {len(self.aux_scale)} positive numbers, found {scale.tolist()}: measure them on "
                "finite states that are not all zero"
            )
        with torch.no_grad():
            self.fc.weight.mul_((scale / self.aux_scale).repeat_interleave(self.config.aux_size))
            self.aux_scale.copy_(scale)

    def folded_fc(self) -> Tensor:
        """fc for aux states as they come: W·(a/s) = (W/s)·a.  [hidden, layers · aux]"""
        return (self.fc.weight / self.aux_scale.repeat_interleave(self.config.aux_size)).detach()

    def trainable(self, train_lm_head: bool = True) -> dict[str, nn.Parameter]:
        """name → parameter of all that is trained; the rest is frozen (embeddings always)."""
        self.lm_head.weight.requires_grad_(train_lm_head)
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def forward(self, *args, **kwargs):
        """ttt.training_time_test; here so that the hooks of DDP and FSDP run."""
        from eyas.eagle3.ttt import training_time_test

        return training_time_test(self, *args, **kwargs)


def aux_scale(aux: Tensor, layers: int) -> Tensor:
    """Root mean square of each aux state of aux [tokens, layers · size]: [layers] fp32, for `Draft.set_aux_scale`."""
    return aux.float().unflatten(-1, (layers, -1)).square().mean(dim=(0, 2)).sqrt()
