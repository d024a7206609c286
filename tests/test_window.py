"""A window on the shards: never more than a few on the disk, each sample once a pass, whoever is killed when."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ROOT
from eyas.capture import capture_shard
from eyas.eagle3.export import check_export
from eyas.eagle3.metrics import read_metrics
from eyas.states import shard_path
from eyas.vocabulary import maps_of
from eyas.window import Starved, Window
from test_capture import LAYERS, corpus, embedded, head, model, opened, settings_for  # noqa: F401 (fixtures)
from test_eagle3_training import TRAIN
from waiting import until

SHARDS, SIZE, PASSES = 5, 2, 2


def window(folder, size=SIZE):
    return Window("key", folder / "train", SHARDS, size, PASSES, folder / "window.json")


def make(window, *numbers):
    for number in numbers:
        window.path(number).parent.mkdir(exist_ok=True)
        window.path(number).write_bytes(b"x")


def there(folder):
    return sorted(int(path.name[:5]) for path in (folder / "train").glob("*.safetensors"))


def test_the_window_moves_on_with_the_training(tmp_path):
    w = window(tmp_path)
    assert (w.next, w.to_capture(), w.total) == (0, 0, 10)
    make(w, 0)
    assert w.to_capture() == 1
    make(w, 1)
    assert w.to_capture() is None, "it is full"
    w.advance(1)
    assert there(tmp_path) == [1] and w.to_capture() == 2
    w.advance(4)
    make(w, 4)
    assert w.to_capture() == 5 and w.path(5) == w.path(0), "the next pass"
    make(w, 5)
    w.advance(9)
    make(w, 9)
    assert w.to_capture() is None and there(tmp_path) == [4], "nothing behind the last pass"
    w.advance(10)
    assert there(tmp_path) == [] and w.next == w.total


def test_a_window_as_wide_as_all_keeps_all_until_the_last_pass(tmp_path):
    w = window(tmp_path, size=SHARDS)
    make(w, *range(SHARDS))
    w.advance(3)
    assert there(tmp_path) == [0, 1, 2, 3, 4]
    w.advance(7)
    assert there(tmp_path) == [2, 3, 4]


def test_waiting_ends_when_nobody_captures(tmp_path):
    def dead():
        raise RuntimeError("gone")

    with pytest.raises(Starved):
        window(tmp_path).wait_for(0, None)
    with pytest.raises(RuntimeError, match="gone"):
        window(tmp_path).wait_for(0, dead)


class Run:
    """A working directory whose target is a real small model, captured and trained on side by side."""

    def __init__(self, folder, corpus, model, head):  # noqa: F811
        self.folder = folder
        shutil.copytree(corpus.parent, folder / "corpus")
        (folder / "target/tokenizer").mkdir(parents=True)
        shutil.copy(model / "config.json", folder / "target/tokenizer")
        tensors = {"embed_tokens": head.embed_tokens, "lm_head": head.lm_head, "norm": head.norm}
        save_file({k: t.clone() for k, t in tensors.items()}, folder / "target/head.safetensors", head.metadata)
        d2t, t2d = (torch.from_numpy(x) for x in maps_of(np.arange(300), 500))
        (folder / "draft_vocab").mkdir()
        save_file({"d2t": d2t, "t2d": t2d}, folder / "draft_vocab/map.safetensors", {"tokenizer": "abc"})
        self.settings = settings_for(head, shards=SHARDS, window=SIZE, heldout_shards=1, layers=LAYERS)
        self.settings |= {"train": {**TRAIN, "epochs": PASSES, "steps": 2, "batch_tokens": 256}, "draft": {}}
        engine = opened(embedded(model))
        out = shard_path(folder / "hidden_states/heldout", 0, 1)
        capture_shard(self.settings, folder / "corpus/heldout.parquet", LAYERS, head, 0, 1, lambda: engine, out)

    def start(self, in_turns=False):
        turns = f"import train_draft; train_draft.needs_turns = lambda settings: {in_turns}; exit(train_draft.main())"
        own = ("--settings", json.dumps(self.settings), "--threads", "1")
        return subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); {turns}", *own],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def shards(self):
        """Those on the disk, half-written ones included."""
        return [p for p in self.folder.glob("hidden_states/window/*/train/*") if "safetensors" in p.name]

    def losses(self):
        lines = [line for path in self.folder.glob("state/train_draft/*/metrics.jsonl") for line in read_metrics(path)]
        return {line["step"]: line["losses"] for line in lines if line["kind"] == "train"}, lines

    def finish(self, process, most=SIZE):
        """Wait for the end; never more than `most` shards."""
        seen = 0
        while process.poll() is None:
            seen = max(seen, len(self.shards()))
            time.sleep(0.01)
        output = process.stdout.read()
        assert process.returncode == 0, output
        assert 0 < seen <= most
        check_export(self.folder / "draft")
        return output


@pytest.fixture(scope="module")
def whole(corpus, model, head, tmp_path_factory):  # noqa: F811
    run = Run(tmp_path_factory.mktemp("whole"), corpus, model, head)
    run.finish(run.start())
    return run


def test_each_sample_is_trained_on_once_a_pass_with_few_shards_on_the_disk(whole):
    lengths = pq.read_table(whole.folder / "corpus/train.parquet").column("input_ids")
    tokens = sum(len(ids) for ids in lengths.to_pylist())
    summary = json.loads((whole.folder / "draft/training.json").read_bytes())
    assert summary["tokens"] == PASSES * tokens
    assert whole.shards() == [], "the last pass has dropped them"


@pytest.mark.parametrize("in_turns", [False, True], ids=["side by side", "in turns"])
def test_killed_and_started_again_it_goes_on_with_the_right_shard(whole, corpus, model, head, tmp_path, in_turns):  # noqa: F811
    run = Run(tmp_path / "run", corpus, model, head)
    process = run.start(in_turns)
    until(lambda: len(run.losses()[0]) >= 5 or process.poll() is not None, 90)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: not alive_in(run.folder), 10)
    assert 5 <= len(run.losses()[0]) < len(whole.losses()[0])
    run.finish(run.start(in_turns))
    assert run.losses()[0] == whole.losses()[0]
    found, expected = (load_file(r.folder / "draft/model.safetensors") for r in (run, whole))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def alive_in(folder):
    """Processes whose working directory is there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder.resolve():
                found.append(process.name)
        except OSError:
            pass
    return found
