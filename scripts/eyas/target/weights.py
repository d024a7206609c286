"""The weights inside a GGUF file, as a Hugging Face model folder that SGLang and transformers both load."""

import json
import shutil
import tempfile
from pathlib import Path

from eyas.chat.gguf import tokenizer_from_gguf
from eyas.errors import EyasError
from eyas.records import write_json

MANIFEST = "manifest.json"


def model_from_gguf(path: Path, folder: Path) -> None:
    """Write the model of `path` to `folder`: configuration, weights in bfloat16, tokenizer, chat template.

    `folder` appears under its name only when it is whole, and manifest.json, which lists its files and sizes, is the
    last of them. A folder that has one is left alone. Quantized weights are expanded, so the numbers are those of the
    GGUF file, rounded to bfloat16.

    Raises EyasError when the file cannot be read, has no end-of-turn token, or `folder` holds something else.
    """
    if (folder / MANIFEST).is_file():
        return
    if folder.exists() and any(folder.iterdir()):
        raise EyasError(f"{folder}: holds files but no {MANIFEST}: it was not made here; delete it or name another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        tokenizer_from_gguf(path, partial)
        _write_model(path, partial)
        files = sorted(f for f in partial.iterdir() if f.is_file())
        listed = [{"name": f.name, "bytes": f.stat().st_size} for f in files]
        write_json(partial / MANIFEST, {"from": path.name, "bytes": path.stat().st_size, "files": listed})
        partial.chmod(0o755)  # mkdtemp's folders are the owner's alone
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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
    # save_pretrained refuses a "quantized" model, and SGLang would look for quantized weights.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.config.architectures = [type(model).__name__]  # by which SGLang finds the model's class
    model.generation_config.eos_token_id = _end_of_turn(folder)
    model.to(torch.bfloat16).save_pretrained(folder)


def _end_of_turn(folder: Path) -> int:
    """The id of the token that ends the model's turn: the tokenizer's eos_token."""
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if "eos_token" not in config:
        raise EyasError(f"{folder}: the GGUF file names no eos token: nothing would end an answer")
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return spec["model"]["vocab"][config["eos_token"]]
