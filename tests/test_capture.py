"""Shards are captured whole, by the embedded engine as Hugging Face computes the states; failures lose nothing."""

import json
import mmap
import random
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from conftest import ROOT
from eyas import storage
from eyas.capture import capture_shard, lengths_of, samples_of, shared_out
from eyas.compute import fast_dtype
from eyas.config import Generation, load
from eyas.corpus import build_corpus
from eyas.errors import EyasError
from eyas.layers import Shape, layers_of
from eyas.states import DISAGREES, Sample, Shard, ShardWriter, bytes_per_token
from eyas.states_encoding import as_bytes, decode
from eyas.target.capture_hook import CaptureHook
from eyas.target.embedded import Embedded
from eyas.target.engine import Refusal, Request
from eyas.target.head import Head, extract_head
from eyas.target.launch import Capturing, capturing_target, layer_flags
from test_corpus import SETTINGS, record, write
from waiting import until

CONFIG = load([ROOT / "config/demo.yaml"])
LAYERS, HIDDEN = (2, 4, 6), 32


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        **{"vocab_size": 500, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 9},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 2},
        initializer_range=0.3,  # so that answers do not fall into one token
    )
    target = transformers.AutoModelForCausalLM.from_config(config)
    torch.nn.init.uniform_(target.model.norm.weight, 0.2, 3.0)
    target.bfloat16().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(model, tmp_path_factory):
    """Prompts of random tokens, and what the model greedily says to them."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(1)
    prompts = [[rng.randrange(500) for _ in range(rng.randint(3, 20))] for _ in range(120)]
    engine = Embedded(model, device="cpu", stop_ids=set())
    sampling = Generation(temperature=0, max_new_tokens=30, concurrency=16)
    answers = {
        a.id: a.output_ids for a in engine.generate([Request(str(k), p) for k, p in enumerate(prompts)], sampling)
    }
    records = [record("A", k, prompt, answers[str(k)][: rng.randint(1, 30)]) for k, prompt in enumerate(prompts)]
    build_corpus(SETTINGS, [write(folder, "A", records)], folder / "corpus")
    return folder / "corpus/train.parquet"


@pytest.fixture(scope="module")
def head(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("head") / "head.safetensors"
    extract_head(target_of(model), out)
    return Head.load(out)


def target_of(model):
    return CONFIG.target.model_copy(update={"model": str(model), "weights": None})


@contextmanager
def opened(engine):
    yield engine


def settings_for(head, **capture):
    settings = CONFIG.capture_settings()
    settings["capture"] |= {"concurrency": 8, **capture}
    settings["target"]["model"] = head.metadata["model"]
    return {**settings, "greedy": ["A"]}


def capture(corpus, out, engine, head, shard=0, shards=1, **more):
    return capture_shard(settings_for(head, **more), corpus, LAYERS, head, shard, shards, lambda: opened(engine), out)


def embedded(model, layers=LAYERS):
    return Embedded(model, device="cpu", layers=layers)


def every_sample(corpus, shard=0, shards=1):
    return samples_of(corpus, np.flatnonzero(shared_out(lengths_of(corpus), shards) == shard))


def states_of(model, input_ids):
    """transformers' own, in the dtype that the engine computes in: aux [tokens, 3·H], last [tokens, H]."""
    dtype = fast_dtype(torch.bfloat16, torch.device("cpu"))
    target = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    with torch.inference_mode():
        states = target(torch.tensor([input_ids]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer][0] for layer in LAYERS], dim=-1), states[-1][0]


def likeness(a, b):
    """The lowest cosine of two rows, slot by slot."""
    a, b = (x.float().view(len(x), -1, HIDDEN) for x in (a, b))
    return torch.nn.functional.cosine_similarity(a, b, dim=-1).min().item()


def test_shards_share_the_samples_evenly(corpus):
    everything = every_sample(corpus)
    parts = [every_sample(corpus, k, 5) for k in range(5)]
    assert [s.id for part in parts for s in part] == [s.id for s in everything]
    tokens = [sum(len(s.input_ids) for s in part) for part in parts]
    assert max(tokens) - min(tokens) <= 2 * max(len(s.input_ids) for s in everything)
    many = [every_sample(corpus, k, 300) for k in range(300)]
    assert sum(map(len, many)) == len(everything) and any(not part for part in many)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_embedded_engine_captures_what_transformers_computes(corpus, model, head, tmp_path, dtype):
    stats = capture(corpus, tmp_path / "x.safetensors", embedded(model), head, dtype=dtype)
    shard = Shard(tmp_path / "x.safetensors")
    shard.verify()
    assert stats["samples"] == len(shard) > 80 and stats["quarantined"] == {"not_finite": [], "disagrees": []}
    assert stats["agreement"]["greedy"]["agreed"] > 0.9 * stats["agreement"]["greedy"]["checked"] > 500
    assert stats["tokens"] == len(shard.arrays["input_ids"])
    assert shard.metadata["layers"] == "2,4,6" and shard.metadata["tokenizer"] == "abc"
    offsets = shard.arrays["offsets"]
    for k in (0, 5, 40):
        rows = slice(offsets[k], offsets[k + 1])
        aux, last = states_of(model, shard.arrays["input_ids"][rows].tolist())
        assert likeness(decode(shard.arrays, "aux", rows), aux) > 0.999
        assert likeness(decode(shard.arrays, "last", rows), last) > 0.999


