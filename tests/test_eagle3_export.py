"""What is exported is what SGLang needs; every kind of damage is found before it is served."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.eagle3.export import check_export, export, load_draft, probe_logits
from eyas.errors import EyasError
from test_eagle3_ttt import config, make_draft

NAMES = {
    "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", "embed_tokens.weight",
    "midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight", "midlayer.post_attention_layernorm.weight",
    "midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight", "midlayer.self_attn.v_proj.weight",
    "midlayer.self_attn.o_proj.weight", "midlayer.mlp.gate_proj.weight", "midlayer.mlp.up_proj.weight",
    "midlayer.mlp.down_proj.weight",
}  # fmt: skip


@pytest.fixture
def exported(tmp_path):
    draft, _ = make_draft(config())
    export(draft, tmp_path)
    return draft, tmp_path


def damage(folder, change):
    """Change the tensors of the file in place."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_the_export_has_exactly_the_names_shapes_and_dtypes(exported):
    draft, folder = exported
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == NAMES
    assert {str(x.dtype) for name, x in tensors.items() if name not in ("d2t", "t2d")} == {"torch.bfloat16"}
    assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
    assert torch.equal(tensors["embed_tokens.weight"], draft.embed_tokens.weight.bfloat16())
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json"}


def test_the_export_comes_back_bit_for_bit(tmp_path):
    draft, _ = make_draft(config(torch_dtype="float32"))
    export(draft, tmp_path)
    again = load_draft(tmp_path)
    assert torch.equal(probe_logits(again), probe_logits(draft))
    for name, tensor in draft.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_fc_norms_are_exported_under_sglang_s_names(tmp_path):
    draft, _ = make_draft(config(fc_norm=True))
    export(draft, tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == NAMES | {f"fc_norm.{k}.weight" for k in range(3)}
    assert json.loads((tmp_path / "config.json").read_text())["fc_norm"] is True


def test_the_aux_scale_is_folded_into_fc(tmp_path):
    draft, _ = make_draft(config(torch_dtype="float32"))
    draft.set_aux_scale(torch.tensor([0.5, 1.0, 32.0]))
    export(draft, tmp_path)
    assert torch.equal(load_draft(tmp_path).fc.weight, draft.folded_fc())


def test_embeddings_may_be_left_to_the_target(tmp_path):
    draft, _ = make_draft(config())
    export(draft, tmp_path, embeddings=False)
    assert set(load_file(tmp_path / "model.safetensors")) == NAMES - {"embed_tokens.weight"}
    with pytest.raises(EyasError, match="embed_tokens.weight: expected a tensor of shape \\[24, 12\\], found none"):
        load_draft(tmp_path)
    given = torch.randn(24, 12)
    assert torch.equal(load_draft(tmp_path, given).embed_tokens.weight, given)


@pytest.mark.parametrize("name", sorted(NAMES - {"embed_tokens.weight"}))
def test_a_missing_weight_is_found(exported, name):
    """SGLang drops it in silence and accepts nothing (sglang #27829)."""
    _, folder = exported
    damage(folder, lambda t: t.pop(name))
    with pytest.raises(EyasError, match=f"model.safetensors: {name}: missing"):
        check_export(folder)
    with pytest.raises(EyasError, match=f"model.safetensors: {name}: expected a tensor of shape"):
        load_draft(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(extra=torch.zeros(1)), "extra: not a name that SGLang loads"),
        (lambda t: t.update({"lm_head.weight": t["lm_head.weight"][1:].clone()}), "lm_head.weight: expected shape"),
        (lambda t: t.update({"norm.weight": t["norm.weight"].float()}), "norm.weight: expected dtype bfloat16"),
        (lambda t: t.update(d2t=t["d2t"].int()), "d2t: expected dtype int64, found I32"),
        (lambda t: t.update(d2t=t["d2t"] + torch.arange(15)), "d2t: keeps other tokens than t2d"),
    ],
)
def test_damage_to_the_file_is_found(exported, change, message):
    draft, folder = exported
    check_export(folder, draft)
    damage(folder, change)
    with pytest.raises(EyasError, match=message):
        check_export(folder)


def test_other_values_than_the_draft_s_are_found(exported):
    draft, folder = exported
    damage(folder, lambda t: t["midlayer.mlp.up_proj.weight"].mul_(1.01))
    check_export(folder)
    with pytest.raises(EyasError, match="midlayer.mlp.up_proj.weight: other values than the draft's"):
        check_export(folder, draft)


def test_a_changed_config_is_found(exported):
    draft, folder = exported
    config_json = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config_json | {"rope_theta": 5.0}))
    with pytest.raises(EyasError, match="config.json: expected"):
        check_export(folder, draft)
    (folder / "config.json").write_text(json.dumps(config_json | {"intermediate_size": 21}))
    with pytest.raises(EyasError, match="gate_proj.weight: expected shape \\[21, 12\\]"):
        check_export(folder)


def test_a_cut_off_file_is_never_loaded(exported):
    _, folder = exported
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    for function in (check_export, load_draft):
        with pytest.raises(EyasError, match="model.safetensors: cannot be read"):
            function(folder)


def test_weights_that_are_not_finite_are_not_published(exported):
    """And the draft that was there stays."""
    draft, folder = exported
    before = (folder / "model.safetensors").read_bytes()
    with torch.no_grad():
        draft.midlayer.mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(EyasError, match="up_proj.weight: expected finite numbers"):
        export(draft, folder)
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"vocab_size": 25}, "config.json: vocab_size: expected 25, as the target has it, found 24"),
        ({"target_hidden_size": 13}, "config.json: target_hidden_size: expected 13"),
        ({"layers": (1, 2, 4)}, "layers: expected \\[1, 2, 4\\], as the target has it, found \\[2, 3, 5\\]"),
    ],
)
def test_a_warm_start_of_another_target_is_refused(exported, known, message):
    _, folder = exported
    with pytest.raises(EyasError, match=message):
        load_draft(folder, **known)


def test_a_warm_start_keeps_the_map_and_takes_other_projects_names(exported):
    draft, folder = exported
    damage(
        folder,
        lambda t: [t.update({k.replace("midlayer.", "layers.0."): t.pop(k)}) for k in list(t) if "midlayer" in k],
    )
    again = load_draft(folder, vocab_size=24, target_hidden_size=12, layers=(2, 3, 5))
    assert torch.equal(again.d2t, draft.d2t) and torch.equal(again.t2d, draft.t2d)
    assert torch.equal(again.midlayer.mlp.up_proj.weight, draft.midlayer.mlp.up_proj.weight.bfloat16().float())
    assert all(p.dtype == torch.float32 for p in again.trainable().values())
    with pytest.raises(EyasError, match="layers.0"):
        check_export(folder)
