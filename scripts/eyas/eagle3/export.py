"""A draft as a folder: model.safetensors and config.json, as SGLang's LlamaForCausalLMEagle3 reads them.

SGLang drops unknown and missing names in silence, and an acceptance length of 1.00 is then the only sign. So names,
shapes and dtypes are checked here, both of what is written and of what is loaded.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import orjson
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eyas.eagle3.model import Draft, DraftConfig
from eyas.errors import EyasError
from eyas.layers import layers_of_ids
from eyas.records import whole_file

WEIGHTS, CONFIG = "model.safetensors", "config.json"
EMBEDDINGS = "embed_tokens.weight"
# Names that other projects' drafts use for the same weights.
ALIASES = {"model.": "", "layers.0.": "midlayer.", "aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1."}
ALIASES["aux_norm_high."] = "fc_norm.2."


def export(draft: Draft, folder: Path, *, embeddings: bool = True) -> None:
    """Write the folder, each file whole or not at all, and check what was written; EyasError when it is off.

    The weights are cast to the config's torch_dtype, the aux scale is folded into fc. embeddings=False leaves out
    embed_tokens, which SGLang takes from the target anyway.
    """
    folder = Path(folder)
    tensors = exported_tensors(draft)
    if not embeddings:
        del tensors[EMBEDDINGS]
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise EyasError(
                f"{folder / WEIGHTS}: {name}: expected finite numbers, found NaN or infinity: export an earlier state"
            )
    with whole_file(folder / WEIGHTS) as file:
        file.write(save(tensors, {"format": "pt"}))
    with whole_file(folder / CONFIG) as file:
        file.write(orjson.dumps(draft.config.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    check_export(folder, draft)


def exported_tensors(draft: Draft) -> dict[str, Tensor]:
    """name → tensor on the CPU, as the checkpoint has it."""
    dtype, state = _dtype(draft.config), draft.state_dict()
    state["fc.weight"] = draft.folded_fc()
    names = [*draft.config.weight_shapes(), EMBEDDINGS]
    tensors = {name: state[name].detach().to("cpu", dtype).contiguous() for name in names}
    return tensors | {name: state[name].to("cpu").contiguous() for name in ("d2t", "t2d")}


def check_export(folder: Path, draft: Draft | None = None) -> None:
    """EyasError naming file and key unless the folder holds a draft that SGLang loads whole.

    draft: also compares with it: configuration, every tensor, and the logits of the folder's draft on a few random
    tokens, bit for bit.
    """
    folder = Path(folder)
    config = load_config(folder)
    for name, fault in faults(folder, config):
        raise EyasError(f"{folder / WEIGHTS}: {name}: {fault}: export the draft again")
    if draft is None:
        return
    if config != draft.config:
        raise EyasError(f"{folder / CONFIG}: expected {draft.config}, found {config}: export the draft again")
    expected = exported_tensors(draft)
    with safe_open(folder / WEIGHTS, "pt") as file:
        for name in list(file.keys()):
            if not torch.equal(file.get_tensor(name), expected[name]):
                raise EyasError(f"{folder / WEIGHTS}: {name}: other values than the draft's: export the draft again")
    if not torch.equal(*(probe_logits(each) for each in (load_draft(folder, expected[EMBEDDINGS]), _rounded(draft)))):
        raise EyasError(f"{folder / WEIGHTS}: its draft gives other logits than the one trained: export it again")


def faults(folder: Path, config: DraftConfig) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) of each tensor that is missing, too many, or of the wrong shape, dtype or vocabulary."""
    floats = {str(_dtype(config)).removeprefix("torch.")}
    required = {name: (shape, floats) for name, shape in config.weight_shapes().items()}
    required |= {"d2t": ((config.draft_vocab_size,), {"int64"}), "t2d": ((config.vocab_size,), {"bool"})}
    optional = {EMBEDDINGS: ((config.vocab_size, config.hidden_size), floats)}
    with _opened(folder / WEIGHTS) as file:
        found = set(file.keys())
        for name in sorted(found - set(required) - set(optional)):
            yield name, "not a name that SGLang loads"
        for name, (shape, dtypes) in {**required, **optional}.items():
            if name not in found:
                if name in required:
                    yield name, "missing; SGLang would serve without it and accept nothing"
                continue
            tensor = file.get_slice(name)
            dtype = _TORCH_NAME.get(tensor.get_dtype(), tensor.get_dtype())
            if tuple(tensor.get_shape()) != shape:
                yield name, f"expected shape {list(shape)}, found {tensor.get_shape()}"
            elif dtype not in dtypes:
                yield name, f"expected dtype {', '.join(dtypes)}, found {dtype}"
        if {"d2t", "t2d"} <= found:
            d2t, t2d = file.get_tensor("d2t"), file.get_tensor("t2d")
            if not torch.equal(t2d.nonzero().flatten(), torch.arange(len(d2t)) + d2t):
                yield "d2t", "keeps other tokens than t2d"


