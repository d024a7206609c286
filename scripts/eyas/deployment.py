"""deploy/: the draft as it is copied to a host or pushed to the Hub, the server's command, and a check of the server.

    draft/              model.safetensors, config.json, README.md (the model card)
    launch_server.sh    the target's server, with the draft when it is faster so
    check               asks the running server a handful of prompts; fails when too little is accepted
    prompts.json        what it asks, in the target's tokens

No slowdown is shipped: when the evaluation found the draft slower, the server is started without it, and says so.
"""

import re
import shlex
import shutil
from pathlib import Path

import yaml

from eyas.config import Deployment, Evaluation, Target
from eyas.eagle3.export import CONFIG, WEIGHTS, check_export
from eyas.errors import EyasError, first_line
from eyas.evaluation import ENGINES
from eyas.evaluation.prompts import in_turns, read_prompts
from eyas.records import read_json, whole_file, write_json
from eyas.target.launch import ALGORITHM, Drafting, arguments, ask_flags, drafting_target

CHECKED_PROMPTS = 8
FLOOR = 0.8  # of the gain that was measured: less fails the check
CHECK = Path(__file__).with_name("deployment_check.py")
DRAFT = '"$here/draft"'


def deploy(settings: dict, draft: Path, evaluation: Path, corpus: Path, out: Path, state: Path) -> None:
    """Write `out`. settings: config.Config.deploy_settings. evaluation, corpus: their folders.

    state: where it is remembered which flags the server's own version has parsed (state/server).
    """
    summary, stats = read_json(evaluation / "summary.json"), read_json(corpus / "stats.json")
    asked, target = Evaluation.model_validate(settings["evaluate"]), Target.model_validate(settings["target"])
    check_export(draft)
    (out / "draft").mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, CONFIG):
        with whole_file(out / "draft" / name) as copy, open(draft / name, "rb") as original:
            shutil.copyfileobj(original, copy)
    check_export(out / "draft")
    with whole_file(out / "draft/README.md") as file:
        training = read_json(draft / "training.json")
        file.write(model_card(summary, stats, training, target, settings["licenses"]).encode())
    prompts = [p for p in read_prompts(evaluation / "prompts.jsonl") if not p.benchmark]
    length = summary["verdict"]["acceptance_length"]
    write_json(
        out / "prompts.json",
        {
            "floor": round(1 + FLOOR * (length - 1), 3),
            "with_draft": summary["verdict"]["faster"],
            "max_new_tokens": asked.max_new_tokens,
            "prompts": [p.input_ids for p in in_turns(prompts, CHECKED_PROMPTS)],
        },
    )
    launch = launch_script(target, asked, summary, state)
    for name, text in (("launch_server.sh", launch), ("check", CHECK.read_text())):
        with whole_file(out / name) as file:
            file.write(text.encode())
        (out / name).chmod(0o755)


def push(draft: Path, deployment: Deployment, target: str) -> dict:
    """Push a draft's folder to the Hub: {"repo", "commit", "url"}. target: its name, for the repository's.

    EyasError when there is no token, or the Hub refuses.
    """
    from huggingface_hub import HfApi, get_token

    check_export(draft)
    if get_token() is None:
        raise EyasError("HF_TOKEN: not set: pushing needs a token that may write (or log in with `hf auth login`)")
    api, repo = HfApi(), deployment.repo
    try:
        words = re.findall(r"\w+(?:\.\w+)*", target, re.ASCII)
        repo = repo or f"{api.whoami()['name']}/{'-'.join([*words, 'eagle3'])}"
        api.create_repo(repo, private=deployment.private, exist_ok=True)
        commit = api.upload_folder(folder_path=draft, repo_id=repo, commit_message=f"EAGLE-3 draft for {target}")
    except Exception as error:  # network, access, name: many kinds, and all end here
        raise EyasError(
            f"deploy.repo: {repo or 'the token'}: the Hub does not take it ({first_line(error)}): use a token that may "
            "write, or name another repository"
        ) from None
    return {"repo": repo, "commit": commit.oid, "url": f"{api.endpoint}/{repo}"}


def launch_script(target: Target, evaluation: Evaluation, summary: dict, state: Path) -> str:
    """The server's command for this host, with the draft when that is faster at the concurrency that it will have.

    EyasError when the server's own version does not take the flags. Where the evaluation did without SGLang, none is
    asked, and the script says so.
    """
    verdict = summary["verdict"]
    measured = f"Measured with {ENGINES[verdict['engine']]}: {verdict['sentence']}"
    if verdict["faster"]:
        best = summary["best_chain"][verdict["engine"]][str(verdict["concurrency"])]["drafts"]
        drafting = Drafting.of(evaluation) if evaluation.topk > 1 else Drafting.whole(best)
        served = drafting_target(target, Path("@draft@"), drafting, evaluation.flags)
        words = f"# With the draft in {drafting}. {measured}"
    else:
        served = target
        words = f"# WITHOUT the draft, which would make serving slower. {measured}"
    if target.engine == "sglang":
        ask_flags(served, state / "deployed")
    else:
        words += f"\n# The flags were not checked: {target.name} was evaluated without SGLang."
    flags = " ".join(shlex.quote(a) for a in arguments(served.sglang)).replace("@draft@", DRAFT)
    python = target.sglang.python
    python = str(Path(python).absolute()) if "/" in python else python
    model = str(Path(target.model).absolute()) if Path(target.model).is_dir() else target.model
    env = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in target.sglang.env.items())
    return (
        "#!/usr/bin/env bash\n"
        f"# Starts {target.name} on SGLang {target.sglang.version}.\n{words}\n"
        "# PYTHON, HOST and PORT in the environment replace the defaults; further flags may follow.\n"
        "set -euo pipefail\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        f"{env}"
        f'exec "${{PYTHON:-{python}}}" -m sglang.launch_server --model-path {shlex.quote(model)} '
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
        f"| {name}{kind} | {own['answers']} | {own['acceptance_length']:.2f} |"
        for key, kind in (("by_benchmark", ""), ("by_dataset", ", held out"))
        for name, own in summary[key][verdict["engine"]].items()
        if own["acceptance_length"] is not None
    )
    drafting = Drafting(summary["chain"], summary["topk"], summary["draft_tokens"])
    return f"""---
{yaml.safe_dump(front, sort_keys=False)}---
# EAGLE-3 draft for {target.name}

Served with SGLang's `--speculative-algorithm {ALGORITHM}`, it proposes tokens that {target.name} checks: the
answers stay the target's own. Any other algorithm accepts nothing, without an error.
config.json numbers the target's layers as SGLang does for this target; other servers may count otherwise.

{verdict["sentence"]} Measured with {ENGINES[verdict["engine"]]} and {drafting}, on prompts that it was not trained on,
answers of at most {summary["settings"]["evaluate"]["max_new_tokens"]} tokens, temperature {summary["temperature"]}.
The target's own token counts in the acceptance length.

| prompts | answers | acceptance length |
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
