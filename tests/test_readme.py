"""Every command of the README and of the operations page is run here: as it stands where that is quick, else dry."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conftest import ROOT, SNAKEMAKE

PAGES = ("README.md", "docs/operations.md")
BIN = Path(SNAKEMAKE).parent
# Run on a copy of a finished run, as typed; all other snakemake commands of the pages are run dry.
AS_TYPED = (
    *("probe", "plan", "tally", "-n", "--report", "--dag | dot -Tsvg > dag.svg", "--unlock"),
    *("prepared/B5_openthoughts/prompts.jsonl", "--force prepared/B5_openthoughts/prompts.jsonl"),
)
HELD = {  # what would not end, or not here
    "snkmt console": "snkmt console --help",
    "tensorboard --logdir state/train_draft": "tensorboard --version",
    "tail -f logs/train_draft.log": "true",
    ". .venv/bin/activate": "true",
    "pip install snakemake-executor-plugin-slurm": "pip show --quiet snakemake-executor-plugin-slurm",
}


def commands():
    """Of all code blocks without a language, and of `inline code` that begins like one; comments cut."""
    found = {}
    for page in PAGES:
        text = (ROOT / page).read_text()
        prose, block = [], None  # the language of the block that a line is in
        for line in text.splitlines():
            if line.startswith("```"):
                block = line.removeprefix("```") if block is None else None
            elif block is None:
                prose.append(line)
            elif not block:
                command = re.sub(r"\s{2,}#.*", "", line).strip()
                if re.match(r"(make|snakemake|python|pip|snkmt|tensorboard|tail|\.) ", command):
                    found[command] = page
        inline = re.findall(
            r"`((?:make|snakemake|pip install) [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        )
        found |= {line.split(" …")[0]: page for line in inline}
    return sorted(found)


def test_the_pages_have_commands():
    assert len(commands()) > 30 and "snakemake --profile profiles/blackwell all" in commands()


def ran(command, cwd, expect=(0,), path=BIN):
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": f"{path}:/usr/bin:/bin:/usr/local/bin", "HOME": str(cwd), "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode in expect, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith("snakemake")])
def test_a_command_of_the_shell(command):
    if command.startswith("make "):
        told = ran(command.replace("make", "make -n", 1), ROOT)  # what CI runs for real: setup, demo, test, check, docs
        assert told.strip()
    elif command.startswith("python scripts/"):
        script, *arguments = shlex.split(command)[1:]
        known = ran(f"{sys.executable} {script} --help", ROOT)
        assert all(flag in known for flag in arguments if flag.startswith("--")), f"{command}: a flag is not known"
    else:
        assert command in HELD, f"{command}: a command that no test runs"
        ran(HELD[command], ROOT)


def test_the_commands_of_snakemake_as_typed(workflow, finished):
    """On a finished run, with its own small configuration in place of config/*.yaml."""
    own = workflow.command()[1:]
    typed = [c.removeprefix("snakemake").strip() for c in commands() if c.startswith("snakemake")]
    assert set(AS_TYPED) <= set(typed), "the pages name them"
    for arguments in AS_TYPED:
        if "dot" in arguments and not shutil.which("dot"):
            arguments = arguments.split("|")[0]
        command = shlex.join([str(SNAKEMAKE), *map(str, own)])
        ran(f"{command} {arguments}", workflow.root)


@pytest.mark.parametrize(
    "command",
    [c for c in commands() if c.startswith("snakemake") and c.removeprefix("snakemake").strip() not in AS_TYPED],
)
def test_other_commands_of_snakemake_are_planned(command, tmp_path):
    """With the configuration of the repository, in an empty folder."""
    arguments = re.sub(r" --logger \w+", "", command.removeprefix("snakemake "))  # test_both_loggers_load runs those
    own = f"--directory {tmp_path}" if "--directory" not in arguments else ""
    told = ran(f"{SNAKEMAKE} -n {own} {arguments} --quiet all", ROOT)
    assert "This was a dry-run" in told


def test_the_table_of_datasets_is_the_configuration_s():
    datasets = yaml.safe_load((ROOT / "config/datasets.yaml").read_text())["datasets"]
    text = (ROOT / "README.md").read_text()
    rows = {m[0]: m[1:] for m in re.findall(r"^\| ([A-E]\d+_\w+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", text, re.M)}
    assert list(rows) == list(datasets)
    for name, (_, source, licence) in rows.items():
        assert datasets[name]["sources"][0]["repo"] in source, name
        assert licence == datasets[name].get("license", "none is stated: ask its authors"), name


def test_every_link_of_the_readme_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
