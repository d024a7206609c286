"""A copy of the workflow for tests that run Snakemake: small datasets, a server that answers by arithmetic."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from conftest import HUB, ROOT, SNAKEMAKE
from fake_server import CODE_BITS

DATASETS = ("A2_kimik25", "B3_magicoder", "B5_openthoughts", "E3_humaneval")  # of the fixture `workflow`
PARTS = ("Snakefile", "rules", "scripts", "config", "profiles", "envs")


class Workflow:
    """A copy of the workflow with its own working directory."""

    def __init__(self, root):
        self.root, self.work = root, root / "work"

    def command(self, *args):
        own = ("--directory", self.work, "--configfile", self.root / "test.yaml", "--replace-workflow-config")
        return [SNAKEMAKE, *own, *args]

    def run(self, *args, expect=0, env=None):
        done = subprocess.run(self.command(*args), cwd=self.root, capture_output=True, text=True, timeout=300, env=env)
        output = done.stdout + done.stderr
        assert done.returncode == expect, output
        return output

    def planned(self, *targets):
        """{rule: [wildcard or ""]} of a dry run, without `all`."""
        jobs = {}
        output = self.run("-n", "--", *targets)
        for rule, body in re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", output, re.MULTILINE):
            dataset = re.search(r"wildcards: dataset=(\w+)", body)
            jobs.setdefault(rule, []).append(dataset.group(1) if dataset else "")
        jobs.pop("all", None)
        return jobs

    def config(self, change):
        path = self.root / "test.yaml"
        config = yaml.safe_load(path.read_text())
        change(config)
        path.write_text(yaml.safe_dump(config))

    def servers(self):
        """Processes in the working directory that are a server, its keeper or its guardian: pid → command line."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # gone meanwhile
                if self.work.resolve() in ((cwd := (process / "cwd").resolve()), *cwd.parents):
                    found[process.name] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        return found

    def snapshot(self):
        """Every file of the working directory with its time and size (Snakemake's own folder left out)."""
        files = (p for p in self.work.rglob("*") if p.is_file() and ".snakemake" not in p.parts)
        return {str(p.relative_to(self.work)): (p.stat().st_mtime_ns, p.stat().st_size) for p in files}


def copy_workflow(root):
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, root / part)


# The shape of the model that tests/fake_server.py serves.
CODED_MODEL = {
    **{"num_hidden_layers": 9, "hidden_size": CODE_BITS, "intermediate_size": 32, "num_attention_heads": 2},
    **{"head_dim": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
}


def write_coded_model(folder, vocabulary=49152, prefix=""):
    """Weights of the model that tests/fake_server.py serves: its lm_head reads the tokens that its states spell."""
    bits = torch.arange(vocabulary)[:, None] >> torch.arange(CODE_BITS) & 1  # [vocabulary, bits]
    codes = (2 * bits - 1).bfloat16()
    weights = {f"{prefix}model.embed_tokens.weight": codes, f"{prefix}lm_head.weight": codes.clone()}
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")


def make_workflow(root, names, tokenizer, **sglang):
    """A workflow in `root` for some of the demo's datasets, each with source files of its own, to be damaged at will.

    sglang: more of target.sglang, which is served by tests/fake_sglang.
    """
    copy_workflow(root)
    config = yaml.safe_load((ROOT / "config/demo.yaml").read_text())
    config["datasets"] = {name: config["datasets"][name] for name in names}
    for name, dataset in config["datasets"].items():
        for k, source in enumerate(dataset["sources"]):
            if "folder" not in source:
                continue
            copy = root / "hub" / f"{name}-{k}"
            shutil.copytree(HUB / source["folder"].removeprefix("../tests/data/hub/"), copy)
            source["folder"] = f"../hub/{copy.name}"
    shutil.copytree(tokenizer, root / "tokenizer")
    write_coded_model(root / "model")
    (root / "model/config.json").write_text(json.dumps(CODED_MODEL))
    config["capture"] = {"shards": 2}
    config["train"] |= {"max_minutes": 0.02}
    config["evaluate"] |= {"prompts": 3, "witnesses": []}  # nobody else knows this target
    config["target"] |= {"engine": "sglang", "model": "../model", "weights": None}
    config["target"]["tokenizer"] = {"folder": "../tokenizer", "files": ["*.json", "*.jinja"]}
    served = {"python": sys.executable, "gpus": 0, "env": {"PYTHONPATH": str(ROOT / "tests/fake_sglang")}}
    config["target"]["sglang"] = served | sglang
    (root / "test.yaml").write_text(yaml.safe_dump(config))
    (root / "work").mkdir()
    return Workflow(root)
