"""Training goes on where it was killed, gives one loss on one or two processes, and stops with the reason."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ROOT
from eyas.config import Training, load
from eyas.eagle3.data import Reader, Shards
from eyas.eagle3.export import check_export
from eyas.eagle3.metrics import read_metrics
from eyas.eagle3.optimizers import Muon, orthogonal
from eyas.eagle3.supervision import Objective
from eyas.eagle3.train import Folders, run_key, train
from eyas.eagle3.trainer import Trainer
from eyas.eagle3.world import World
from eyas.errors import EyasError
from eyas.records import write_json
from eyas.states import CAPTURED, NOT_FINITE, Sample, ShardWriter, shard_path
from eyas.states_encoding import as_bytes, encode
from eyas.target.processes import free_port
from eyas.vocabulary import maps_of
from stand_in_hub import StandInHub
from waiting import until

H, V, KEPT, LAYERS = 16, 61, 40, 3
METADATA = {
    **{"target": "t", "tokenizer": "abc", "layers": "2,4,6", "layers_convention": "c", "last": "after the final norm"},
}
TARGET = {
    **{"hidden_size": H, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0},
}
TRAIN = {
    **{"steps": 3, "batch_tokens": 64, "batches_per_step": 2, "epochs": 3, "lr": 2e-2, "gpus": 0, "log_every": 1},
    **{"evaluate_every": 7, "precision": "fp32", "checkpoint_minutes": 1e-6},
}


def write_shard(path, count, seed, *, encoding="bf16", mask=None, spoiled=(), **metadata):
    """Random samples; the next token depends on the states, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for k in range(count):
        n = int(torch.randint(5, 40, (), generator=generator))
        ids = torch.randint(V, (n,), generator=generator).numpy().astype(np.int32)
        allowed = np.arange(n) >= n // 3 if mask is None else np.full(n, mask)
        samples.append(Sample(f"{path.stem[:5]}-{k}", "AB"[k % 2], ids, allowed.astype(np.uint8)))
    table = torch.randn(V, H, generator=torch.Generator().manual_seed(0))
    with ShardWriter(path, samples, H, {**METADATA, **metadata}, encoding=encoding) as writer:
        for k, sample in enumerate(samples):
            following = torch.from_numpy(np.roll(sample.input_ids, -1).astype(np.int64))
            last = table[following] + 0.1 * torch.randn(len(following), H, generator=generator)
            aux = [last * scale for scale in (0.1, 1.0, 20.0)]
            writer.slot(k).write(0, as_bytes(encode(aux, last, encoding)))
            writer.finish(k, NOT_FINITE if k in spoiled else CAPTURED)
        writer.publish()


