"""What a run has cost: benchmark files summed by stage, GPU-hours by what the rules ask for."""

import re

import pytest

from conftest import ROOT
from eyas.config import load
from eyas.cost import ASK_THE_TARGET, REST, STAGES, costs, gpus_of

CONFIG = load()
HEAD = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


def job(root, path, seconds, rss="100", cpu="1"):
    file = root / "benchmarks" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{HEAD}{seconds}\t-\t{rss}\t-\t-\t-\t-\t-\t-\t{cpu}\n")


def test_jobs_are_summed_by_stage_in_the_order_of_a_run(tmp_path):
    job(tmp_path, "describe_run.tsv", 1)
    job(tmp_path, "generate_responses/B1.tsv", 3600, rss="900", cpu="50")
    job(tmp_path, "generate_responses/B2.tsv", 1800, rss="700", cpu="NA")  # as Snakemake writes what it could not see
    job(tmp_path, "prepare_prompts/B1.tsv", 10)
    found = costs(CONFIG, tmp_path)
    assert [c.stage for c in found] == ["prepared", "answers", REST]
    answers = found[1]
    assert (answers.jobs, answers.wall_s, answers.cpu_s, answers.peak_mb) == (2, 5400, 50, 900)
    assert answers.gpu_s == 5400 * CONFIG.target_gpus and found[0].gpu_s == 0
    assert costs(CONFIG, tmp_path / "none") == []


def test_devices_are_those_that_the_rules_ask_for():
    asked = {}
    for path in (ROOT / "rules").glob("*.smk"):
        for rule in re.split(r"^ *(?:use )?rule ", path.read_text(), flags=re.MULTILINE)[1:]:
            name, base = re.match(r"(\w+)(?: as (\w+))?", rule).groups()
            own = re.search(r"gpu=CONFIG.target_gpus|\*\*TRAIN_DEVICES", rule)
            asked[base or name] = own.group() if own else asked.get(name) if base else None
    for rule, how in asked.items():
        if how is None and rule not in ("evaluate_part_on_sglang", "train_on_part"):  # which inherit theirs
            assert gpus_of(CONFIG, rule) == 0, rule
        elif how == "gpu=CONFIG.target_gpus":
            assert rule in ASK_THE_TARGET and gpus_of(CONFIG, rule) == CONFIG.target_gpus, rule
        elif how:
            assert gpus_of(CONFIG, rule) == CONFIG.train_gpus * CONFIG.train.nodes, rule
    assert set(STAGES) <= set(asked) | {"prepare_tokenized"}, "a stage names a rule that is not there"


@pytest.mark.parametrize("rule", ["train_on_part", "evaluate_part_on_sglang"])
def test_rules_made_of_others_hold_what_those_hold(rule):
    assert gpus_of(CONFIG, rule) > 0