@pytest.mark.parametrize("wrong", [(1, 4, 6), (2, 5, 6), (2, 4, 7), (4, 2, 6)])
def test_a_wrong_layer_is_seen(corpus, model, head, tmp_path, wrong):
    capture(corpus, tmp_path / "x.safetensors", embedded(model, wrong), head, shards=20)
    shard = Shard(tmp_path / "x.safetensors")
    rows = slice(*shard.arrays["offsets"][:2])
    assert (
        likeness(decode(shard.arrays, "aux", rows), states_of(model, shard.arrays["input_ids"][rows].tolist())[0])
        < 0.999
    )


class Flaky:
    """An engine that gives up on some samples."""

    def __init__(self, engine, refuses=(), dies_after=None):
        self.engine, self.refuses, self.dies_after, self.asked = engine, refuses, dies_after, []

    def capture(self, requests, concurrency):
        for request in requests:
            self.asked.append(request.id)
            if len(self.asked) - 1 == self.dies_after:
                raise RuntimeError("power cut")
            if request.id in self.refuses:
                yield Refusal(request.id, "failed", "no answer")
            else:
                yield from self.engine.capture([request], concurrency)


def test_what_failed_is_asked_again_and_nothing_else(corpus, model, head, tmp_path):
    engine, path = embedded(model), tmp_path / "x.safetensors"
    with pytest.raises(EyasError, match=r"2 of .* were not captured; the others are kept(.|\n)*failed: no answer"):
        capture(corpus, path, Flaky(engine, refuses={"3", "7"}), head, shards=4)
    assert not path.exists()
    with pytest.raises(RuntimeError, match="power cut"):
        capture(corpus, path, Flaky(engine, dies_after=1), head, shards=4)
    last = Flaky(engine)
    capture(corpus, path, last, head, shards=4)
    assert last.asked == ["3", "7"], "what was not judged yet is not finished"
    Shard(path).verify()


class Bent(Embedded):
    """Writes other states of the last kind than it computes."""

    def __init__(self, *args, bend, **more):
        super().__init__(*args, **more)
        self.bend = bend

    def capture(self, requests, concurrency):
        for request in requests:
            results = list(super().capture([request], 1))
            start, row_bytes = request.slot.places["last"]
            with open(request.slot.path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                stop = start + request.slot.rows * row_bytes
                rows = torch.frombuffer(bytearray(mapped[start:stop]), dtype=torch.bfloat16).view(-1, HIDDEN)
                mapped[start:stop] = bytes(as_bytes({"": self.bend(rows, request).contiguous()})[""])
            yield from results


def bent(model, bend):
    return Bent(model, device="cpu", layers=LAYERS, bend=bend)


def test_too_many_states_that_are_not_finite_fail_the_shard(corpus, model, head, tmp_path):
    engine = bent(model, lambda rows, _: rows * float("nan"))
    with pytest.raises(EyasError, match=r"samples have states that are not finite .*capture\.max_quarantined"):
        capture(corpus, tmp_path / "x.safetensors", engine, head)
    stats = capture(corpus, tmp_path / "x.safetensors", engine, head, max_quarantined=1.0)
    assert len(stats["quarantined"]["not_finite"]) == stats["samples"]


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (lambda rows, _: rows.roll(1, 0), "looks like the one of the position before it"),
        (lambda rows, _: rows.roll(-1, 0), "looks like the one of the position after it"),
        (lambda rows, _: -rows, "different models or revisions"),
        (lambda rows, _: rows.roll(1, 0) * 3, "look like those before it"),
    ],
    ids=["a position late", "a position early", "another model", "another size"],
)
def test_states_that_disagree_with_the_text_fail_the_shard_and_say_why(corpus, model, head, tmp_path, bend, said):
    with pytest.raises(EyasError, match=rf"lm_head proposes .* of greedy answers \(capture\.min_agreement\): .*{said}"):
        capture(corpus, tmp_path / "x.safetensors", bent(model, bend), head)
    assert not (tmp_path / "x.safetensors").exists()
    capture(corpus, tmp_path / "x.safetensors", embedded(model), head)  # all are captured again
    Shard(tmp_path / "x.safetensors").verify()


