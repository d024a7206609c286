"""Which layers the draft reads, and the numbers that others have for them.

Here a layer is an index into Hugging Face's output_hidden_states: state i is what layer i reads. SGLang's numbers, in
its flags and in a draft's config.json (eagle_aux_hidden_state_layer_ids), name the same tensors by one less, since it
adds 1 (set_eagle3_layers_to_capture in its models/llama.py); but for DeepSeek-V2's module, which Kimi's is, only when
the first is 1 (models/deepseek_v2.py). A neighbouring layer gives a draft that works, and is accepted a little less.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from eyas.errors import EyasError

AS_THEY_ARE = ("Deepseek", "Kimi")  # architectures whose ids SGLang takes as given


@dataclass(frozen=True)
class Shape:
    """What the target's config.json says of it."""

    layers: int
    hidden: int
    architecture: str

    @classmethod
    def of(cls, *folders: Path) -> "Shape":
        """From the first folder that has a config.json; a text model nested in it (text_config) counts."""
        for folder in folders:
            path = folder / "config.json"
            if not path.is_file():
                continue
            try:
                config = orjson.loads(path.read_bytes())
                text = config.get("text_config") or config
                return cls(text["num_hidden_layers"], text["hidden_size"], architecture_of(config))
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise EyasError(f"{path}: not a model's config.json ({error!r})") from None
        raise EyasError(
            f"{' and '.join(map(str, folders))}: no config.json: it says how many layers the target has and how wide "
            "they are: add config.json to target.tokenizer.files"
        )


def architecture_of(config: dict) -> str:
    """As a config.json names it; empty when it does not."""
    return (config.get("architectures") or [""])[0]


def layers_of(shape: Shape, explicit: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Low, mid, high: those given, or the formula's."""
    n = shape.layers
    layers = tuple(explicit) if explicit else (2, n // 2, n - 3)
    if not 0 < layers[0] < layers[1] < layers[2] < n:
        raise EyasError(
            f"capture.layers: {list(layers)} of a target with {n} layers: expected three that go up, each above 0 and "
            f"below {n}: set capture.layers"
        )
    return layers


def sglang_ids(layers: Sequence[int], architecture: str) -> tuple[int, ...]:
    """What makes SGLang 0.5.23 take these layers of a target."""
    if not architecture.startswith(AS_THEY_ARE):
        return tuple(layer - 1 for layer in layers)
    if layers[0] == 1:
        raise EyasError("capture.layers: SGLang cannot capture layer 1 of this target: start at 2 or above")
    return tuple(layers)


def layers_of_ids(ids: Sequence[int], architecture: str) -> tuple[int, ...]:
    """The layers that SGLang takes by these ids."""
    as_given = architecture.startswith(AS_THEY_ARE) and ids[0] != 1
    return tuple(ids) if as_given else tuple(i + 1 for i in ids)
