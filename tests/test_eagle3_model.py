"""The draft's configuration, RoPE and vocabulary."""

import json

import pytest
import torch

from eyas.eagle3.model import Draft, DraftConfig, aux_scale, fault_in_rope, rope_frequencies
from eyas.eagle3.supervision import Objective
from eyas.errors import EyasError
from test_eagle3_ttt import config, make_documents, make_draft, pack, run

YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64}
ROPES = {
    "none": None,
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": YARN,
    "yarn of DeepSeek": {**YARN, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.707},
    "yarn of Kimi": {**YARN, "type": "yarn", "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, not truncated": {**YARN, "truncate": False},
}


@pytest.mark.parametrize("name", ROPES)
def test_rope_equals_transformers(name):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    c = config(head_dim=32, max_position_embeddings=2560, rope_scaling=ROPES[name], rope_theta=50000.0)
    theirs = LlamaConfig(
        hidden_size=128, num_attention_heads=4, head_dim=32, max_position_embeddings=2560, rope_theta=50000.0,
        rope_scaling=dict(ROPES[name]) if ROPES[name] else None,
    )  # fmt: skip
    rotary = LlamaRotaryEmbedding(theirs)
    frequencies, factor = rope_frequencies(c)
    assert torch.allclose(frequencies, rotary.inv_freq, rtol=1e-6)
    assert factor == pytest.approx(rotary.attention_scaling)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "found 'longrope'"),
        ({"rope_type": "llama3", "factor": 2.0}, "llama3 needs low_freq_factor"),
        ({"rope_type": "linear", "factor": 2.0, "mscale": 1.0}, "linear has no mscale"),
        ({**YARN, "attention_factor": 3.0}, "attention_factor: SGLang derives 1.368888"),
    ],
)
def test_a_scaling_that_training_and_serving_would_read_differently_is_refused(scaling, message):
    assert message in fault_in_rope(scaling)
    with pytest.raises(EyasError, match="rope_scaling: "):
        config(rope_scaling=scaling)


@pytest.mark.parametrize("changes", [{}, {"rope_scaling": YARN, "fc_norm": True, "target_hidden_size": 40}])
def test_config_json_comes_back_as_it_was(changes):
    c = config(**changes)
    written = json.loads(json.dumps(c.to_json()))
    assert DraftConfig.from_json(written) == c
    assert written["eagle_config"] == {
        "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
        "use_aux_hidden_state": True,
    }
    assert written["architectures"] == ["LlamaForCausalLMEagle3"] and written["draft_vocab_size"] == 15
    assert written["tie_word_embeddings"] is False and written["num_hidden_layers"] == 1
    assert ("target_hidden_size" in written) == bool(changes)


def test_rope_parameters_of_transformers_5_are_read():
    written = config().to_json()
    del written["rope_theta"], written["rope_scaling"]
    read = DraftConfig.from_json(written | {"rope_parameters": {"rope_theta": 5e5, **ROPES["llama3"]}})
    assert read.rope_theta == 5e5 and read.rope_scaling == ROPES["llama3"]
    read = DraftConfig.from_json(written | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})
    assert read.rope_theta == 5e5 and read.rope_scaling is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures: expected LlamaForCausalLMEagle3"),
        ({"num_hidden_layers": 2}, "num_hidden_layers: expected 1, found 2"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: expected False"),
        ({"norm_output": True}, "norm_output: expected false"),
        ({"eagle_config": None}, "eagle_aux_hidden_state_layer_ids: missing"),
        ({"draft_vocab_size": None}, "missing or null"),
        ({"draft_vocab_size": 25}, "draft_vocab_size: at most the target's 24 tokens, found 25"),
    ],
)
def test_a_config_of_another_structure_is_refused(changes, message):
    with pytest.raises(EyasError, match=message):
        DraftConfig.from_json(config().to_json() | changes)


def test_layers_that_collide_are_refused():
    """The default formula gives 2, 2, 1 for a target of four layers."""
    with pytest.raises(EyasError, match="aux_layers: expected different layers, found \\[2, 2, 1\\]"):
        config(aux_layers=(2, 2, 1))


def test_a_fresh_draft_has_the_target_s_embeddings_and_kept_rows():
    c = config()
    embeddings, head = torch.randn(24, 12).bfloat16(), torch.randn(24, 12)
    d2t, t2d = make_draft(c)[0].d2t, make_draft(c)[0].t2d
    draft = Draft.from_target(c, embeddings, head, d2t, t2d)
    assert torch.equal(draft.embed_tokens.weight, embeddings) and not draft.embed_tokens.weight.requires_grad
    assert torch.equal(draft.lm_head.weight, head[t2d])
    assert set(draft.trainable()) == set(c.weight_shapes())
    again = Draft.from_target(c, embeddings, head, d2t, t2d)
    assert all(torch.equal(a, b) for a, b in zip(draft.state_dict().values(), again.state_dict().values(), strict=True))
    with pytest.raises(EyasError, match="the target's lm_head: expected \\[24, 12\\]"):
        Draft.from_target(c, embeddings, head[:, 1:], d2t, t2d)
    with pytest.raises(EyasError, match="d2t, t2d: expected 15 and 24 entries"):
        Draft.from_target(c, embeddings, head, d2t, torch.cat([t2d, t2d]))
    with pytest.raises(EyasError, match="d2t, t2d: they keep different tokens"):
        Draft.from_target(c, embeddings, head, d2t, ~t2d)


def test_scaled_aux_states_leave_the_draft_what_it_was():
    """Unit variance in, the scale folded into fc: same losses, and the exported fc is for states as they come."""
    c, objective = config(), Objective(steps=2)
    draft, head = make_draft(c)
    documents = make_documents(c, [9, 7])
    documents = [
        (i, m, aux * torch.tensor([0.1, 1.0, 23.0]).repeat_interleave(12), last) for i, m, aux, last in documents
    ]
    _, before, _ = run(draft, head, documents, objective)
    original = draft.fc.weight.detach().clone()
    scale = aux_scale(pack(documents).aux, 3)
    assert torch.allclose(scale / torch.tensor([0.1, 1.0, 23.0]), torch.ones(3), atol=0.2)
    draft.set_aux_scale(scale)
    _, after, gradients = run(draft, head, documents, objective)
    assert torch.allclose(before.sums, after.sums, rtol=1e-5)
    assert torch.allclose(draft.folded_fc(), original, rtol=1e-5)
    sizes = gradients["fc.weight"].unflatten(1, (3, 12)).norm(dim=(0, 2))
    assert sizes.max() < 3 * sizes.min()  # each layer's states now move fc alike
    with pytest.raises(EyasError, match="aux_scale: expected 3 positive numbers"):
        draft.set_aux_scale(torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(EyasError, match="fc_norm normalizes each aux state already"):
        make_draft(config(fc_norm=True))[0].set_aux_scale(scale)