def test_states_from_before_the_final_norm_are_told_by_their_size(corpus, model, head, tmp_path):
    """Their first choice under lm_head is often the same: agreement alone would let them pass."""
    norm = head.norm.float()
    engine = bent(model, lambda rows, _: (4.0 * rows.float() / norm).bfloat16())
    with pytest.raises(EyasError, match="they look like those before it"):
        capture(corpus, tmp_path / "x.safetensors", engine, head, min_agreement=0.0)


def test_a_sample_that_disagrees_is_set_aside_and_counted(corpus, model, head, tmp_path):
    samples = every_sample(corpus)
    victim = max(range(len(samples)), key=lambda k: samples[k].loss_mask.sum())
    engine = bent(model, lambda rows, request: -rows if request.id == str(victim) else rows)
    with pytest.raises(EyasError, match=rf"1 of .* do not agree .*e\.g\. {samples[victim].id}"):
        capture(corpus, tmp_path / "x.safetensors", engine, head)
    stats = capture(corpus, tmp_path / "x.safetensors", engine, head, max_quarantined=0.02)
    assert stats["quarantined"] == {"not_finite": [], "disagrees": [samples[victim].id]}
    assert np.flatnonzero(Shard(tmp_path / "x.safetensors").arrays["status"] == DISAGREES).tolist() == [victim]


def test_sampled_answers_may_agree_less(corpus, model, head, tmp_path):
    """Every third state is another's: too few for greedy answers, and what sampling may well do."""

    def bend(rows, _):
        rows[::3] *= -1
        return rows

    with pytest.raises(EyasError, match="of greedy answers"):
        capture(corpus, tmp_path / "x.safetensors", bent(model, bend), head)
    settings = {**settings_for(head), "greedy": []}
    out, engine = tmp_path / "x.safetensors", bent(model, bend)
    stats = capture_shard(settings, corpus, LAYERS, head, 0, 1, lambda: opened(engine), out)
    assert 0.5 < stats["agreement"]["sampled"]["agreed"] / stats["agreement"]["sampled"]["checked"] < 0.8


def test_a_head_of_another_target_is_refused(corpus, model, head, tmp_path):
    settings = settings_for(head)
    settings["target"]["model"] = "other"
    with pytest.raises(EyasError, match=r"expected other and 500 or more.*--force target/head\.safetensors"):
        capture_shard(settings, corpus, LAYERS, head, 0, 1, lambda: opened(None), tmp_path / "x.safetensors")


def test_a_disk_that_cannot_hold_the_states_is_told_before_they_are_captured(corpus, head, tmp_path, monkeypatch):
    tokens = int(lengths_of(corpus).sum())
    per_token = bytes_per_token(HIDDEN, 3, "bf16")
    free = tokens * per_token * 7 // 10
    monkeypatch.setattr(storage, "free_bytes", lambda folder: free)
    said = r"10 shards need .* are free: capture\.dtype: fp8 needs .* which fits; or capture\.window: 6 keeps"
    with pytest.raises(EyasError, match=said):
        capture(corpus, tmp_path / "x.safetensors", None, head, shards=10)
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_layers_come_from_the_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": 61, "hidden_size": 7168}}))
    shape = Shape.of(tmp_path / "none", tmp_path)
    assert layers_of(shape, None) == (2, 30, 58) and shape.hidden == 7168
    assert layers_of(shape, (3, 4, 5)) == (3, 4, 5)
    for wrong in ((0, 4, 5), (5, 4, 6), (3, 4, 61)):
        with pytest.raises(EyasError, match="61 layers: expected three that go up"):
            layers_of(shape, wrong)
    with pytest.raises(EyasError, match=r"\[2, 2, 1\] of a target with 4 layers.*set capture\.layers"):
        layers_of(Shape(4, 8, ""), None)
    with pytest.raises(EyasError, match=r"add config\.json to target\.tokenizer\.files"):
        Shape.of(tmp_path / "none")


def test_the_servers_numbers_of_the_layers():
    for architecture, expected in (
        ("LlamaForCausalLM", ["2", "14", "26"]),
        ("DeepseekV3ForCausalLM", ["3", "15", "27"]),
        ("KimiK25ForConditionalGeneration", ["3", "15", "27"]),
    ):
        assert layer_flags(Capturing((3, 15, 27), False, architecture, {})) == expected
        assert layer_flags(Capturing((2, 15, 27), True, architecture, {})) is None
    with pytest.raises(EyasError, match="start at 2"):
        layer_flags(Capturing((1, 15, 27), False, "DeepseekV3ForCausalLM", {}))


