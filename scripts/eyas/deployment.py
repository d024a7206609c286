"""deploy/: the draft as it is copied to a host or pushed to the Hub, the server's command, and a check of the server.

    draft/              model.safetensors, config.json, README.md (the model card)
    launch_server.sh    the target's server, with the draft when it is faster so
    check               asks the running server a handful of prompts; fails when too little is accepted
    prompts.json        what it asks, in the target's tokens

No slowdown is shipped: when the evaluation found the draft slower, the server is started without it, and says so.
"""

import shlex
import shutil
from pathlib import Path

import yaml

from eyas.config import Evaluation, Target
from eyas.eagle3.checkpoint import CONFIG, WEIGHTS, check_export
from eyas.evaluation import ENGINES
from eyas.evaluation.prompts import heldout_prompts, in_turns
from eyas.records import read_json, whole_file, write_json
from eyas.target.launch import ALGORITHM, arguments, drafting_target

CHECKED_PROMPTS = 8
FLOOR = 0.8  # of the gain that was measured: less fails the check
CHECK = Path(__file__).with_name("deployment_check.py")
DRAFT = '"$here/draft"'


def deploy(settings: dict, draft: Path, evaluation: Path, corpus: Path, licenses: dict[str, str], out: Path) -> None:
    """Write `out`. settings: config.Config.evaluate_settings; evaluation: summary.json; corpus: its folder.

    licenses: of the datasets, by name.
    """
    summary, stats = read_json(evaluation), read_json(corpus / "stats.json")
    asked, target = Evaluation.model_validate(settings["evaluate"]), Target.model_validate(settings["target"])
    check_export(draft)
    (out / "draft").mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, CONFIG):
        with whole_file(out / "draft" / name) as copy, open(draft / name, "rb") as original:
            shutil.copyfileobj(original, copy)
    check_export(out / "draft")
    with whole_file(out / "draft/README.md") as file:
        file.write(model_card(summary, stats, read_json(draft / "training.json"), target, licenses).encode())
    prompts = heldout_prompts(corpus / "heldout.parquet", CHECKED_PROMPTS, asked.max_prompt_tokens)
    length = summary["verdict"]["acceptance_length"]
    write_json(
        out / "prompts.json",
        {
            "floor": round(1 + FLOOR * (length - 1), 3),
            "max_new_tokens": asked.max_new_tokens,
            "prompts": [p.input_ids for p in in_turns(prompts, CHECKED_PROMPTS)],
        },
    )
    for name, text in (("launch_server.sh", launch_script(target, asked, summary)), ("check", CHECK.read_text())):
        with whole_file(out / name) as file:
            file.write(text.encode())
        (out / name).chmod(0o755)


def launch_script(target: Target, evaluation: Evaluation, summary: dict) -> str:
    """The server's command for this host, with the draft when that is faster."""
    verdict = summary["verdict"]
    measured = f"Measured with {ENGINES[verdict['engine']]}: {verdict['sentence']}"
    if verdict["faster"]:
        best = summary["best_chain"][verdict["engine"]][str(verdict["concurrency"])]["drafts"]
        served = drafting_target(target, Path("@draft@"), best, evaluation.flags).sglang
        words = f"# With the draft in chains of {best}. {measured}"
    else:
        served = target.sglang
        words = f"# WITHOUT the draft, which would make serving slower. {measured}"
    flags = " ".join(shlex.quote(a) for a in arguments(served)).replace("@draft@", DRAFT)
    model = str(Path(target.model).absolute()) if Path(target.model).is_dir() else target.model
    env = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in served.env.items())
    return (
        "#!/usr/bin/env bash\n"
        f"# Starts {target.name} on SGLang {served.version}.\n{words}\n"
        "# PYTHON, HOST and PORT in the environment replace the defaults; further flags may follow.\n"
        "set -euo pipefail\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        f"{env}"
        f'exec "${{PYTHON:-{served.python}}}" -m sglang.launch_server --model-path {shlex.quote(model)} '
        f'--host "${{HOST:-127.0.0.1}}" --port "${{PORT:-30000}}" {flags} "$@"\n'
    )


def model_card(summary: dict, stats: dict, training: dict, target: Target, licenses: dict[str, str]) -> str:
    """README.md of the draft's folder, with the Hub's metadata."""
    verdict, train = summary["verdict"], training["settings"]["train"]
    front = {
        "library_name": "sglang",
        "pipeline_tag": "text-generation",
        "base_model": target.model if "/" in target.model and not Path(target.model).exists() else target.name,
        "tags": ["eagle3", "speculative-decoding", "draft-model"],
    }
    datasets = "\n".join(
        f"| {name} | {own['samples']:,} | {own['trainable_tokens']:,} | {licenses.get(name) or 'not recorded'} |"
        for name, own in stats["train"]["datasets"].items()
        if own["samples"]
    )
    lengths = "\n".join(
        f"| {name} | {own['answers']} | {own['acceptance_length']:.2f} |"
        for name, own in summary["by_dataset"][verdict["engine"]].items()
        if own["acceptance_length"] is not None
    )
    return f"""---
{yaml.safe_dump(front, sort_keys=False)}---
# EAGLE-3 draft for {target.name}

Served with SGLang's `--speculative-algorithm {ALGORITHM}`, it proposes tokens that {target.name} checks: the
answers stay the target's own. Any other algorithm accepts nothing, without an error.
config.json numbers the target's layers as SGLang does for this target; other servers may count otherwise.

{verdict["sentence"]} Measured with {ENGINES[verdict["engine"]]}, on held-out prompts, answers of at most
{summary["settings"]["evaluate"]["max_new_tokens"]} tokens, temperature {summary["temperature"]}. The target's own token
counts in the acceptance length.

| held out of | answers | acceptance length |
|---|---|---|
{lengths}

## Made from

{stats["train"]["samples"]:,} samples, {stats["train"]["trainable_tokens"]:,} trained tokens.

| dataset | samples | trained tokens | licence |
|---|---|---|---|
{datasets}

## Training

{training["steps"]:,} steps over {training["tokens"]:,} tokens: {train["steps"]} steps of the training-time test, loss
{train["loss"]}, {train["optimizer"]}, seed {train["seed"]}.
"""
