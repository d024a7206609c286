"""Real SGLang on the CPU serves the drafts that eyas trains; a damaged one, or the wrong flag, accepts nothing.

SGLang drops unknown and missing names of a checkpoint in silence: an acceptance length of 1.00 is the only sign.
"""

import random
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ROOT, SMOLLM2_GGUF
from eyas.capture import capture_shard
from eyas.config import Evaluation, Generation, Sglang, Target, load
from eyas.corpus import build_corpus
from eyas.deployment import CHECK
from eyas.eagle3.export import check_export
from eyas.eagle3.products import rms_norm
from eyas.eagle3.propose import Proposer
from eyas.eagle3.train import Folders, train
from eyas.errors import EyasError
from eyas.evaluation.acceptance import Acceptance
from eyas.evaluation.engines import Places, drafted_by, try_draft
from eyas.evaluation.prompts import Asked
from eyas.evaluation.served import Served, lines_of
from eyas.evaluation.summary import agreement, disagreement, summarize
from eyas.evaluation.sweep import sweep_summary, swept
from eyas.records import write_json
from eyas.states import shard_path
from eyas.target.embedded import Embedded
from eyas.target.engine import Request
from eyas.target.head import Head, extract_head
from eyas.target.launch import Drafting
from eyas.vocabulary import build_vocabulary
from sglang_server import PYTHON, SglangCpu, cpu_env, cpu_flags, require_sglang_cpu, shared_model
from test_capture import opened, settings_for, target_of
from test_corpus import SETTINGS, record, write

pytestmark = pytest.mark.xdist_group("sglang")  # one real server at a time

CONFIG = load([ROOT / "config/demo.yaml"])
LAYERS, PROMPTS, HELDOUT, TOKENS = (2, 15, 27), 72, 8, 48
TOPICS = "rivers bees bread trains stars winter music maps salt bridges clocks gardens".split()
ASKED = (
    "Explain in a few sentences what {} are and why they matter.",
    "Write a short story about {} and a child.",
    "List five facts about {}.",
    "What would you tell a friend about {}?",
    "How do {} change over a year? Answer step by step.",
    "Write a Python function that counts {} in a text.",
    "Compare {} with something else, in simple words.",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    require_sglang_cpu()
    return shared_model(SMOLLM2_GGUF, tmp_path_factory)


@pytest.fixture(scope="module")
def trained(model, smollm2, tmp_path_factory):
    """(folder of a draft for SmolLM2, prompts that it was not trained on): greedy answers, captured and learned."""
    folder = tmp_path_factory.mktemp("trained")
    asked = [a.format(topic) for topic in TOPICS for a in ASKED]
    random.Random(0).shuffle(asked)
    chat = [smollm2.format.prompt([{"role": "user", "content": text}]) for text in asked[: PROMPTS + HELDOUT]]
    prompts = [ids for ids, _ in smollm2.encode(chat)]
    engine = Embedded(model, device="cpu", layers=LAYERS)
    sampling = Generation(temperature=0, max_new_tokens=TOKENS, concurrency=32)
    requests = [Request(str(k), ids) for k, ids in enumerate(prompts[:PROMPTS])]
    answers = {answer.id: answer.output_ids for answer in engine.generate(requests, sampling)}
    records = [record("A", k, ids, answers[str(k)]) for k, ids in enumerate(prompts[:PROMPTS])]
    source = write(folder, "A", records, vocabulary=49152, tokenizer=smollm2.fingerprint)
    build_corpus({**SETTINGS, "max_tokens": 512, "heldout": 0.05}, [source], folder / "corpus")
    vocabulary = {"size": 512, "ladder": [], "warm_start": None, "warm_start_revision": None}
    build_vocabulary(vocabulary, folder / "corpus", folder / "draft_vocab")
    extract_head(target_of(model), folder / "head.safetensors")
    head = Head.load(folder / "head.safetensors")
    settings = {**settings_for(head), **{k: v for k, v in CONFIG.train_settings().items() if k in ("draft", "train")}}
    settings["capture"] |= {"shards": 1, "heldout_shards": 1}
    settings["train"] |= {"max_minutes": None, "epochs": 25, "batch_tokens": 1024, "evaluate_every": 1000}
    for split in ("train", "heldout"):
        out = shard_path(folder / "hidden_states" / split, 0, 1)
        capture_shard(settings, folder / f"corpus/{split}.parquet", LAYERS, head, 0, 1, lambda: opened(engine), out)
    places = ("hidden_states", "corpus", "draft_vocab/map.safetensors", "head.safetensors")
    train(settings, Folders(*(folder / place for place in places), model, folder / "state", folder / "draft"))
    return folder / "draft", prompts[PROMPTS:]


BACKENDS = ("prefill-attention-backend", "decode-attention-backend", "speculative-draft-attention-backend")


def served(model, draft, algorithm="EAGLE3"):
    """Flags of a server that speculates three tokens ahead."""
    return {
        **{"attention-backend": None, **dict.fromkeys(BACKENDS, "intel_amx"), "max-running-requests": 4},
        **{"speculative-algorithm": algorithm, "speculative-draft-model-path": str(draft)},
        **{"speculative-num-steps": 3, "speculative-eagle-topk": 1, "speculative-num-draft-tokens": 4},
    }


def answered(model, draft, prompts, folder, algorithm="EAGLE3"):
    """The server's answer to each prompt."""
    with SglangCpu(model, folder / f"{draft.name}-{algorithm}.log", served(model, draft, algorithm)) as server:
        return [ask(server, ids) for ids in prompts]


def ask(server, ids):
    asked = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS}}
    status, answer = server.post("/generate", asked)
    assert status == 200, answer
    return answer