def load_config(folder: Path) -> DraftConfig:
    """The folder's config.json; EyasError names the file and the key."""
    path = Path(folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EyasError(f"{path}: cannot be read ({error}): name the folder of an EAGLE-3 draft") from None
    try:
        return DraftConfig.from_json(config)
    except EyasError as error:
        raise EyasError(f"{path}: {error}") from None


def load_draft(
    folder: Path,
    embeddings: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    target_hidden_size: int | None = None,
    layers: tuple[int, ...] | None = None,
    architecture: str = "",
) -> Draft:
    """A draft to train on from a folder in SGLang's form; fp32 masters, aux scale 1.

    embeddings [vocab, hidden]: the target's, which take the place of the folder's; needed where it has none.
    vocab_size, target_hidden_size, layers: what the target and the states have, when known; EyasError where the
    draft was made for others. architecture: of the target, which decides what the layers are called.
    """
    folder = Path(folder)
    config = load_config(folder)
    for key, expected, found in (
        ("vocab_size", vocab_size, config.vocab_size),
        ("target_hidden_size", target_hidden_size, config.aux_size),
        ("layers", layers and list(layers), list(layers_of_ids(config.aux_layers, architecture))),
    ):
        if expected is not None and expected != found:
            raise EyasError(
                f"{folder / CONFIG}: {key}: expected {expected}, as the target has it, found {found}: start from a "
                "draft of this target, or from none"
            )
    with _opened(folder / WEIGHTS) as file:
        named = {_own_name(name): name for name in list(file.keys())}
        shapes = {**config.weight_shapes(), "d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
        if embeddings is None:
            shapes[EMBEDDINGS] = (config.vocab_size, config.hidden_size)
        tensors = {}
        for name, shape in shapes.items():
            if name not in named:
                raise EyasError(
                    f"{folder / WEIGHTS}: {name}: expected a tensor of shape {list(shape)}, found none: the file is "
                    "not a whole draft; start from another, or from none"
                )
            tensors[name] = file.get_tensor(named[name])
            if tuple(tensors[name].shape) != shape:
                raise EyasError(
                    f"{folder / WEIGHTS}: {name}: expected shape {list(shape)} by {CONFIG}, found "
                    f"{list(tensors[name].shape)}: file and config belong to different drafts; start from another"
                )
    for name in sorted(set(named) - set(shapes) - {EMBEDDINGS}):
        logging.warning("%s: %s is not a weight of the draft and stays unused", folder / WEIGHTS, named[name])
    embeddings = tensors.pop(EMBEDDINGS) if embeddings is None else embeddings
    d2t, t2d = tensors.pop("d2t"), tensors.pop("t2d").bool()
    try:
        head = torch.zeros(()).expand(config.vocab_size, config.hidden_size)  # replaced by the file's at once
        draft = Draft.from_target(config, embeddings, head, d2t, t2d)
    except EyasError as error:
        raise EyasError(f"{folder / WEIGHTS}: {error}") from None
    with torch.no_grad():
        for name, tensor in tensors.items():
            draft.get_parameter(name).copy_(tensor)
    return draft


@torch.no_grad()
def probe_logits(draft: Draft, tokens: int = 16) -> Tensor:
    """Logits [tokens − 2, draft vocabulary] of the first step on random tokens and states, the same for every draft."""
    from eyas.eagle3.products import rms_norm
    from eyas.eagle3.supervision import Batch, Objective, hard_targets, supervise
    from eyas.eagle3.ttt import hidden_states

    c, generator = draft.config, torch.Generator().manual_seed(0)
    device = draft.fc.weight.device
    ids = torch.randint(c.vocab_size, (tokens,), generator=generator)
    aux = torch.randn(tokens, len(c.aux_layers) * c.aux_size, generator=generator)
    batch = Batch(
        *(x.to(device) for x in (ids, torch.ones(tokens), aux)), None, torch.tensor([0, tokens], device=device)
    )
    objective = Objective(steps=1, loss="hard")
    plan = supervise(batch, hard_targets(batch, objective), torch.ones_like(draft.t2d), objective)
    (hidden,) = hidden_states(draft, batch, plan, torch.float32)
    return rms_norm(hidden, c.rms_norm_eps)[0] * draft.norm.weight @ draft.lm_head.weight.T


def _rounded(draft: Draft) -> Draft:
    """A copy with the values that the export has."""
    tensors = exported_tensors(draft)
    copy = Draft.from_target(
        draft.config,
        tensors[EMBEDDINGS],
        torch.zeros(()).expand(draft.config.vocab_size, draft.config.hidden_size),
        tensors["d2t"],
        tensors["t2d"],
    )
    with torch.no_grad():
        for name in draft.config.weight_shapes():
            copy.get_parameter(name).copy_(tensors[name])
    return copy


def _opened(path: Path):
    try:
        return safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise EyasError(f"{path}: cannot be read ({error}): name the folder of a whole EAGLE-3 draft") from None


def _own_name(name: str) -> str:
    for theirs, ours in ALIASES.items():
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    return name


def _dtype(config: DraftConfig) -> torch.dtype:
    known = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if config.torch_dtype not in known:
        raise EyasError(f"torch_dtype: expected {', '.join(known)}, found {config.torch_dtype!r}: choose one of them")
    return known[config.torch_dtype]


_TORCH_NAME = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "I64": "int64", "BOOL": "bool"}
