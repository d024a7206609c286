"""What a training starts from: the draft, fresh or another's, fitted to target, states and vocabulary; all checked."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
import torch
from safetensors import SafetensorError, safe_open

from eyas.config import DraftModel, Training
from eyas.eagle3.data import Shards
from eyas.eagle3.export import CONFIG, WEIGHTS, load_draft
from eyas.eagle3.model import ARCHITECTURE, Draft, DraftConfig, aux_scale
from eyas.eagle3.supervision import SUPERVISION, Objective
from eyas.errors import EyasError
from eyas.hub import model_file
from eyas.layers import architecture_of, sglang_ids
from eyas.states_encoding import decode
from eyas.target.head import Head

SCALED_BY = 1 << 16  # tokens that the size of the aux states is taken from


def objective_of(training: Training) -> Objective:
    return Objective(
        steps=training.steps,
        step_weights=training.step_weights,
        supervision=training.supervision,
        loss=training.loss,
        train_lm_head=training.train_lm_head,
    )


def read_map(path: Path, head: Head, tokenizer: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(d2t [draft], t2d [the target's rows of lm_head]) of draft_vocab/map.safetensors; EyasError when it is another's.

    A head may have more rows than the tokenizer has tokens: those are never proposed.
    """
    remedy = "run `snakemake --force draft_vocab/map.safetensors`"
    try:
        with safe_open(path, "pt") as file:
            d2t, t2d = file.get_tensor("d2t"), file.get_tensor("t2d")
            made_with = (file.metadata() or {}).get("tokenizer")
    except (OSError, SafetensorError) as error:
        raise EyasError(f"{path}: no map of a draft vocabulary ({error}): {remedy}") from None
    if made_with != tokenizer or len(t2d) > head.vocabulary:
        raise EyasError(
            f"{path}: for tokenizer {made_with} of {len(t2d):,} tokens, expected {tokenizer} as the states have, and "
            f"at most {head.vocabulary:,}: {remedy}"
        )
    return d2t, torch.cat([t2d, torch.zeros(head.vocabulary - len(t2d), dtype=torch.bool)])


def draft_config(target: dict, model: DraftModel, layers: Sequence[int], vocabulary: int, kept: int) -> DraftConfig:
    """A draft in the target's image.

    target: its config.json; layers: that the states are of; vocabulary: rows of its lm_head; kept: the draft's.
    """
    text = target.get("text_config") or target
    own = model.model_dump(
        exclude={"warm_start", "warm_start_revision", "fc_norm", "rope_theta", "rope_scaling"}, exclude_none=True
    )
    heads = own.get("num_attention_heads") or text["num_attention_heads"]
    wanted = {
        "hidden_size": text["hidden_size"],
        "intermediate_size": text.get("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": text.get("num_key_value_heads") or heads,
        # Latent attention (DeepSeek, Kimi) names the width of a head's values; others divide the hidden size.
        "head_dim": text.get("v_head_dim") or text.get("head_dim") or text["hidden_size"] // heads,
        "max_position_embeddings": text.get("max_position_embeddings"),
        "rms_norm_eps": text.get("rms_norm_eps", 1e-5),
        **{k: text[k] for k in ("rope_theta", "rope_scaling", "rope_parameters") if text.get(k) is not None},
        **own,
        "vocab_size": vocabulary,
        "draft_vocab_size": kept,
        "fc_norm": model.fc_norm,
        "architectures": [ARCHITECTURE],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(sglang_ids(layers, architecture_of(target)))},
    }
    if model.rope_theta is not None or model.rope_scaling is not None:
        wanted["rope_theta"] = model.rope_theta or _theta(text)
        wanted["rope_scaling"] = model.rope_scaling if model.rope_scaling is not None else wanted.get("rope_scaling")
        wanted.pop("rope_parameters", None)
    try:
        return DraftConfig.from_json(wanted)
    except EyasError as error:
        raise EyasError(
            f"draft (taken from the target's config.json): {error}, or set the key under `draft:`"
        ) from None


def _theta(text: dict) -> float:
    return (text.get("rope_parameters") or {}).get("rope_theta") or text.get("rope_theta", 10000.0)


