"""The configuration of the real run, unchanged, from the Hub's files to records.

A stand-in hub serves the small files under the names and commits of the real repositories, and a tokenizer of the shape
and with the ids of Kimi's; a small server stands in for SGLang, with the very flags; the commands are those of the
README.
"""

import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiny_kimi
from conftest import HUB, ROOT, SNAKEMAKE
from eyas.config import load
from eyas.states import Shard
from fake_server import CODE_BITS
from stand_in_hub import StandInHub
from workflow_copy import copy_workflow, write_coded_model

USER, END, UNTHINK = 163587, 163586, 163607
YARN = {
    **{"type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    "original_max_position_embeddings": 4096,
}
BENCHMARKS = {
    "philschmid/mt-bench/question.jsonl": {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    "openai/gsm8k/main/test-00000-of-00001.parquet": {"question": "What is {} plus 5?", "answer": "#### {}"},
    "openai/openai_humaneval/openai_humaneval/test-00000-of-00001.parquet": {"prompt": "def f{}():", "test": ""},
    "HuggingFaceH4/MATH-500/test.jsonl": {"problem": "Solve $x = {}$.", "answer": "{}"},
}
EXPECTED = json.loads((HUB / "EXPECTED.json").read_text())


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    for repo in HUB.glob("*/*/"):
        (root / repo.parent.name).mkdir(exist_ok=True)
        (root / repo.parent.name / repo.name).symlink_to(repo)
    for path, row in BENCHMARKS.items():
        (root / path).parent.mkdir(parents=True)
        rows = [{k: v.format(n) if isinstance(v, str) else v for k, v in row.items()} for n in range(5)]
        if path.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), root / path)
        else:
            (root / path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny_kimi.build(root / "moonshotai/Kimi-K2.5", vocabulary=tiny_kimi.KIMI_RANKS)
    shape = {"architectures": ["KimiK25ForConditionalGeneration"]}
    text = {"num_hidden_layers": 61, "hidden_size": CODE_BITS}  # Kimi's is 7,168 wide; the rest is as it has it
    text |= {"intermediate_size": 18432, "num_attention_heads": 64, "num_key_value_heads": 64, "v_head_dim": 128}
    text |= {"rope_theta": 50000.0, "rope_scaling": YARN}
    shape["text_config"] = {**text, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5}
    for name, content in (("config.json", shape), ("generation_config.json", {})):
        (root / "moonshotai/Kimi-K2.5" / name).write_text(json.dumps(content))
    write_coded_model(root / "moonshotai/Kimi-K2.5", vocabulary=163840, prefix="language_model.")
    with StandInHub(root) as hub:
        for dataset in load().datasets.values():
            for source in dataset.sources:
                if source.revision != "main":
                    hub.name_commit(source.repo, source.revision)
        yield hub


def test_the_whole_run_by_one_command(hub, tmp_path):
    copy_workflow(tmp_path)
    python = tmp_path / ".venv-sglang/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/tests/fake_sglang exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    leases = {"EYAS_GPU_COUNT": "8", "EYAS_GPU_LEASES": str(tmp_path / "leases")}
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), **leases}

    def snakemake(*args):
        done = subprocess.run([SNAKEMAKE, *args], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    snakemake("prepared/B2_opencodeinstruct/prompts.jsonl")
    assert [p.name for p in (tmp_path / "prepared").iterdir()] == ["B2_opencodeinstruct"]
    # One tenth of the small files is hard cases, more than the real limit allows; and the server need not stay warm.
    # A few shards are enough, and the stand-in's context is told by a flag.
    changes = ("prepare={max_rejected: 0.2}", "capture={shards: 2}")
    # A real draft's attention and batches are too much for two cores.
    changes += ("train={gpus: 2, max_minutes: 0.05, batch_tokens: 512, batches_per_step: 2}",)
    changes += ("draft={intermediate_size: 64, num_attention_heads: 2, num_key_value_heads: 2, head_dim: 16}",)
    changes += ("target={sglang: {idle_s: 1, flags: {context: 16384}}}",)
    snakemake("--profile", "profiles/blackwell", "all", "--config", *changes)
    for name, expected in EXPECTED.items():
        stats = json.loads((tmp_path / f"prepared/{name}/stats.json").read_bytes())
        found = {k: stats[k] for k in ("kept", "duplicates", "reasons")}
        assert {"rows": stats["rows_read"], **found} == expected, name
        assert stats["tokenizer"] and stats["vocabulary"] == 163840
        assert all(len(source["commit"]) == 40 for source in stats["sources"])
        if stats["produces"] == "prompts":
            answered = json.loads((tmp_path / f"responses/{name}/stats.json").read_bytes())
            assert answered["kept"] == answered["rows_read"] == expected["kept"], name
    for shard in sorted((tmp_path / "hidden_states").rglob("*.safetensors")):
        shard = Shard(shard)
        shard.verify()
        assert shard.metadata["layers"] == "2,30,58" and len(shard)
    draft = json.loads((tmp_path / "draft/config.json").read_bytes())
    assert draft["rope_scaling"] == YARN and draft["max_position_embeddings"] == 262144
    assert draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 30, 58]
    thought = 0
    for line in (tmp_path / "prepared/A2_kimik25/tokenized_data.jsonl").read_text().splitlines():
        record = json.loads(line)
        trained = [i for i, m in zip(record["input_ids"], record["loss_mask"], strict=True) if m]
        assert record["input_ids"][0] == USER and trained[-1] == END and trained.count(UNTHINK) <= 1
        thought += trained.count(UNTHINK)
    assert thought > 50
    summary = json.loads((tmp_path / "evaluation/summary.json").read_bytes())
    judged = {name: own["answers"] for name, own in summary["by_benchmark"]["sglang"].items()}
    assert judged == {"E1_mtbench": 1, "E2_gsm8k": 5, "E3_humaneval": 5, "E4_math500": 5}
    assert summary["verdict"]["concurrency"] == 8
    assert re.search(r"total +10 of 10 ok", snakemake("tally"))
    snakemake("--report")
    assert (tmp_path / "report.html").is_file()
    downloads = len([r for r in hub.requests if "/resolve/" in r.path])
    snakemake("probe")
    assert len([r for r in hub.requests if "/resolve/" in r.path]) == downloads, "a probe fetches nothing twice"
