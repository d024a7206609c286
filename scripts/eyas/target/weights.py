"""A target's weights: out of a GGUF file into a Hugging Face model folder, and out of that into this process."""

import json
import os
import shutil
from pathlib import Path

from eyas.chat.gguf import tokenizer_from_gguf
from eyas.errors import EyasError
from eyas.records import write_json

MANIFEST = "manifest.json"


def model_from_gguf(path: Path, folder: Path) -> None:
    """Write the model of `path` to `folder`: configuration, weights in bfloat16, tokenizer, chat template.

    manifest.json lists the files with their sizes and is written last: a folder that has it is whole, whenever the
    process was killed. Quantized weights are expanded, so the numbers are those of the GGUF file, rounded to bfloat16.

    Raises EyasError when the file cannot be read or names no token that ends a turn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    partial = folder / ".partial"
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    try:
        tokenizer_from_gguf(path, partial)
        _write_model(path, partial)
        files = sorted(partial.iterdir())
        for file in files:
            _to_disk(file)
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    listed = [{"name": f.name, "bytes": (folder / f.name).stat().st_size} for f in files]
    write_json(folder / MANIFEST, {"from": path.name, "bytes": path.stat().st_size, "files": listed})


def _write_model(path: Path, folder: Path) -> None:
    """config.json, generation_config.json and model.safetensors."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except ImportError:
        raise
    except Exception as error:  # gguf and transformers raise many kinds on a damaged or unknown file
        raise EyasError(f"{path}: transformers cannot load it: {error}") from error
    # The weights are expanded: without this, save_pretrained refuses them and SGLang looks for quantized ones.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.config.architectures = [type(model).__name__]  # by which SGLang finds the model's class
    model.generation_config.eos_token_id = _end_of_turn(path, folder)
    model.to(torch.bfloat16).save_pretrained(folder)


def _end_of_turn(path: Path, folder: Path) -> int:
    """The id of the token that ends the model's turn: eos_token of the tokenizer in `folder`."""
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if "eos_token" not in config:
        raise EyasError(f"{path}: has no tokenizer.ggml.eos_token_id: nothing would end an answer")
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return spec["model"]["vocab"][config["eos_token"]]


def _to_disk(file: Path) -> None:
    file.chmod(0o644)  # safetensors' files are their owner's alone
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_model(model: str | Path, attention: str, device: str | None = None, exact: bool = False):
    """A causal language model of a folder or a Hub repository, on `device` (None: a GPU where there is one).

    In its own dtype, or in fp32 where bf16 is slow; attention: a name registered with transformers. exact: on a CPU in
    fp32, since the rounding of bf16 products depends there on how many tokens are read at once. EyasError when
    transformers cannot load it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from eyas.compute import bf16_is_fast

    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto", attn_implementation=attention)
    except (OSError, ValueError) as error:
        raise EyasError(f"target {model}: transformers cannot load it: {error}") from None
    loaded.to(where).eval()
    return loaded if bf16_is_fast(where) and not (exact and where.type == "cpu") else loaded.float()
