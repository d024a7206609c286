"""The documentation: its site builds, its reference is up to date, and what a page names exists."""

import ast
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from conftest import ROOT
from eyas.config import schema
from eyas.eagle3.model import DraftConfig
from eyas.states import Sample, ShardWriter
from write_config_reference import reference

PAGES = sorted(ROOT.glob("docs/*.md"))
CODE = re.compile(r"```.*?\n(.*?)```|`([^`\n]+)`", re.S)
PATH = re.compile(r"(?<![\w/.-])(?:scripts|rules|config|profiles|docs|tests|envs)/[\w./*-]*[\w*/]")
# `scripts/eyas/gpus.py`, `lease`: names that stand beside a file are of that file.
BESIDE = re.compile(r"`([\w/]+\.(?:py|smk))`((?:(?:, | and )`[A-Za-z_][\w.]*`)+)")
KEY = re.compile(r"([a-z_]+(?:\.\w+)+)(?:: .*)?")
FILES = (".py", ".smk", ".md", ".yaml", ".json", ".jsonl", ".parquet", ".safetensors", ".html", ".pt", ".log")


def test_the_reference_is_up_to_date():
    """Written by `make schema`."""
    assert (ROOT / "docs/configuration.md").read_text() == reference(schema())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    assert list(missing(page.read_text())) == []


@pytest.mark.parametrize(
    "text",
    [
        "`scripts/eyas/gpu.py`",
        "`config/*.yml`",
        "`scripts/eyas/gpus.py`, `leases`",
        "`scripts/eyas/gpus.py` and `lease`, `_take`; `scripts/eyas/states.py`, `ShardWriter.finnish`",
        "`rules/train.smk`, `train_drafts`",
        "`make dem`",
        "```\nsnakemake tallly\n```",
        "`train.step`",
        "`target.sglang.gpu: 8`",
        "`datasets.NAME.prepared`",
        "`evaluate.sweep.chain`",
    ],
)
def test_what_does_not_exist_is_found(text):
    assert len(list(missing(text))) == 1


def test_every_tensor_and_field_of_shards_and_drafts_is_explained(tmp_path):
    samples = [Sample("a", "A", np.zeros(2, np.int32), np.ones(2, np.uint8))]
    config = DraftConfig(*(8,) * 5, vocab_size=9, draft_vocab_size=8, max_position_embeddings=64, aux_layers=(2, 3, 4))
    config = replace(config, target_hidden_size=4, fc_norm=True)
    shard = ShardWriter(tmp_path / "s", samples, 8, {}, encoding="fp8").layout
    fields = {*config.to_json()} - {"eagle_config"} | {
        f"eagle_config.{key}" for key in config.to_json()["eagle_config"]
    }
    weights = [*replace(config, fc_norm=False).weight_shapes(), "fc_norm.0.weight", "d2t", "t2d"]
    for page, names in (("formats", [*shard.tensors, *shard.metadata]), ("eagle3", [*fields, *weights])):
        text = (ROOT / f"docs/{page}.md").read_text()
        assert [name for name in names if f"`{name}`" not in text] == []


def test_the_site_builds_and_asks_no_other_host(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    built = sorted(tmp_path.glob("*.html"))
    assert {page.stem for page in built} >= {page.stem for page in PAGES}
    for page in built:
        loads = re.findall(r'<(?:script|img|iframe)[^>]*src="?([^" >]+)|<link[^>]*href="?([^" >]+)', page.read_text())
        assert [a or b for a, b in loads if (a or b).startswith(("http", "//"))] == [], page.name


def missing(text: str):
    """What stands in the code of a page, or between backticks, and is not there."""
    for block, span in CODE.findall(text):
        code = block or span
        yield from (path for path in PATH.findall(code) if not _is_file(path))
        yield from (f"make {name}" for name in re.findall(r"^make ([a-z][\w-]*)", code, re.M) if name not in targets())
        asked = re.findall(r"^snakemake (?:--profile \S+ )?([a-z]\w*)(?![\w/])", code, re.M)
        yield from (f"snakemake {name}" for name in asked if name not in rules())
        if (key := KEY.fullmatch(span)) and not key[1].endswith(FILES) and not _is_key(key[1]):
            yield key[1]
    for path, names in BESIDE.findall(text):
        yield from (f"{path}: {name}" for name in re.findall(r"`([\w.]+)`", names) if name not in names_in(path))


def _is_file(path: str) -> bool:
    return any(True for _ in ROOT.glob(path)) if "*" in path else (ROOT / path).exists()


def _is_key(path: str) -> bool:
    """Whether a dotted path names a key of the configuration; true when it does not begin like one."""
    whole = schema()
    first, *rest = path.split(".")
    if first not in whole["properties"]:
        return True
    own = whole["properties"][first]
    if first == "datasets":  # then comes a dataset's name
        (own,), rest = own["patternProperties"].values(), rest[1:]
    for key in rest:
        refs = re.findall(r"#/\$defs/(\w+)", str(own))
        if not refs:
            return own.get("type") == "object"  # names that are free: flags, options
        if key not in (properties := whole["$defs"][refs[0]]["properties"]):
            return False
        own = properties[key]
    return True


@cache
def targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))


@cache
def rules() -> set[str]:
    files = [ROOT / "Snakefile", *ROOT.glob("rules/*.smk")]
    return {name for file in files for name in names_in(str(file.relative_to(ROOT)))}


@cache
def names_in(path: str) -> set[str]:
    """Rules of a .smk file; functions, classes, their methods and constants of a module."""
    file = ROOT / path
    if not file.exists():
        return set()
    if file.suffix != ".py":
        found = re.findall(r"^ *rule (\w+):|^use rule \w+ as (\w+)|^([A-Z_]+) =|^def (\w+)", file.read_text(), re.M)
        return {name for names in found for name in names if name}
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif hasattr(node, "name"):
            names |= {node.name, *(f"{node.name}.{own.name}" for own in node.body if hasattr(own, "name"))}
    return names