def gain(answers):
    """Accepted tokens of the draft for each verification; the token that prefill gives for free is not counted."""
    tokens = sum(a["meta_info"]["completion_tokens"] - 1 for a in answers)
    return tokens / sum(a["meta_info"]["spec_verify_ct"] for a in answers) - 1


@pytest.fixture(scope="module")
def sound(model, trained, tmp_path_factory):
    """Answers with the draft as it should be, and what deploy/check says of that server at two floors."""
    (draft, prompts), folder = trained, tmp_path_factory.mktemp("sound")
    with SglangCpu(model, folder / "server.log", served(model, draft)) as server:
        answers = [ask(server, ids) for ids in prompts]
        return answers, {floor: checked(server, prompts, floor, folder) for floor in (1.05, 3.9)}


def shared_start(a, b):
    """How many tokens two answers have in common before they part."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def without(draft, name, folder):
    """A copy of the draft whose file lacks one tensor."""
    copy = folder / f"without-{name}"
    shutil.copytree(draft, copy)
    tensors = load_file(copy / "model.safetensors")
    del tensors[name]
    save_file(tensors, copy / "model.safetensors")
    return copy


def checked(server, prompts, floor, folder, with_draft=True):
    """(exit code, what it said) of deploy/check."""
    shutil.copyfile(CHECK, folder / "check")
    asked = {"floor": floor, "with_draft": with_draft, "max_new_tokens": TOKENS, "prompts": prompts[:4]}
    write_json(folder / "prompts.json", asked)
    done = subprocess.run([sys.executable, folder / "check", server.url], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_the_check_of_a_running_server_tells_a_good_draft_from_a_poor_one(sound):
    (code, said), (poor, said_poor) = sound[1].values()
    assert code == 0 and said.startswith("acceptance length 1."), said
    assert poor == 1 and "expected 3.90 or more" in said_poor, said_poor


def test_sglang_accepts_what_the_draft_proposes_on_prompts_it_never_saw(model, trained, sound, tmp_path):
    assert gain(sound[0]) > 0.1
    with SglangCpu(model, tmp_path / "plain.log", {"max-running-requests": 4}) as server:
        plain = [ask(server, ids)["output_ids"] for ids in trained[1]]
        code, said = checked(server, trained[1], 1.05, tmp_path)
        assert code == 1 and "serves without a draft" in said
        code, said = checked(server, trained[1], 1.05, tmp_path, with_draft=False)
        assert code == 0 and "launch_server.sh leaves the draft out" in said
    alike = [shared_start(a["output_ids"], b) for a, b in zip(sound[0], plain, strict=True)]
    assert sum(alike) > 0.4 * sum(map(len, plain)), "greedy answers are the target's own, up to a tie in bf16"


@pytest.mark.parametrize("name", ["lm_head.weight", "d2t"])
def test_a_tensor_that_is_missing_is_caught_and_would_cost_acceptance(model, trained, sound, tmp_path, name):
    draft, prompts = trained
    damaged = without(draft, name, tmp_path)
    with pytest.raises(EyasError, match=rf"{name}: missing; SGLang would serve without it and accept nothing"):
        check_export(damaged)
    assert gain(answered(model, damaged, prompts[:4], tmp_path)) < 0.6 * gain(sound[0][:4])


@pytest.fixture(scope="module")
def asked(trained):
    return [Asked(f"p{k}", "A", ids) for k, ids in enumerate(trained[1])]


@pytest.fixture(scope="module")
def settings(model):
    """Of an evaluation: eyas starts servers itself, as in a run."""
    flags = {"attention-backend": False, **dict.fromkeys(BACKENDS, "intel_amx")}
    wanted = {"max_new_tokens": TOKENS, "concurrency": (1, 4), "flags": flags}
    sglang = Sglang(python=str(PYTHON), flags=cpu_flags(), env=cpu_env(), gpus=0, idle_s=0)
    changes = {"engine": "sglang", "model": str(model), "weights": None, "sglang": sglang}
    target = Target.model_validate({**CONFIG.target.model_dump(), **changes})
    evaluation = Evaluation.model_validate(wanted)
    return {"evaluate": evaluation.model_dump(mode="json"), "target": target.model_dump(mode="json")}


@pytest.fixture(scope="module")
def places(model, trained, tmp_path_factory):
    draft = trained[0]
    return Places(draft, draft.parent / "head.safetensors", model, tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def walked(settings, asked, places):
    """By the reference."""
    return try_draft("walk", settings, asked, places)[0]


@pytest.fixture(scope="module")
def by_sglang(settings, asked, places):
    """(lines, rates) by real servers, with the draft and without it; their passes stay in places.state."""
    return try_draft("sglang", settings, asked, places)


def agrees(engine, lines, walked):
    """The acceptance lengths of an engine and of the reference over prompts whose greedy answers agree."""
    found = agreement(walked, lines)
    accepted = [(line["accepted"], own["accepted"]) for line, own in zip(lines[-len(walked) :], walked, strict=True)]
    assert found["answers"] >= 2 and found["it"] > 1.1, found
    assert disagreement(engine, found) == [], (found, accepted)


def test_the_reference_and_sglang_accept_alike(settings, asked, places, walked, by_sglang):
    """The engines differ by rounding, so some answers part at a tie."""
    lines, speed = by_sglang
    four = [line for line in lines if line["concurrency"] == 4]
    assert len(four) == len(asked) and {line["concurrency"] for line in lines} == {1, 4}
    agrees("sglang", lines, walked)
    evaluation = Evaluation.model_validate(settings["evaluate"])
    for line in lines:  # SGLang counts what the answer holds, up to what the last verification gave too many
        given = sum(n * (k + 1) for k, n in enumerate(line["accepted"]))
        assert 0 <= given - (len(line["output_ids"]) - 1) <= evaluation.chain
    summary = summarize(evaluation, {"sglang": lines}, places.draft, speed)
    assert set(summary["speedup"]["sglang"]) == {"1", "4"} and summary["verdict"]["engine"] == "sglang"
    assert all(rates["tokens_per_s"] > 0 for at in speed.values() for rates in at.values())


def test_a_sweep_tries_a_tree_on_the_real_server(settings, asked, places, by_sglang):
    """The chain and the target alone are not asked again."""
    wanted = {**settings["evaluate"], "sweep": {"chains": [3], "topk": [1, 2]}, "serving_concurrency": 4}
    evaluation = Evaluation.model_validate(wanted)
    tried, left_out = swept(evaluation, "sglang")
    assert [(d.chain, d.topk, d.verified) for d in tried] == [(3, 1, 4), (3, 2, 7)] and not left_out
    trials = [(d, try_draft("sglang", drafted_by(settings, d), asked, places, [4])[0]) for d in tried]
    summary = sweep_summary(evaluation, "sglang", 4, trials)
    chain, tree = summary["tried"]
    assert tree["draft_tokens"] == 7
    assert tree["acceptance_length"] > 0.95 * chain["acceptance_length"], "the tree has the second choices, too"
    alike = [
        shared_start(a["output_ids"], b["output_ids"]) for a, b in zip(*(lines for _, lines in trials), strict=True)
    ]
    assert sum(alike) > 0.4 * sum(len(line["output_ids"]) for line in trials[0][1]), "the target's own, up to a tie"
    assert summary["best"] in (chain, tree) and summary["sentence"]


def test_the_reference_and_llamacpp_accept_alike(settings, asked, places, walked):
    pytest.importorskip("xllamacpp")
    lines, _ = try_draft("llamacpp", settings, asked, places)
    agrees("llamacpp", lines, walked)
    for line in lines:
        given = sum(n * (k + 1) for k, n in enumerate(line["accepted"]))
        assert 0 <= given - (len(line["output_ids"]) - 1) <= 3
        assert line["seconds"] > 0 and shared_start(line["output_ids"], line["alone_ids"]) > 0
    assert not list((places.state / "evaluation/llamacpp").iterdir()), "what was converted is removed"


def other_order(tensors):
    """As if low and high layer had changed places."""
    low, mid, high = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat([high, mid, low], 1)


def dropped_d2t(tensors):
    """As if the draft's ids were the target's."""
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])
    tensors["t2d"] = torch.arange(len(tensors["t2d"])) < len(tensors["d2t"])


def random_lm_head(tensors):
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = (
        torch.randn(head.shape, generator=torch.Generator().manual_seed(0)).to(head) * head.std()
    )


def other_states(tensors):
    """The file is sound: what goes on from one token to the next is the state after the norm, not before it."""


@pytest.mark.parametrize("fault", [other_order, dropped_d2t, random_lm_head, other_states])
def test_the_agreement_check_catches_each_planted_fault(settings, asked, places, walked, tmp_path, fault, monkeypatch):
    """An engine that feeds the draft otherwise, or has another draft, answers the same and accepts less."""
    draft = tmp_path / "draft"
    shutil.copytree(places.draft, draft)
    tensors = load_file(draft / "model.safetensors")
    fault(tensors)
    save_file(tensors, draft / "model.safetensors")
    if fault is other_states:
        layer = Proposer._layer

        def normed(self, *args):
            return rms_norm(layer(self, *args), self.draft.config.rms_norm_eps)[0] * self.draft.norm.weight

        monkeypatch.setattr(Proposer, "_layer", normed)
    (tmp_path / "evaluation").mkdir()
    for path in places.state.glob("evaluation/alone-*.json"):
        shutil.copy(path, tmp_path / "evaluation")
    lines, _ = try_draft("walk", settings, asked[:5], replace(places, draft=draft, state=tmp_path))
    alone = [[line["alone_ids"], line["alone_seconds"]] for line in (*lines, *walked[:5])]
    assert alone[:5] == alone[5:], "what the target alone answered was kept"
    found = agreement(walked, lines)
    assert found["answers"] == len(lines), "the answers are the target's own"
    assert [finding["kind"] for finding in disagreement("sglang", found)] == ["engines"], found
    lenient = Evaluation.model_validate({**settings["evaluate"], "min_acceptance": 1.0})
    kinds = [finding["kind"] for finding in summarize(lenient, {"walk": lines}, draft)["findings"]]
    assert "gap" in kinds or fault is other_states, "the training had simulated more"


def test_the_wrong_flag_is_seen_when_it_is_served_for_real(model, settings, asked, places, walked, by_sglang, tmp_path):
    """What EAGLE accepts, it accepts in silence: the evaluation fails, and names the flag first."""

    @contextmanager
    def wrong(drafting):
        assert drafting is not None, "the server without a draft was asked before"
        with SglangCpu(model, tmp_path / "wrong.log", served(model, places.draft, "EAGLE")) as server:
            yield server

    every = {4: asked}
    passes = [
        Served(settings, places.draft, folder, wrong).passes(drafting, every)
        for folder, drafting in ((tmp_path, Drafting.whole(3)), (places.state / "evaluation", None))
    ]
    lines = lines_of(every, *passes)
    wrong_gain, right_gain = (Acceptance.of(own).length - 1 for own in (lines, walked))
    assert wrong_gain < 0.6 * right_gain
    evaluation = Evaluation.model_validate({**settings["evaluate"], "min_acceptance": 1.0})
    with pytest.raises(EyasError, match=r"(?s)1\. another algorithm than EAGLE3 .* EAGLE: WRONG.*2\. the draft"):
        summarize(evaluation, {"sglang": lines}, places.draft)


def test_the_draft_on_the_disk_is_the_one_that_was_trained(trained):
    tensors = load_file(trained[0] / "model.safetensors")
    assert tensors["fc.weight"].dtype == torch.bfloat16 and tensors["t2d"].sum() == len(tensors["d2t"]) == 512
