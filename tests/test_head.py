"""The target's head is copied as it is, whatever the file calls it; what it is for, and what it lacks, is said."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ROOT
from eyas.config import Sglang, load
from eyas.errors import EyasError
from eyas.target import head as head_module
from eyas.target.head import Head, extract_head
from stand_in_hub import StandInHub

CONFIG = load([ROOT / "config/demo.yaml"])
V, H = 37, 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(head_module, "BLOCK_ROWS", 10)


def tensors(**names):
    """Tensors of a model that are wanted, and others that have like names."""
    torch.manual_seed(0)
    shapes = {"embed_tokens": (V, H), "lm_head": (V, H), "norm": (H,)}
    wanted = {name: torch.randn(shapes[part]).bfloat16() for part, name in names.items()}
    others = {
        "language_model.model.layers.61.embed_tokens.weight": torch.zeros(V, H),
        "model.layers.0.input_layernorm.weight": torch.zeros(H),
        "vision_tower.encoder.norm.weight": torch.zeros(H),
        "model.layers.0.mlp.norm.weight": torch.zeros(H),
    }
    return wanted, {**others, **wanted}


def write_model(folder, files, **config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        save_file(content, folder / name)
    if len(files) > 1:
        of = {tensor: name for name, content in files.items() for tensor in content}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": of}))
    return folder


def target(model, **flags):
    changes = {"model": str(model), "weights": None, "sglang": Sglang(flags=flags)}
    return CONFIG.target.model_copy(update=changes)


KIMI = {
    "embed_tokens": "language_model.model.embed_tokens.weight",
    "lm_head": "language_model.lm_head.weight",
    "norm": "language_model.model.norm.weight",
}
LLAMA = {"embed_tokens": "model.embed_tokens.weight", "lm_head": "lm_head.weight", "norm": "model.norm.weight"}


@pytest.mark.parametrize("names", [KIMI, LLAMA], ids=["Kimi", "Llama"])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_tensors_are_copied_bit_for_bit(tmp_path, names, parts):
    wanted, content = tensors(**names)
    keys = sorted(content)
    files = {f"model-{k}.safetensors": {n: content[n] for n in keys[k::parts]} for k in range(parts)}
    if parts == 1:
        files = {"model.safetensors": content}
    extract_head(target(write_model(tmp_path / "model", files)), tmp_path / "head.safetensors")
    found, head = load_file(tmp_path / "head.safetensors"), Head.load(tmp_path / "head.safetensors")
    assert dict.fromkeys(names, True) == {part: torch.equal(found[part], wanted[name]) for part, name in names.items()}
    assert (head.vocabulary, head.hidden) == (V, H) and torch.equal(head.lm_head, wanted[names["lm_head"]])
    assert head.metadata["model"] == str(tmp_path / "model")


def test_a_tied_head_is_the_embeddings(tmp_path):
    _, content = tensors(**{k: v for k, v in LLAMA.items() if k != "lm_head"})
    model = write_model(tmp_path / "model", {"model.safetensors": content}, text_config={"tie_word_embeddings": True})
    extract_head(target(model), tmp_path / "head.safetensors")
    head = Head.load(tmp_path / "head.safetensors")
    assert head.lm_head is head.embed_tokens and head.metadata["tied"] == "true"
    (model / "config.json").write_text("{}")
    with pytest.raises(EyasError, match=r"has no tensor lm_head\.weight, and its config\.json does not say"):
        extract_head(target(model), tmp_path / "head.safetensors")


def test_what_is_missing_or_damaged_is_named(tmp_path):
    with pytest.raises(EyasError, match=r"none/config\.json: cannot be downloaded .*correct target\.model, log in"):
        extract_head(target("nobody/none"), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EyasError, match=r"empty/config\.json: no such file: target\.model must name a model"):
        extract_head(target(tmp_path / "empty"), tmp_path / "out")
    _, content = tensors(**{k: v for k, v in LLAMA.items() if k != "embed_tokens"})
    content.pop("language_model.model.layers.61.embed_tokens.weight")
    with pytest.raises(EyasError, match=r"has no tensor embed_tokens\.weight"):
        extract_head(target(write_model(tmp_path / "a", {"model.safetensors": content})), tmp_path / "out")
    _, content = tensors(**LLAMA)
    content["lm_head.weight"] = torch.zeros(V, H, dtype=torch.int32)
    with pytest.raises(EyasError, match=r"lm_head\.weight is torch\.int32: only plain bf16, fp16 or fp32"):
        extract_head(target(write_model(tmp_path / "b", {"model.safetensors": content})), tmp_path / "out")
    damaged = write_model(tmp_path / "c", {"model.safetensors": content}) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(EyasError, match=r"no whole safetensors file .*bring it again"):
        extract_head(target(tmp_path / "c"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(EyasError, match=r"no weights of a target's head .*--force target/head\.safetensors"):
        Head.load(damaged)


def test_a_model_on_the_hub_comes_through_its_cache(tmp_path):
    """Only the files that hold the tensors are brought."""
    wanted, content = tensors(**KIMI)
    files = {
        "model-1.safetensors": {n: content[n] for n in content if n not in wanted},
        "model-2.safetensors": {KIMI["lm_head"]: wanted[KIMI["lm_head"]], KIMI["norm"]: wanted[KIMI["norm"]]},
        "model-3.safetensors": {KIMI["embed_tokens"]: wanted[KIMI["embed_tokens"]]},
    }
    write_model(tmp_path / "hub/owner/target", files)
    out = tmp_path / "head.safetensors"
    with StandInHub(tmp_path / "hub") as hub:
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache")}
        settings = target("owner/target").model_dump_json()
        command = [sys.executable, ROOT / "scripts/fetch_head.py", "--out", out, "--settings", settings]
        subprocess.run(command, env=env, check=True, timeout=120)
        asked = {r.path.rsplit("/", 1)[-1] for r in hub.requests if r.method == "GET"}
    assert "model-1.safetensors" not in asked and {"model-2.safetensors", "model-3.safetensors"} <= asked
    assert torch.equal(Head.load(out).lm_head, wanted[KIMI["lm_head"]])