def test_a_capturing_server_keeps_the_users_flags_and_adds_its_own(tmp_path):
    own = {"flags": {"tp": 8, "chunked_prefill_size": 4096}, "env": {"PYTHONPATH": "/x"}}
    target = CONFIG.target.model_copy(update={"sglang": CONFIG.target.sglang.model_copy(update=own)})
    served = capturing_target(target, Capturing(LAYERS, True, "", {"chunked-prefill-size": 8192}), tmp_path).sglang
    assert served.flags["chunked-prefill-size"] == 8192 and served.flags["tp"] == 8
    assert served.flags["speculative-algorithm"] == "EAGLE3" and served.flags["disable-radix-cache"] is True
    assert served.env["PYTHONPATH"] == f"{ROOT / 'scripts'}:/x"
    assert json.loads(served.flags["forward-hooks"])[0]["config"] == {"tickets": str(tmp_path)}


# The hook, called as a server's logits processor calls it; the real one runs in test_sglang_cpu.


def prefilled(rids, firsts, counts):
    return SimpleNamespace(
        **{"rids": rids, "extend_prefix_lens_cpu": firsts, "extend_seq_lens_cpu": counts},
        forward_mode=SimpleNamespace(is_extend=lambda: True),
    )


@pytest.mark.parametrize("packed", [False, True], ids=["a list, as Llama's", "one tensor, as Kimi's"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_hook_joins_chunks_of_several_prompts(tmp_path, packed, dtype):
    hidden, lengths = 8, {"a": 7, "b": 5}
    samples = [Sample(k, "D", np.arange(n, dtype=np.int32), np.ones(n, dtype=np.uint8)) for k, n in lengths.items()]
    whole = {k: torch.randn(n, 4 * hidden).bfloat16() for k, n in lengths.items()}  # aux and last side by side
    hook = CaptureHook(tmp_path)
    hook.rank = 0
    with ShardWriter(tmp_path / "x.safetensors", samples, hidden, {}, encoding=dtype) as writer:
        for k, name in enumerate(lengths):
            (tmp_path / f"{name}.json").write_text(json.dumps(vars(writer.slot(k))))
        # a's first four rows; then a's rest beside b, and a request without a ticket.
        for rids, firsts, counts in ((["a"], [0], [4]), (["a", "other", "b"], [4, 0, 0], [3, 2, 5])):
            rows = [
                whole[r][f : f + n] if r in whole else torch.zeros(n, 4 * hidden).bfloat16()
                for r, f, n in zip(rids, firsts, counts, strict=True)
            ]
            flat = torch.cat([*rows, torch.zeros(3, 4 * hidden).bfloat16()])  # padded, as graphs do
            aux = flat[:, : 3 * hidden] if packed else list(flat[:, : 3 * hidden].split(hidden, dim=-1))
            hook(None, (None, flat[:, 3 * hidden :], None, prefilled(rids, firsts, counts), aux), None)
            flat.zero_()  # the model reuses its memory at once
        for name in lengths:
            until((tmp_path / f"{name}.done").exists)
        assert not list(tmp_path.glob("*.failed"))
        found = torch.cat([decode(writer.arrays, name, slice(None)) for name in ("aux", "last")], dim=-1)
    expected = torch.cat(list(whole.values()))
    assert torch.equal(found, expected) if dtype == "bf16" else torch.allclose(found, expected, rtol=0.07, atol=0.01)


def test_the_hook_tells_who_asked_when_it_cannot_write(tmp_path):
    hook = CaptureHook(tmp_path)
    hook.rank = 0
    slot = {"path": str(tmp_path / "none"), "rows": 2, "places": {"aux": [0, 12], "last": [48, 4]}}
    (tmp_path / "a.json").write_text(json.dumps(slot))
    states = torch.zeros(2, 2).bfloat16()
    hook(None, (None, states, None, prefilled(["a"], [0], [2]), [states] * 3), None)
    until((tmp_path / "a.failed").exists)
    assert "FileNotFoundError" in (tmp_path / "a.failed").read_text()


def test_other_ranks_and_decode_steps_write_nothing(tmp_path):
    states, batch = torch.zeros(2, 2).bfloat16(), prefilled(["a"], [0], [2])
    hook = CaptureHook(tmp_path)
    hook.rank = 1
    hook(None, (None, states, None, batch, [states] * 3), None)
    hook.rank = 0
    batch.forward_mode.is_extend = lambda: False
    (tmp_path / "a.json").write_text("not read")
    hook(None, (None, states, None, batch, [states] * 3), None)
    assert hook.queue.empty() and not hook.open
