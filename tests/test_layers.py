"""The same tensors have several numbers; SGLang's own are tried in test_draft_sglang."""

import pytest

from eyas.errors import EyasError
from eyas.layers import architecture_of, layers_of_ids, sglang_ids


@pytest.mark.parametrize(
    ("architecture", "layers", "ids"),
    [
        ("LlamaForCausalLM", (2, 15, 27), (1, 14, 26)),
        ("LlamaForCausalLM", (1, 3, 5), (0, 2, 4)),
        ("Qwen3ForCausalLM", (2, 18, 33), (1, 17, 32)),
        ("KimiK25ForConditionalGeneration", (2, 30, 58), (2, 30, 58)),
        ("DeepseekV3ForCausalLM", (3, 30, 58), (3, 30, 58)),
    ],
)
def test_ids_are_those_that_make_sglang_take_the_layers(architecture, layers, ids):
    assert sglang_ids(layers, architecture) == ids and layers_of_ids(ids, architecture) == layers


def test_ids_of_a_kimi_draft_that_begin_with_1_are_one_less():
    assert layers_of_ids((1, 29, 57), "KimiK25ForConditionalGeneration") == (2, 30, 58)
    with pytest.raises(EyasError, match="SGLang cannot capture layer 1 of this target"):
        sglang_ids((1, 30, 58), "DeepseekV3ForCausalLM")


def test_the_architecture_may_not_be_named():
    assert architecture_of({"architectures": ["A", "B"]}) == "A" and architecture_of({"architectures": None}) == ""