class Run:
    """A working directory with all that training reads."""

    def __init__(self, folder: Path, shards=2, samples=14, **target):
        self.folder, self.shards = folder, shards
        for k in range(shards):
            write_shard(shard_path(folder / "hidden_states/train", k, shards), samples, k + 1)
        write_shard(shard_path(folder / "hidden_states/heldout", 0, 1), 6, 99)
        (folder / "target/tokenizer").mkdir(parents=True)
        table, embeddings = (torch.randn(V, H, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
        weights = {"embed_tokens": embeddings.bfloat16(), "lm_head": table.bfloat16(), "norm": torch.ones(H)}
        save_file(weights, folder / "target/head.safetensors", {"model": "m", "tied": "false"})
        write_json(folder / "target/tokenizer/config.json", {**TARGET, **target})
        self.write_map()

    def write_map(self, tokenizer="abc", vocabulary=V):
        d2t, t2d = maps_of(np.arange(KEPT), vocabulary)
        (self.folder / "draft_vocab").mkdir(exist_ok=True)
        tensors = {"d2t": torch.from_numpy(d2t), "t2d": torch.from_numpy(t2d)}
        save_file(tensors, self.folder / "draft_vocab/map.safetensors", {"tokenizer": tokenizer})

    def settings(self, draft=None, **changes):
        settings = load([ROOT / "config/demo.yaml"]).train_settings()
        settings["train"] = {**Training().model_dump(mode="json"), **TRAIN, **changes}
        settings["capture"] |= {"shards": self.shards}
        settings["draft"] |= draft or {}
        return settings

    def train(self, draft=None, **changes):
        f = self.folder
        at = Folders(
            *(f / "hidden_states", f / "corpus", f / "draft_vocab/map.safetensors", f / "target/head.safetensors"),
            *(f / "target/tokenizer", f / "state", f / "draft"),
        )
        train(self.settings(draft, **changes), at)
        return self.losses()

    def command(self, *args, **changes):
        settings = json.dumps(self.settings(**changes))
        own = ("--settings", settings, "--threads", "1", "--state", "state")
        return [sys.executable, str(ROOT / "scripts/train_draft.py"), *own, *args]

    def start(self, *args, env=None, **changes):
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(self.command(*args, **changes), cwd=self.folder, env=env, **piped)

    @property
    def state(self):
        (state,) = (self.folder / "state").iterdir()
        return state

    def metrics(self, kind="train"):
        return [
            line
            for path in self.folder.glob("state/*/metrics.jsonl")
            for line in read_metrics(path)
            if line["kind"] == kind
        ]

    def losses(self):
        return {line["step"]: (line["loss"], line["losses"], line["accuracy"]) for line in self.metrics()}


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of a process of its own: its losses, and its weights."""
    run = Run(tmp_path_factory.mktemp("whole"))
    assert run.start().wait(timeout=120) == 0
    return run.losses(), load_file(run.folder / "draft/model.safetensors"), run


def test_a_run_learns_and_publishes_its_best_draft(whole):
    losses, _, run = whole
    numbers = [loss for loss, *_ in losses.values()]
    assert len(numbers) > 14 and np.mean(numbers[-4:]) < 0.8 * np.mean(numbers[:4])
    check_export(run.folder / "draft")
    summary = json.loads((run.folder / "draft/training.json").read_bytes())
    heldout = run.metrics("heldout")
    assert summary["best"]["acceptance_length"] == max(line["acceptance_length"] for line in heldout) > 1.0
    assert set(heldout[-1]["datasets"]) == {"A", "B"} and summary["data_wait"] < 0.5
    assert list((run.state / "tensorboard").iterdir())


@pytest.mark.parametrize("at_step", [1, 9, 13])
def test_killed_at_any_step_the_losses_are_those_of_an_uninterrupted_run(run, whole, at_step):
    process = run.start()
    until(lambda: len(run.metrics()) >= at_step or process.poll() is not None, 60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(run.metrics()) < len(whole[0]), "it was killed in the middle"
    saved = any(run.folder.glob("state/*/last.pt"))
    done = run.start()
    output = done.communicate(timeout=120)[0]
    assert done.returncode == 0 and ("going on at step" in output) == saved
    assert run.losses() == whole[0]
    found = load_file(run.folder / "draft/model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in whole[1].items())


def test_a_signal_ends_the_step_and_saves(run, whole):
    process = run.start(checkpoint_minutes=1000.0)
    until(lambda: len(run.metrics()) >= 3 or process.poll() is not None, 60)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "the next run goes on from there" in output
    assert run.start(checkpoint_minutes=1000.0).wait(timeout=120) == 0
    assert run.losses() == whole[0]


def close(found, expected):
    assert found.keys() == expected.keys()
    for step in found:
        for a, b in zip(found[step], expected[step], strict=True):
            assert np.allclose(a, b, rtol=2e-4, atol=2e-4), step


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_give_the_losses_of_one(run, whole, sharding):
    done = run.start("--processes", "2", sharding=sharding)
    output = done.communicate(timeout=240)[0]
    assert done.returncode == 0, output
    close(run.losses(), whole[0])
    check_export(run.folder / "draft")


def test_two_nodes_give_the_losses_of_one(run, whole):
    """Two starts of torchrun that meet on loopback, as Slurm would make them on two nodes."""
    meeting = f"--rendezvous=127.0.0.1:{free_port()}"
    nodes = [run.start(meeting, nodes=2) for _ in range(2)]
    for node in nodes:
        output = node.communicate(timeout=240)[0]
        assert node.returncode == 0, output
    close(run.losses(), whole[0])
    check_export(run.folder / "draft")


def test_several_nodes_without_slurm_are_refused(run):
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    done = run.start(nodes=2, env=env)
    assert "train.nodes: 2: Slurm alone starts" in done.communicate(timeout=60)[0] and done.returncode == 1


def test_a_process_may_have_nothing_to_train_on(tmp_path):
    """One batch a step for two processes, and batches without a supervised position."""
    runs = [Run(tmp_path / name, samples=6) for name in ("one", "two")]
    for run in runs:
        write_shard(shard_path(run.folder / "hidden_states/train", 0, 2), 6, 1, mask=False)
    for run, more in zip(runs, ((), ("--processes", "2")), strict=True):
        done = run.start(*more, batches_per_step=1, epochs=1)
        output = done.communicate(timeout=240)[0]
        assert done.returncode == 0, output
    close(runs[1].losses(), runs[0].losses())
    assert any(line["supervised"] == 0 for line in runs[0].metrics())


def test_muon_trains_and_goes_on(run, tmp_path, monkeypatch):
    expected = run.train(optimizer="muon", muon_lr=0.02)
    other, report = Run(tmp_path / "other"), Trainer._report

    def cut(self, progress):
        report(self, progress)
        if self.position.step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_report", cut)
    with pytest.raises(KeyboardInterrupt):
        other.train(optimizer="muon", muon_lr=0.02)
    monkeypatch.undo()
    assert len(other.losses()) == 6
    assert other.train(optimizer="muon", muon_lr=0.02) == expected


def test_the_time_budget_ends_the_training(run):
    assert run.train(max_minutes=1e-9) == {}, "no step: the time is up at once"
    check_export(run.folder / "draft")


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_muon_steps_as_torchs_own_does(shape):
    """Up to the rounding of its bf16 products."""
    weights = [torch.nn.Parameter(torch.ones(shape)) for _ in range(2)]
    ours = Muon([{"params": [weights[0]], "lr": 0.1}], weight_decay=0.5)
    theirs = torch.optim.Muon([{"params": [weights[1]], "lr": 0.1}], weight_decay=0.5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        before = weights[0].detach().clone()
        grad = torch.randn(shape, generator=generator)
        for weight, optimizer in zip(weights, (ours, theirs), strict=True):
            weight.grad = grad.clone()
            optimizer.step()
        step = (weights[0] - 0.95 * before).norm()
        assert (weights[0] - weights[1]).norm() < 0.03 * step
    assert torch.linalg.svdvals(orthogonal(grad).float()).sub(1).abs().max() < 0.5


def test_muon_needs_whole_matrices(run):
    world = World("cpu")
    world.size = 2
    with pytest.raises(EyasError, match="muon needs whole"):
        world.wrapped(torch.nn.Linear(1, 1), training(run, optimizer="muon", sharding="fsdp"))


def training(run, **changes):
    return Training.model_validate(run.settings(**changes)["train"])


@pytest.mark.parametrize("loss", ["hard", "lk"])
def test_every_loss_trains(run, loss):
    losses = run.train(loss=loss, train_lm_head=loss == "hard")
    assert losses[len(losses)][0] < losses[1][0]


def test_a_draft_is_trained_further(run, tmp_path):
    run.train()
    again = Run(tmp_path / "again")
    warm = again.train(draft={"warm_start": str(run.folder / "draft")}, lr=1e-6, epochs=1)
    assert warm[1][0] < 0.8 * run.losses()[1][0], "it starts where the other ended"
    for change, said in (
        ({"layers": "3,4,6"}, r"layers: expected \[3, 4, 6\]"),
        ({}, "has another vocabulary than draft_vocab/"),
    ):
        for split, count in (("train", 2), ("heldout", 1)):
            for k in range(count):
                path = shard_path(again.folder / "hidden_states" / split, k, count)
                path.unlink()
                write_shard(path, 14, k, **change)
        if not change:
            d2t, t2d = maps_of(np.arange(1, KEPT + 1), V)
            tensors = {"d2t": torch.from_numpy(d2t), "t2d": torch.from_numpy(t2d)}
            save_file(tensors, again.folder / "draft_vocab/map.safetensors", {"tokenizer": "abc"})
        with pytest.raises(EyasError, match=said):
            again.train(draft={"warm_start": str(run.folder / "draft")})


def test_a_draft_of_the_hub_is_trained_further(run, tmp_path):
    run.train()
    hub_folder = tmp_path / "hub/owner/draft"
    hub_folder.parent.mkdir(parents=True)
    shutil.copytree(run.folder / "draft", hub_folder)
    again = Run(tmp_path / "again")
    with StandInHub(tmp_path / "hub") as hub:
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache")}
        job = again.start(draft={"warm_start": "owner/draft"}, lr=1e-6, epochs=1, env=env)
        assert job.wait(timeout=120) == 0, job.stdout.read()
    assert again.losses()[1][0] < 0.8 * run.losses()[1][0], "it starts where the other ended"


def test_wandb_is_told_what_is_measured(run, monkeypatch):
    """Offline: it writes what it would send."""
    pytest.importorskip("wandb")
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    job = run.start(wandb="eyas", epochs=1, env=env)
    assert job.wait(timeout=120) == 0, job.stdout.read()
    (record,) = run.state.glob("wandb/offline-run-*/run-*.wandb")
    assert b"train/acceptance_length" in record.read_bytes() and b"heldout/loss" in record.read_bytes()


def test_fp8_states_train_as_bf16_ones(run, tmp_path):
    other = Run(tmp_path / "fp8")
    for k in range(2):
        write_shard(shard_path(other.folder / "hidden_states/train", k, 2), 14, k + 1, encoding="fp8")
    found, expected = other.train(), run.train()
    assert found != expected
    for step in expected:
        assert np.isclose(found[step][0], expected[step][0], rtol=0.1)


# What stops a run


def test_a_loss_that_is_no_number_stops_before_the_step(run, monkeypatch):
    run.train(max_minutes=None, epochs=1)
    before = torch.load(run.state / "last.pt", weights_only=True)
    monkeypatch.setattr("eyas.eagle3.world.World.clip", lambda self, parameters, most: torch.tensor(float("nan")))
    with pytest.raises(
        EyasError, match=r"training, step 1: the loss is .* norm nan; the step was not taken\. Its samples: 0000"
    ):
        run.train(epochs=1, seed=1)
    monkeypatch.undo()
    states = sorted((run.folder / "state").iterdir(), key=lambda p: (p / "last.pt").exists())
    assert torch.equal(torch.load(states[-1] / "last.pt", weights_only=True)["aux_scale"], before["aux_scale"])


def test_a_loss_that_jumps_stops_and_the_checkpoint_stays(run):
    """The learning rate is so high that the loss grows; the median of the losses before is what it is held against."""
    changes = {"lr": 3.0, "clip": 1e9, "warmup": 0.9, "epochs": 30, "checkpoint_minutes": 1e-6}
    with pytest.raises(EyasError, match=r"the median of the last 50 is .*train\.max_loss_ratio.*A rerun goes on"):
        run.train(**changes, max_loss_ratio=1.5)
    assert (run.state / "last.pt").exists()
    stopped = max(run.losses())
    run.train(**changes, max_loss_ratio=1e9)
    assert max(run.losses()) > stopped, "a higher bound lets the run go on"


def retold(run, split="train", k=0, **changes):
    path = shard_path(run.folder / "hidden_states" / split, k, 2 if split == "train" else 1)
    path.unlink()
    write_shard(path, **{"count": 4, "seed": 1, **changes})


@pytest.mark.parametrize("key", ["target", "tokenizer", "layers", "last"])
def test_shards_of_different_origin_are_refused(run, key):
    retold(run, k=1, **{key: "other"})
    with pytest.raises(EyasError, match=rf"00001-of-00002\.safetensors: {key} is 'other', expected .*--force"):
        run.train()


def test_what_does_not_fit_is_named_before_the_first_step(run):
    path = shard_path(run.folder / "hidden_states/train", 1, 2)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(EyasError, match=r"00001-of-00002\.safetensors: sample \d+ \(.*\) is damaged"):
        run.train()
    path.unlink()
    with pytest.raises(EyasError, match=r"no such shard, and 0 more: run `snakemake hidden_states/train/00001"):
        run.train()
    path.write_bytes(whole)
    run.write_map(tokenizer="other")
    with pytest.raises(EyasError, match=r"map\.safetensors: for tokenizer other of 61 tokens, expected abc"):
        run.train()
    run.write_map(vocabulary=V + 1)
    with pytest.raises(EyasError, match=r"of 62 tokens, expected abc .* at most 61"):
        run.train()
    run.write_map()
    write_json(run.folder / "target/tokenizer/config.json", {**TARGET, "max_position_embeddings": 20})
    with pytest.raises(EyasError, match=r"a sample has \d+ tokens, with 3 steps ahead; the draft has 20 positions"):
        run.train()
    write_json(run.folder / "target/tokenizer/config.json", {**TARGET, "rope_scaling": {"rope_type": "odd"}})
    with pytest.raises(EyasError, match=r"draft \(taken from the target's config\.json\): rope_scaling: .*set the key"):
        run.train()
    assert not run.metrics()
    write_json(run.folder / "target/tokenizer/config.json", TARGET)
    path.write_bytes(damaged)
    with pytest.raises(EyasError, match=r"is damaged \(checksum\)"):  # found as it is read
        run.train(verify_at_start=False)


def test_a_corpus_without_a_supervised_position_is_refused(run):
    for k in range(2):
        retold(run, k=k, mask=False)
    with pytest.raises(EyasError, match="no position is supervised"):
        run.train()
    for k in range(2):
        retold(run, k=k, spoiled=range(4))
    with pytest.raises(EyasError, match="holds no sample that may be used"):
        run.train()


def test_a_disk_that_fills_costs_no_training(run, monkeypatch, caplog):
    """The checkpoint before stays whole, and training goes on; at the end it is an error."""
    import errno

    real, saved = torch.save, []

    def save(state, file):
        saved.append(1)
        if 3 <= len(saved) <= 5:
            file.write(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(state, file)

    monkeypatch.setattr("torch.save", save)
    losses = run.train()
    assert "no checkpoint at step" in caplog.text and len(losses) > 14
    assert not list(run.state.glob(".*partial"))
    with pytest.raises(EyasError, match=r"checkpoints need .* bytes, 1 bytes are free"):
        monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1})())
        run.train(seed=5)


def test_a_damaged_checkpoint_is_never_loaded(run):
    run.train()
    path = run.state / "last.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EyasError, match=r"last\.pt: this checkpoint cannot be read .*move it away"):
        run.train()


# Data


def test_each_sample_is_in_one_pack_of_an_epoch(run):
    retold(run, k=1, count=20, spoiled=(3, 7))
    shards = Shards([shard_path(run.folder / "hidden_states/train", k, 2) for k in range(2)])
    orders = []
    for epoch in range(2):
        packs = shards.packs(64, seed=0, number=epoch)
        samples = [s for pack in packs for s in pack.samples]
        assert sorted(samples) == sorted(map(tuple, shards.samples.tolist())) and len(samples) == 14 + 18
        assert all(pack.tokens <= 64 for pack in packs)
        orders.append(samples)
    assert orders[0] != orders[1] and shards.packs(64, 0) == shards.packs(64, 0)
    assert [len(pack.samples) for pack in shards.packs(1, seed=0)] == [1] * 32, "a longer one alone"
    assert shards.datasets == ["A", "B"]
    assert sum(len(p.samples) for d in "AB" for p in shards.packs(64, None, dataset=d)) == 32


def test_batches_come_in_order_and_a_fault_in_reading_reaches_the_trainer(run):
    path = shard_path(run.folder / "hidden_states/train", 0, 2)
    shards = Shards([path])
    packs = shards.packs(64, seed=0)
    cpu = torch.device("cpu")
    with Reader(shards, packs, with_last=True, verify=True, device=cpu) as reader:
        for pack, batch in zip(packs, reader, strict=True):
            expected = shards.batch(pack, True, True)
            assert torch.equal(batch.aux, expected.aux) and torch.equal(batch.last, expected.last)
            assert len(batch.input_ids) == pack.tokens and len(batch.offsets) == len(pack.samples) + 1
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with (
        pytest.raises(EyasError, match="is damaged"),
        Reader(Shards([path]), packs, with_last=True, verify=True, device=cpu) as reader,
    ):
        list(reader)
    with Reader(shards, packs * 50, with_last=False, verify=False, device=cpu) as reader:
        assert next(iter(reader)).last is None  # and is left in the middle


def test_an_objective_is_checked():
    with pytest.raises(EyasError, match="supervision: expected"):
        Objective(supervision="other")


def test_a_run_is_named_by_the_states_it_trains_on_not_by_their_samples_alone():
    """The same samples captured in another dtype, or anew, gave the old draft back."""
    settings = {"train": {"lr": 1e-4}, "draft": {"warm_start": None}}
    draft = SimpleNamespace(config=SimpleNamespace(to_json=dict), d2t=torch.zeros(4, dtype=torch.int64))

    def key(digest, model="m"):
        shard = SimpleNamespace(metadata={"content": "c"}, arrays={"digests": np.full((2, 16), digest, np.uint8)})
        return run_key(settings, draft, SimpleNamespace(shards=[shard]), SimpleNamespace(metadata={"model": model}))

    assert key(1) == key(1) and len({key(1), key(2), key(1, "other")}) == 3
