"""One source for every environment: what is asked for (.in), what is pinned (.txt), conda, pre-commit and CI agree."""

import re
from importlib.metadata import PackageNotFoundError, version

import pytest
import yaml
from packaging.requirements import Requirement

from conftest import ROOT

ENVS = ROOT / "envs"


def asked(name):
    """{package: Requirement} of an .in file and those that it includes."""
    found = {}
    for line in (ENVS / name).read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("-r "):
            found |= asked(line.removeprefix("-r "))
        elif line:
            requirement = Requirement(line)
            found[canonical(requirement.name)] = requirement
    return found


def pinned(name):
    """{package: version} of a .txt file, in which each line pins one."""
    lines = [line for line in (ENVS / name).read_text().splitlines() if line and not line.startswith("#")]
    return {canonical(package): of for package, of in (line.split("==") for line in lines)}


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["workflow", "dev"])
def test_each_requirement_is_pinned_within_its_bounds(name):
    pins = pinned(f"{name}.txt")
    for package, requirement in asked(f"{name}.in").items():
        assert package in pins, f"{package}: run make pins"
        assert requirement.specifier.contains(pins[package], prereleases=True), package


def test_developers_have_what_users_have():
    users, developers = pinned("workflow.txt"), pinned("dev.txt")
    assert {package: developers.get(package) for package in users} == users


def test_conda_installs_the_same_pins():
    conda = yaml.safe_load((ENVS / "workflow.yaml").read_text())
    (pip,) = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    assert pip == ["-r workflow.txt"]
    (python,) = [entry for entry in conda["dependencies"] if str(entry).startswith("python=")]
    needed = re.search(r"version_info < \((\d), (\d+)\)", (ROOT / "Makefile").read_text())
    assert tuple(map(int, python.removeprefix("python=").split("."))) >= tuple(map(int, needed.groups()))


def test_every_rule_names_that_conda_environment():
    for path in (ROOT / "rules").glob("*.smk"):
        own = re.split(r"^rule ", path.read_text(), flags=re.MULTILINE)[1:]
        for rule in own:
            if "shell:" in rule.split("use rule")[0]:
                assert '"../envs/workflow.yaml"' in rule, f"{path.name}: {rule.split(':')[0]}"


def test_what_is_installed_is_what_is_pinned():
    """Where tests run in the environment of `make setup`; what another machine's wheel brings may be absent."""
    wrong = {}
    for package, of in pinned("dev.txt").items():
        try:
            found = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
        if found != of.partition("+")[0]:
            wrong[package] = (found, of)
    assert not wrong, "make setup"


def test_pre_commit_runs_what_make_check_runs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    check = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    for hook in hooks:
        assert hook["entry"] in check, hook["entry"]
    assert "make check" in (ROOT / ".ci/run").read_text()
