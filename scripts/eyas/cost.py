"""What a run has cost, stage by stage, by the benchmark files that Snakemake leaves beside each job.

A file tells of the last time that its job ran to its end: what failed, or was stopped, before that is not in it, and a
job that goes on from its journal tells of what was left.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from eyas.config import Config

# rule → stage, in the order in which a run makes them; all other rules: REST.
STAGES = {
    **dict.fromkeys(("fetch_source", "fetch_tokenizer", "fetch_model", "fetch_head"), "sources"),
    **dict.fromkeys(("prepare_prompts", "prepare_tokenized", "prepare_shard"), "prepared"),
    "generate_responses": "answers",
    **dict.fromkeys(("build_corpus", "build_vocabulary"), "corpus and vocabulary"),
    "capture_states": "hidden states",
    **dict.fromkeys(("train_draft", "train_on_part"), "training"),
    **dict.fromkeys(("choose_prompts", "evaluate_here", "evaluate_sglang", "summarize_evaluation"), "evaluation"),
    **dict.fromkeys(("sweep_evaluation", "evaluate_part_here", "evaluate_part_on_sglang", "fit_scaling"), "evaluation"),
}
REST = "deployment and pages"
ASK_THE_TARGET = (
    *("generate_responses", "capture_states"),
    *("evaluate_sglang", "evaluate_part_on_sglang", "sweep_evaluation"),
)


@dataclass
class Cost:
    """Of one stage. wall_s: summed over its jobs, which may run side by side. peak_mb: of one job's memory."""

    stage: str
    jobs: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float = 0.0
    peak_mb: float = 0.0


def costs(config: Config, root: Path) -> list[Cost]:
    """Of the stages that have run, in their order; root: the working directory."""
    found: dict[str, Cost] = {}
    for path in sorted((root / "benchmarks").rglob("*.tsv")):
        rule = path.relative_to(root / "benchmarks").parts[0].removesuffix(".tsv")
        stage = STAGES.get(rule, REST)
        cost = found.setdefault(stage, Cost(stage))
        with open(path, newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                wall = _number(row.get("s"))
                cost.jobs += 1
                cost.wall_s += wall
                cost.cpu_s += _number(row.get("cpu_time"))
                cost.gpu_s += wall * gpus_of(config, rule)
                cost.peak_mb = max(cost.peak_mb, _number(row.get("max_rss")))
    order = list(dict.fromkeys([*STAGES.values(), REST]))
    return sorted(found.values(), key=lambda cost: order.index(cost.stage))


def gpus_of(config: Config, rule: str) -> int:
    """Devices that a job of the rule holds."""
    if STAGES.get(rule) == "training":
        return config.train_gpus * config.train.nodes
    return config.target_gpus if rule in ASK_THE_TARGET else 0


def _number(text: str | None) -> float:
    """Snakemake writes NA, or -, for what it could not measure of a short job."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
