"""The embedded engine answers as transformers does, whatever shares the batch; rows leave, others take their place."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="the embedded engine needs torch: install the workflow's environment")
transformers = pytest.importorskip("transformers")

from eyas.compute import bf16_is_fast  # noqa: E402
from eyas.config import Generation  # noqa: E402
from eyas.errors import EyasError  # noqa: E402
from eyas.target import embedded  # noqa: E402
from eyas.target.embedded import Embedded  # noqa: E402
from eyas.target.engine import Answer, Refusal, Request  # noqa: E402

VOCABULARY, NEW = 300, 70
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 63, 64, 89)  # around the smallest pen's 64, and into the next
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # so that answers do not fall into one token
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=20),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3, eos_token_id=2
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        **{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}, rotary_pct=0.5
    ),
}


def save_model(folder, config):
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("tiny"), CONFIGS["llama"]())


@pytest.fixture(scope="module")
def engine(tiny):
    return Embedded(tiny, stop_ids=set(), device="cpu")


def prompts(lengths=LENGTHS):
    dice = random.Random(3)
    return [Request(f"p{i}", [dice.randrange(3, VOCABULARY) for _ in range(n)]) for i, n in enumerate(lengths)]


def greedy(**changes):
    return Generation(**{"temperature": 0, "max_new_tokens": NEW, "concurrency": 64} | changes)


def ask(engine, requests, sampling):
    answers = list(engine.generate(requests, sampling))
    assert len(answers) == len({a.id for a in answers})
    return {a.id: a for a in answers}


def outputs(engine, requests, sampling):
    return {id: answer.output_ids for id, answer in ask(engine, requests, sampling).items()}


def one_by_one(folder, requests, new=NEW):
    """transformers' own greedy answers, each prompt alone; no token ends them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None
    answers = {}
    for request in requests:
        ids = torch.tensor([request.input_ids])
        mask = torch.ones_like(ids)
        full = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0)
        answers[request.id] = full[0, ids.shape[1] :].tolist()
    return answers


@pytest.fixture(scope="module")
def expected(tiny):
    answers = one_by_one(tiny, prompts())
    assert len({tuple(a) for a in answers.values()}) == len(LENGTHS)  # else a mix-up of rows could not be seen
    assert all(len(set(a)) > 5 for a in answers.values())
    return answers


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_greedy_answers_are_those_of_transformers(engine, expected, concurrency):
    assert outputs(engine, prompts(), greedy(concurrency=concurrency)) == expected


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gpt2", "gpt_neox"])
def test_one_loop_serves_other_architectures(tmp_path, name):
    folder = save_model(tmp_path, CONFIGS[name]())
    engine = Embedded(folder, stop_ids=set(), device="cpu")
    assert outputs(engine, prompts(), greedy(concurrency=5)) == one_by_one(folder, prompts())


def test_a_row_that_changes_pens_twice_keeps_its_keys(monkeypatch, tiny, expected):
    monkeypatch.setattr(embedded, "SMALLEST_PEN", 4)
    monkeypatch.setattr(embedded, "PLACES", 1)
    engine = Embedded(tiny, stop_ids=set(), device="cpu")
    assert outputs(engine, prompts(), greedy(concurrency=4)) == expected


def test_finished_rows_make_room_at_once_and_requests_are_taken_lazily(engine):
    taken, given, most, late = 0, 0, 0, 0

    def endless():
        nonlocal taken, most, late
        for i in itertools.count():
            taken += 1
            most = max(most, taken - given)
            late += given > 0
            yield Request(str(i), list(range(3, 4 + i % 7)))

    stops = Embedded.__new__(Embedded)
    stops.__dict__ = {**engine.__dict__, "stop_ids": frozenset(range(0, VOCABULARY, 20))}  # answers of unlike lengths
    for answer in stops.generate(endless(), greedy(concurrency=4)):
        given += 1
        assert isinstance(answer, Answer)
        if given == 30:
            break
    assert most == 4
    assert late >= 26


