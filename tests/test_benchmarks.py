"""The benchmarks' own arithmetic, and that the one for a GPU needs nothing but torch, numpy and safetensors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from draft_work import Kind, Work, step_flop  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from eyas.eagle3.model import DraftConfig  # noqa: E402
from eyas.eagle3.supervision import Objective  # noqa: E402

CONFIG = DraftConfig(
    hidden_size=96, intermediate_size=160, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
    vocab_size=640, draft_vocab_size=160, max_position_embeddings=256, aux_layers=(2, 3, 5),
)  # fmt: skip
aten = torch.ops.aten
IN_PLACE = {  # forms that the counter does not know
    aten.addmm_: lambda _, a, b, *rest, **more: 2 * a[0] * a[1] * b[1],
    aten.baddbmm_: lambda _, a, b, *rest, **more: 2 * a[0] * a[1] * a[2] * b[2],
}


@pytest.mark.parametrize("prompt", [0.0, 0.5])
def test_operations_are_those_that_torch_counts(prompt):
    """Attention aside: it is counted as it is seen, while blocks compute a rectangle, and twice."""
    work = Work(CONFIG, Objective(steps=3, loss="kl"), torch.float32)
    batch = work.batch(Kind((60, 41, 7), prompt))
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        plan = work.step(batch)
    counts = {op: n for op, n in counter.get_flop_counts()["Global"].items() if "bmm" not in str(op)}
    parts = step_flop(CONFIG, batch, plan)
    expected = sum(n for part, n in parts.items() if part != "attention")
    assert sum(counts.values()) == pytest.approx(expected, rel=1e-3)


def test_the_gpu_benchmark_needs_only_torch_numpy_and_safetensors(tmp_path):
    """All other packages cannot be imported here."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules.update(dict.fromkeys(['pydantic', 'orjson', 'transformers', 'pyarrow', 'yaml']))"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "PYTHON": str(python)}
    done = subprocess.run([BENCHMARKS / "gpu.sh", "--small"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[1]["agree"]
    sizes = [line for line in lines if "tokens_per_s" in line]
    assert len(sizes) == 4 and all(s["tokens_per_s"] > 0 and s["tflops"] > 0 for s in sizes)