def target_config(*folders: Path) -> dict:
    """The target's config.json, from the first folder that has one."""
    for folder in folders:
        path = folder / "config.json"
        if path.is_file():
            return orjson.loads(path.read_bytes())
    raise EyasError(f"{' and '.join(map(str, folders))}: no config.json: add it to target.tokenizer.files")


def open_draft(
    model: DraftModel, training: Training, target: dict, head: Head, shards: Shards, map_path: Path
) -> Draft:
    """The draft to train, on the CPU; EyasError when target, states, vocabulary and draft do not fit each other."""
    if not len(shards.samples):
        raise EyasError("hidden_states/train: holds no sample that may be used: look at the page of the corpus")
    d2t, t2d = read_map(map_path, head, shards.metadata["tokenizer"])
    if head.hidden != shards.hidden:
        raise EyasError(
            f"hidden states: {shards.hidden} wide, the target's lm_head reads {head.hidden}: they are of different "
            "targets: capture them again"
        )
    if model.warm_start is not None:
        draft = _warm(model, target, head, shards, d2t, t2d)
    else:
        config = draft_config(target, model, shards.layers, head.vocabulary, len(d2t))
        draft = Draft.from_target(config, head.embed_tokens, head.lm_head, d2t, t2d, training.seed)
    if training.scale_aux and not model.fc_norm:
        draft.set_aux_scale(_measured_scale(shards, len(shards.layers)))
    return draft


def _warm(model: DraftModel, target: dict, head: Head, shards: Shards, d2t: torch.Tensor, t2d: torch.Tensor) -> Draft:
    files = [
        model_file(model.warm_start, name, model.warm_start_revision, "draft.warm_start") for name in (WEIGHTS, CONFIG)
    ]
    draft = load_draft(
        files[0].parent,
        head.embed_tokens,
        vocab_size=head.vocabulary,
        target_hidden_size=shards.hidden,
        layers=shards.layers,
        architecture=architecture_of(target),
    )
    if not (torch.equal(draft.d2t.cpu(), d2t) and torch.equal(draft.t2d.cpu(), t2d)):
        raise EyasError(
            f"{files[0]}: has another vocabulary than draft_vocab/: run `snakemake --force "
            "draft_vocab/map.safetensors`, which takes over the draft's"
        )
    return draft


def _measured_scale(shards: Shards, layers: int) -> torch.Tensor:
    """Of the first samples: their order is by hash, so they are as good as any."""
    parts, tokens = [], 0
    for s, k in shards.samples.tolist():
        arrays = shards.shards[s].arrays
        parts.append(decode(arrays, "aux", slice(*arrays["offsets"][k : k + 2].tolist())))
        tokens += len(parts[-1])
        if tokens >= SCALED_BY:
            break
    return aux_scale(torch.cat(parts), layers)


def check_start(shards: Shards, draft: Draft, objective: Objective) -> None:
    """EyasError for what would be found only after hours, or never."""
    longest, most = int(shards.lengths.max()), draft.config.max_position_embeddings
    if longest + objective.steps > most:
        raise EyasError(
            f"a sample has {longest:,} tokens, with {objective.steps} steps ahead; the draft has {most:,} positions: "
            "lower corpus.max_tokens, or raise draft.max_position_embeddings"
        )
    supervised, shift = 0, 1 + SUPERVISION[objective.supervision]
    t2d = draft.t2d.cpu().numpy()
    for s, k in shards.samples.tolist():
        arrays = shards.shards[s].arrays
        start, end = arrays["offsets"][k : k + 2].tolist()
        mask = arrays["loss_mask"][start + shift : end].astype(bool)
        if mask.any():
            ids = arrays["input_ids"][start + shift : end][mask]
            supervised += int(np.count_nonzero(t2d[ids]))
    if not supervised:
        raise EyasError(
            "hidden_states/train: no position is supervised: no trained token lies behind a sample's second, or none "
            "is in the draft's vocabulary: look at the loss masks (reports/prepared/), and at draft_vocab/coverage.json"
        )
