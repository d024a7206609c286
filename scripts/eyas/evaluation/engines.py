"""One way to try a draft, whatever engine does it."""

import socket
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eyas.config import Evaluation, Target
from eyas.differences import fingerprint
from eyas.errors import EyasError
from eyas.evaluation.prompts import Asked, first_of_each
from eyas.evaluation.served import Served, lines_of, prompts_by_concurrency
from eyas.evaluation.trials import run_trials, trial_key
from eyas.target.engine import identity_of
from eyas.target.launch import Drafting, open_drafting


@dataclass(frozen=True)
class Places:
    """Where a trial reads, and keeps what it has tried; threads: of engines in this process (None: as they choose)."""

    draft: Path
    head: Path
    tokenizer: Path
    state: Path
    threads: int | None = None


def try_draft(
    engine: str, settings: dict, prompts: list[Asked], at: Places, concurrencies: Sequence[int] | None = None
) -> tuple[list[dict], dict]:
    """(lines as in trials.py, rates by concurrency) of walk, sglang or llamacpp.

    settings: config.Config.evaluate_settings. concurrencies: of a server; default: the configuration's.
    """
    evaluation, target = Evaluation.model_validate(settings["evaluate"]), Target.model_validate(settings["target"])
    if engine == "sglang":
        return _served(settings, evaluation, target, prompts, at, concurrencies or evaluation.concurrency)
    if evaluation.topk > 1:
        raise EyasError(f"evaluate.topk: {evaluation.topk}: {engine} drafts chains alone: set it to 1")
    if engine != target.own_trial and evaluation.witness_prompts is not None:
        prompts = first_of_each(prompts, evaluation.witness_prompts)
    journal = at.state / f"evaluation/{engine}-{trial_key(settings, at.draft)}.jsonl"
    opened = _walk if engine == "walk" else _llamacpp
    return run_trials(engine, prompts, journal, partial(opened, evaluation, target, at)), {}


def drafted_by(settings: dict, drafting: Drafting) -> dict:
    """The settings with another chain or tree."""
    own = {"chain": drafting.chain, "topk": drafting.topk, "draft_tokens": drafting.verified}
    return {**settings, "evaluate": {**settings["evaluate"], **own}}


def _served(settings, evaluation: Evaluation, target: Target, prompts, at: Places, concurrencies) -> tuple:
    opened = partial(open_drafting, target, at.state / "server", at.draft, flags=evaluation.flags)
    served = Served(settings, at.draft, at.state / "evaluation", opened)
    asked = prompts_by_concurrency(prompts, concurrencies)
    drafted, alone = served.passes(Drafting.of(evaluation), asked), served.passes(None, asked)
    speed = {str(c): {"with": drafted[c].rates, "without": alone[c].rates} for c in asked}
    return lines_of(asked, drafted, alone), speed


def _walk(evaluation: Evaluation, target: Target, at: Places):
    import torch

    from eyas.evaluation.walk import walk_trial
    from eyas.target.head import Head

    if at.threads:
        torch.set_num_threads(at.threads)
    device = "cpu" if target.engine == "sglang" else None  # the GPUs are for servers, which lease them
    asked = evaluation.model_dump(mode="json", include={"max_new_tokens", "temperature"})
    key = (identity_of(target), asked, socket.gethostname(), at.threads)

    def kept(prompt: Asked) -> Path:
        return at.state / f"evaluation/alone-{fingerprint(key, prompt.id, prompt.input_ids)}.json"

    return nullcontext(walk_trial(target.model, at.draft, Head.load(at.head).embed_tokens, evaluation, kept, device))


def _llamacpp(evaluation: Evaluation, target: Target, at: Places):
    from eyas.evaluation.llamacpp import llamacpp_trial

    folder = at.state / "evaluation/llamacpp"
    return llamacpp_trial(Path(target.model), at.tokenizer, at.draft, evaluation, at.threads or 1, folder)
