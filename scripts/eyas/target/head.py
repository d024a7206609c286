"""What of the target's weights the draft needs: its embeddings, its lm_head, its final norm.

They are copied out of the model's files once, tensor by tensor in blocks of rows, into one small file:

    embed_tokens [vocabulary, H]   lm_head [vocabulary, H] (absent when it is the embeddings)   norm [H]

in the types that the model has. Files of a model on the Hub come through its cache, where a server finds them, too.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from eyas.config import Target
from eyas.errors import EyasError
from eyas.hub import model_file
from eyas.records import read_json, whole_file
from eyas.states import Layout

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
PREFIX = r"^(model\.)?(language_model\.)?(model\.)?"  # a text model may be nested in another
WANTED = ("embed_tokens", "lm_head", "norm")
TYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
BLOCK_ROWS = 4096  # copied at once
BRING = "bring it again"  # a file of the target's own
REMEDY = "run `snakemake --force target/head.safetensors`"


@dataclass(frozen=True)
class Head:
    """Tensors as in the module's docstring; norm: None when the model's final norm is not a plain RMSNorm."""

    embed_tokens: torch.Tensor
    lm_head: torch.Tensor
    norm: torch.Tensor | None
    metadata: dict[str, str]

    @classmethod
    def load(cls, path: Path) -> "Head":
        """Mapped, not read; EyasError when the file is not such a file."""
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dictionary)
                metadata = file.metadata() or {}
            embeddings = tensors["embed_tokens"]
        except (OSError, SafetensorError, KeyError) as error:
            raise EyasError(f"{path}: no weights of a target's head ({error}): {REMEDY}") from None
        return cls(embeddings, tensors.get("lm_head", embeddings), tensors.get("norm"), metadata)

    @property
    def vocabulary(self) -> int:
        return self.lm_head.shape[0]

    @property
    def hidden(self) -> int:
        return self.lm_head.shape[1]


def extract_head(target: Target, out: Path) -> None:
    """Write `out`; EyasError when the model's files are not there, or lack the embeddings or the lm_head."""
    files = _Files(target)
    names = {wanted: files.name_of(wanted) for wanted in WANTED}
    if names["embed_tokens"] is None:
        raise EyasError(f"{files}: has no tensor embed_tokens.weight: name a text model in target.model")
    if names["lm_head"] is None and not files.config.get("tie_word_embeddings", False):
        raise EyasError(
            f"{files}: has no tensor lm_head.weight, and its config.json does not say tie_word_embeddings: the model's "
            "files are not all there"
        )
    found = {wanted: files.tensor(name) for wanted, name in names.items() if name is not None}
    if not (found["embed_tokens"].dim() == 2 and found.get("lm_head", found["embed_tokens"]).dim() == 2):
        raise EyasError(f"{files}: embed_tokens.weight or lm_head.weight is no matrix")
    layout = Layout.of(
        {name: (files.type_of(names[name], t), tuple(t.shape)) for name, t in found.items()},
        {"model": target.model, "revision": files.revision or "", "tied": str(names["lm_head"] is None).lower()},
    )
    with whole_file(out) as file:
        file.write(layout.header)
        for tensor in found.values():
            for start in range(0, len(tensor), BLOCK_ROWS):
                file.write(tensor[start : start + BLOCK_ROWS].reshape(-1).view(torch.uint8).numpy().data)


class _Files:
    """A model's safetensors files, in a folder or on the Hub."""

    def __init__(self, target: Target):
        flags = {k.replace("_", "-"): v for k, v in target.sglang.flags.items()}
        self.model = target.model
        self.revision = flags.get("revision")
        config = self.file("config.json", required=True)
        self.config = read_json(config, BRING)
        self.config = self.config.get("text_config") or self.config
        if (index := self.file(INDEX)) is not None:
            self.of = read_json(index, BRING)["weight_map"]
        else:
            whole = self.file(WHOLE, required=True)
            with self.opened(whole) as file:
                self.of = dict.fromkeys(file.keys(), WHOLE)

    def __str__(self) -> str:
        return self.model

    def file(self, name: str, required: bool = False) -> Path | None:
        return model_file(self.model, name, self.revision, "target.model", required=required)

    def opened(self, path: Path):
        try:
            return safe_open(path, "pt")
        except (OSError, SafetensorError) as error:
            raise EyasError(f"{path}: no whole safetensors file ({error}): bring it again") from None

    def name_of(self, part: str) -> str | None:
        """The full name of one tensor; a layer's own (layers.N.…) is another."""
        found = [name for name in self.of if re.search(f"{PREFIX}{part}\\.weight$", name)]
        return found[0] if found else None

    def tensor(self, name: str) -> torch.Tensor:
        """Mapped from its file."""
        with self.opened(self.file(self.of[name], required=True)) as file:
            return file.get_tensor(name)

    def type_of(self, name: str, tensor: torch.Tensor) -> str:
        if tensor.dtype not in TYPES:
            raise EyasError(f"{self}: {name} is {tensor.dtype}: only plain bf16, fp16 or fp32 can be read")
        return TYPES[tensor.dtype]
