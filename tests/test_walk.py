"""A draft changes how fast the target answers, never what it answers."""

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import transformers  # noqa: E402

from eyas.config import Generation  # noqa: E402
from eyas.eagle3.model import Draft, DraftConfig  # noqa: E402
from eyas.eagle3.propose import Proposer  # noqa: E402
from eyas.evaluation.walk import CachedTarget, answer_alone, walk  # noqa: E402
from eyas.vocabulary import maps_of  # noqa: E402

VOCABULARY, LAYERS, CONTEXT = 8, (1, 3, 4), 96  # so few tokens that a random draft is right now and then
CHAIN = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, eos_token_id=7, bos_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("target")
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return CachedTarget(folder, LAYERS, device="cpu")


@pytest.fixture(scope="module")
def proposer(target):
    config = DraftConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        vocab_size=VOCABULARY, draft_vocab_size=6, max_position_embeddings=CONTEXT, aux_layers=LAYERS,
    )  # fmt: skip
    d2t, t2d = maps_of(np.array([0, 1, 3, 4, 6, 7]), VOCABULARY)
    head = target.model.lm_head.weight.detach()
    embeddings = target.model.get_input_embeddings().weight.detach()
    draft = Draft.from_target(config, embeddings, head, torch.from_numpy(d2t), torch.from_numpy(t2d), seed=5)
    return Proposer(draft.requires_grad_(False), CONTEXT + CHAIN)


def prompts(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(7, (3 + k % 9,), generator=generator).tolist() for k in range(count)]


def test_greedy_answers_are_the_target_s_own(target, proposer):
    sampling, total = Generation(temperature=0, max_new_tokens=40), Counter()
    for k, prompt in enumerate(prompts(12)):
        alone, _ = answer_alone(target, prompt, str(k), sampling)
        found = walk(target, proposer, prompt, str(k), sampling, CHAIN)
        assert found.output_ids == alone
        given = 1 + sum(n * (a + 1) for a, n in enumerate(found.accepted))
        assert len(alone) <= given <= len(alone) + CHAIN + 1, "the last step may give more than is kept"
        total.update(dict(enumerate(found.accepted)))
    assert min(total[a] for a in range(CHAIN + 1)) > 0, f"every number of accepted drafts occurs: {total}"


def test_an_answer_ends_at_the_stop_token_and_at_its_most(target, proposer):
    lengths = set()
    for most in (1, 2, 5, 200):
        for k, prompt in enumerate(prompts(6, seed=1)):
            found = walk(target, proposer, prompt, str(k), Generation(temperature=0, max_new_tokens=most), CHAIN)
            assert 7 not in found.output_ids[:-1] and 1 <= len(found.output_ids) <= most
            assert len(prompt) + len(found.output_ids) <= CONTEXT
            lengths.add(found.output_ids[-1] == 7)
    assert lengths == {True, False}


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8)])
def test_sampled_answers_come_from_the_target_s_distribution(target, proposer, temperature, top_p):
    """Of the first three tokens: those of 600 walks against as many answers of the target alone."""
    sampling, draws = Generation(temperature=temperature, top_p=top_p, max_new_tokens=3), 600
    (prompt,) = prompts(1, seed=4)
    counts, accepted = [Counter(), Counter()], 0
    for k in range(draws):
        found = walk(target, proposer, prompt, f"w{k}", sampling, CHAIN)
        accepted += sum(a * n for a, n in enumerate(found.accepted))
        counts[0][tuple(found.output_ids)] += 1
        counts[1][tuple(answer_alone(target, prompt, f"a{k}", sampling)[0])] += 1
    assert accepted > 0.1 * draws, "drafts are accepted, or nothing is tested"
    # Two samples of one distribution: χ² over the answers that are frequent enough, the rest together.
    frequent = [a for a in counts[0] | counts[1] if counts[0][a] + counts[1][a] >= 20]
    pairs = [(counts[0][a], counts[1][a]) for a in frequent]
    pairs.append((draws - sum(a for a, _ in pairs), draws - sum(b for _, b in pairs)))
    chi2 = sum((a - b) ** 2 / (a + b) for a, b in pairs if a + b)
    freedom = len(pairs) - 1
    assert freedom >= 3 and chi2 < freedom + 5 * (2 * freedom) ** 0.5, f"{chi2:.1f} with {freedom} degrees of freedom"