def test_a_free_place_is_filled_in_the_next_step(monkeypatch, engine):
    sizes = []
    step = Embedded._step

    def counting(self, pens, joining):
        rows, logits = step(self, pens, joining)
        sizes.append(len(rows))
        return rows, logits

    monkeypatch.setattr(Embedded, "_step", counting)
    ask(engine, prompts([250, 3, 3, 3, 3]), greedy(concurrency=2, max_new_tokens=20))
    # The first is cut by the context after 6 tokens: the others follow without a step that has one row only.
    assert sizes[:40] == [2] * 40


def test_many_prompts_join_in_several_steps(monkeypatch, engine, expected):
    monkeypatch.setattr(embedded, "PROMPT_TOKENS", 30)
    assert outputs(engine, prompts(), greedy()) == expected


def test_a_stop_token_ends_the_answer_and_belongs_to_it(tiny, expected):
    stop = {expected["p3"][4], expected["p7"][9]}
    answers = ask(Embedded(tiny, stop_ids=stop, device="cpu"), prompts(), greedy(concurrency=5))
    for id, whole in expected.items():
        cut = next((i + 1 for i, token in enumerate(whole) if token in stop), None)
        assert answers[id].output_ids == whole[:cut]
        assert answers[id].finish_reason == ("stop" if cut else "length")
        assert answers[id].seconds > 0
    assert {a.finish_reason for a in answers.values()} == {"stop", "length"}


def test_stop_tokens_come_from_the_generation_config(tmp_path):
    config = CONFIGS["llama"]()
    folder = save_model(tmp_path, config)
    transformers.GenerationConfig(eos_token_id=[5, 9]).save_pretrained(folder)
    assert Embedded(folder, device="cpu").stop_ids == {5, 9}


def test_a_model_without_a_stop_token_is_an_error_that_says_where_to_name_one(tmp_path):
    config = CONFIGS["llama"]()
    config.eos_token_id = None
    with pytest.raises(EyasError, match=r"generation_config\.json names no eos_token_id"):
        Embedded(save_model(tmp_path, config), device="cpu")


def test_an_answer_ends_with_the_context(tiny, expected):
    engine = Embedded(tiny, stop_ids=set(), device="cpu", context=60)
    answers = ask(engine, prompts(), greedy())
    assert answers["p8"] == Answer("p8", expected["p8"][:5], "length", answers["p8"].seconds)  # 55 + 5
    assert answers["p0"].output_ids == expected["p0"][:59]


def test_prompts_that_cannot_be_answered_are_refused_and_the_others_are_answered(tiny):
    engine = Embedded(tiny, stop_ids=set(), device="cpu", context=64)
    odd = [Request("empty", []), Request("outside", [3, VOCABULARY]), Request("negative", [-1])]
    answers = ask(engine, [*odd, *prompts()], greedy(concurrency=2, max_new_tokens=3))
    refused = {id: a.reason for id, a in answers.items() if isinstance(a, Refusal)}
    assert refused == {
        "p10": "prompt_too_long",  # 64 tokens: room for none
        "p11": "prompt_too_long",
        "empty": "refused",
        "outside": "refused",
        "negative": "refused",
    }
    assert len(answers) == 15
    assert len(answers["p9"].output_ids) == 1  # 63 tokens: room for one


def test_a_context_beyond_the_models_own_is_an_error(tiny):
    with pytest.raises(EyasError, match="own limit is 256"):
        Embedded(tiny, device="cpu", context=1000)


@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_sampled_answers_depend_on_seed_and_id_only(engine, top_p):
    sampling = greedy(temperature=1.0, top_p=top_p, max_new_tokens=20)
    whole = outputs(engine, prompts(), sampling)
    assert whole == outputs(engine, reversed(prompts()), sampling.model_copy(update={"concurrency": 3}))
    alone = prompts()[4]
    assert outputs(engine, [alone], sampling) == {"p4": whole["p4"]}
    assert outputs(engine, [Request("other", alone.input_ids)], sampling)["other"] != whole["p4"]
    assert outputs(engine, [alone], sampling.model_copy(update={"seed": 1}))["p4"] != whole["p4"]


