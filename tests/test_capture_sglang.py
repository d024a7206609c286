"""Real SGLang on the CPU captures what transformers computes: through the hook, in chunks, at the right layers."""

import shutil
from contextlib import contextmanager

import pytest
import torch

from conftest import ROOT, SMOLLM2_GGUF
from eyas.capture import capture_shard
from eyas.config import Generation, Sglang, Target, load
from eyas.corpus import build_corpus
from eyas.layers import Shape, layers_of
from eyas.states import Shard
from eyas.states_encoding import decode
from eyas.target.embedded import Embedded
from eyas.target.engine import Request
from eyas.target.head import Head, extract_head
from eyas.target.launch import Capturing, open_engine
from sglang_server import PYTHON, cpu_env, cpu_flags, require_sglang_cpu, shared_model
from test_capture import opened, settings_for
from test_corpus import SETTINGS, record, write

pytestmark = pytest.mark.xdist_group("sglang")  # one real server at a time

CONFIG = load([ROOT / "config/demo.yaml"])
VOCABULARY, HIDDEN = 49152, 576
LENGTHS = (4, 17, 40, 64, 65, 130, 200, 90, 33, 150)
ALIKE = 0.9999  # cosine of a token's states
CHUNK = 64  # tokens of one prefill; longer samples come in several


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """SmolLM2 in fp32: two engines in bf16 differ by rounding alone, down to a cosine of 0.9989 in single tokens."""
    from transformers import AutoModelForCausalLM

    require_sglang_cpu()
    original, folder = shared_model(SMOLLM2_GGUF, tmp_path_factory), tmp_path_factory.mktemp("fp32")
    shutil.copytree(original, folder, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    AutoModelForCausalLM.from_pretrained(original).float().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(smollm2, tmp_path_factory):
    """Samples of real text, of many lengths."""
    folder = tmp_path_factory.mktemp("corpus")
    text = [{"role": "user", "content": (ROOT / "README.md").read_text()}]
    ids = smollm2.encode([smollm2.format.prompt(text)])[0][0]
    records, at = [], 0
    for k, length in enumerate(LENGTHS):
        records.append(record("A", k, ids[at : at + 2], ids[at + 2 : at + length]))
        at += length
    source = write(folder, "A", records, vocabulary=VOCABULARY)
    build_corpus({**SETTINGS, "max_tokens": 512, "heldout": 0.0}, [source], folder / "corpus")
    return folder / "corpus/train.parquet"


@pytest.fixture(scope="module")
def head(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("head") / "head.safetensors"
    extract_head(CONFIG.target.model_copy(update={"model": str(model)}), out)
    return Head.load(out)


def capture(engine, corpus, layers, head, out):
    settings = {**settings_for(head, concurrency=4, min_agreement_sampled=0.1), "greedy": []}
    stats = capture_shard(settings, corpus, layers, head, 0, 1, engine, out)
    assert stats["agreement"]["sampled"]["checked"] > 200, "of a real text's tokens"
    shard = Shard(out)
    shard.verify()
    assert sorted(shard.arrays["offsets"][1:] - shard.arrays["offsets"][:-1]) == sorted(LENGTHS)
    return shard


def served(model, folder, explicit=None, replicas=1):
    """(layers, what opens the engine)"""
    shape = Shape.of(model)
    layers = layers_of(shape, explicit)
    flags = {**cpu_flags(), "dtype": "float32", "chunked-prefill-size": CHUNK}
    env = cpu_env() | ({"SGLANG_CPU_OMP_THREADS_BIND": "|".join("01"[:replicas])} if replicas > 1 else {})
    sglang = Sglang(python=str(PYTHON), flags=flags, env=env, gpus=0, replicas=replicas, idle_s=0)
    changes = {"engine": "sglang", "model": str(model), "weights": None, "sglang": sglang}
    target = Target.model_validate({**CONFIG.target.model_dump(), **changes})
    capturing = Capturing(layers, explicit is None, shape.architecture, {"max-running-requests": 4})
    return layers, lambda: open_engine(target, folder / "state/server", capturing=capturing)


def likeness(a, b):
    """Cosine of each row, slot by slot: [tokens, slots]."""
    a, b = (x.float().view(len(x), -1, HIDDEN) for x in (a, b))
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)


@pytest.fixture(scope="module")
def oracle(model):
    """transformers' hidden_states of a sample: a list of [tokens, H], the last after the final norm."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def states(input_ids):
        with torch.inference_mode():
            return [s[0] for s in target(torch.tensor([input_ids]), output_hidden_states=True).hidden_states]

    return states


def samples(shard):
    offsets = shard.arrays["offsets"]
    for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
        rows = slice(start, stop)
        yield shard.arrays["input_ids"][rows].tolist(), *(decode(shard.arrays, name, rows) for name in ("aux", "last"))


def test_both_engines_capture_what_transformers_computes(model, corpus, oracle, head, tmp_path):
    layers, engine = served(model, tmp_path)
    assert layers == (2, 15, 27)
    shards = [
        capture(engine, corpus, layers, head, tmp_path / "sglang.safetensors"),
        capture(
            lambda: opened(Embedded(model, device="cpu", layers=layers)),
            corpus,
            layers,
            head,
            tmp_path / "e.safetensors",
        ),
    ]
    for shard in shards:
        for input_ids, aux, last in samples(shard):
            states = oracle(input_ids)
            right = torch.cat([states[layer] for layer in layers], dim=-1)
            assert likeness(aux, right).min() > ALIKE and likeness(last, states[-1]).min() > ALIKE
            for off in (-1, 1):  # what a neighbour of the layer would give does not pass
                wrong = torch.cat([states[layer + off] for layer in layers], dim=-1)
                assert (likeness(aux, wrong).min(dim=0).values < ALIKE).all()
    for (_, aux, last), (_, also_aux, also_last) in zip(*map(samples, shards), strict=True):
        assert likeness(aux, also_aux).min() > ALIKE and likeness(last, also_last).min() > ALIKE
    assert not list((tmp_path / "state").rglob("tickets/*")), "no ticket is left"


def test_layers_of_ones_own_choice_from_two_replicas(model, corpus, oracle, head, tmp_path):
    """Two copies of the target side by side: both capture, and both answer."""
    layers, opened_engine = served(model, tmp_path, explicit=(3, 14, 28), replicas=2)
    prompts = [Request(str(k), list(range(1000 * k, 1000 * k + 20))) for k in range(8)]
    logs, answers = [], []

    def log():
        return next(tmp_path.glob("state/server/*/*/server.log")).read_text()

    @contextmanager
    def engine():
        with opened_engine() as served:
            yield served
            logs.append(log())
            answers.extend(served.generate(prompts, Generation(temperature=0, max_new_tokens=8, concurrency=4)))
            logs.append(log().removeprefix(logs[0]))

    for input_ids, aux, _ in samples(capture(engine, corpus, layers, head, tmp_path / "x.safetensors")):
        states = oracle(input_ids)
        assert likeness(aux, torch.cat([states[layer] for layer in layers], dim=-1)).min() > ALIKE
    assert [len(answer.output_ids) for answer in answers] == [8] * len(prompts)
    for written in logs:
        assert {line.split(" DP")[1][0] for line in written.splitlines() if "Prefill batch" in line} == {"0", "1"}