def test_a_tiny_top_p_is_greedy(engine, expected):
    assert outputs(engine, prompts(), greedy(temperature=1.0, top_p=1e-6)) == expected


@pytest.mark.parametrize("head", [1, 4, 256])
@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.99999, 1.0])
def test_the_nucleus_is_the_fewest_tokens_that_have_top_p(head, top_p):
    torch.manual_seed(0)
    probabilities = (3 * torch.randn(3, 50)).softmax(-1)
    draws = torch.arange(4000) / 4000
    for row in probabilities:
        order = row.argsort(descending=True)
        kept = order[: int((row[order].cumsum(0) < top_p).sum()) + 1]
        expected = torch.zeros(50).scatter(0, kept, row[kept] / row[kept].sum())
        got = embedded._sample(row.expand(4000, -1), draws, top_p, head).bincount(minlength=50) / 4000
        assert (got - expected).abs().max() < 1e-3
        assert set(got.nonzero()[:, 0].tolist()) <= set(kept.tolist())


def test_an_error_of_the_requests_comes_through(engine):
    def broken():
        yield from prompts([3, 4])
        raise RuntimeError("the journal is gone")

    answers = engine.generate(broken(), greedy(concurrency=2, max_new_tokens=4))
    assert {next(answers).id, next(answers).id} == {"p0", "p1"}
    with pytest.raises(RuntimeError, match="the journal is gone"):
        next(answers)


@pytest.mark.skipif(not bf16_is_fast(torch.device("cpu")), reason="oneDNN has no bf16 on this CPU")
def test_packed_weights_compute_what_plain_ones_do(tmp_path, monkeypatch):
    config = transformers.Qwen2Config(**SHAPE)  # has biases
    torch.manual_seed(7)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    packed = Embedded(tmp_path, stop_ids=set(), device="cpu")
    assert sum(type(m) is embedded._PackedLinear for m in packed.model.modules()) == 2 * 7 + 1
    monkeypatch.setattr(embedded, "_pack", lambda model: None)
    plain = Embedded(tmp_path, stop_ids=set(), device="cpu")
    ids = torch.arange(40) * 7 % VOCABULARY
    row = embedded._Row("a", ids.tolist(), 41, 0.0, torch.Generator())
    logits = [engine._step({}, [row])[1] for engine in (packed, plain)]
    assert (logits[0] - logits[1]).norm() < 0.02 * logits[1].norm()


def test_attention_that_is_not_known_is_refused_when_it_loads(tmp_path, monkeypatch):
    config = transformers.Gemma2Config(**SHAPE, head_dim=16, sliding_window=20)  # has soft caps
    with pytest.raises(EyasError, match="set target.engine to sglang"):
        Embedded(save_model(tmp_path / "soft", config), device="cpu")
    # What no argument tells is found by comparing logits.
    scaled = embedded.F.scaled_dot_product_attention
    monkeypatch.setattr(
        embedded.F, "scaled_dot_product_attention", lambda *a, **k: scaled(*a, **k | {"scale": 0.9 * k["scale"]})
    )
    with pytest.raises(EyasError, match="logits differ from transformers' own"):
        Embedded(save_model(tmp_path / "plain", CONFIGS["llama"]()), device="cpu")


def test_a_model_without_an_attention_interface_is_refused(tmp_path):
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=64, n_layer=2, n_head=4)
    with pytest.raises(EyasError, match="set target.engine to sglang"):
        Embedded(save_model(tmp_path, config), device="cpu")


def test_a_folder_without_a_model_is_an_error_that_names_it(tmp_path):
    with pytest.raises(EyasError, match=f"target {tmp_path}: transformers cannot load it"):
        Embedded(tmp_path, device="cpu")
