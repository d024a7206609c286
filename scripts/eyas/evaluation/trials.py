"""One engine's trial: each prompt answered with the draft and without it, kept as it comes.

A line of evaluation/<engine>.jsonl: id, dataset, output_ids (with the draft), accepted (see acceptance.py), seconds
(after the first token), chain_seconds (of these, in the draft's chains; where it is known), alone_ids and alone_seconds
(the same without a draft).
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import torch
import xxhash
from transformers import AutoConfig

from eyas.config import Evaluation, Target
from eyas.eagle3.checkpoint import WEIGHTS, check_export, load_draft
from eyas.eagle3.propose import Proposer
from eyas.errors import EyasError
from eyas.evaluation.acceptance import Acceptance
from eyas.evaluation.prompts import Asked
from eyas.evaluation.walk import CachedTarget, answer_alone, walk
from eyas.journal import Journal
from eyas.layers import layers_of_ids
from eyas.progress import Progress
from eyas.records import whole_file
from eyas.target.engine import identity_of
from eyas.window import fingerprint


def trial_key(settings: dict, draft: Path) -> str:
    """Names a journal by all that decides what a trial gives: the draft's weights, the target, how it is asked."""
    asked = settings["evaluate"]
    deciding = {k: asked[k] for k in ("chain", "max_new_tokens", "temperature")}
    weights = xxhash.xxh3_128((draft / WEIGHTS).read_bytes()).hexdigest()
    return fingerprint(deciding, identity_of(Target.model_validate(settings["target"])), weights)


def run_trials(
    prompts: list[Asked], journal: Path, out: Path, open_trial: Callable[[], Callable[[Asked], dict]]
) -> None:
    """Try each prompt and write `out`; what the journal has is not tried again. open_trial: prompt → its line."""
    with Journal(journal) as kept:
        todo = [p for p in prompts if p.id not in kept]
        logging.info("%s prompts, %s tried before", len(prompts), len(prompts) - len(todo))
        progress, trial = Progress(out.name, "prompts"), open_trial() if todo else None
        for done, prompt in enumerate(todo, start=1):
            line = trial(prompt)
            kept.append({"id": prompt.id, "dataset": prompt.dataset, **line})
            progress.update(done, done / len(todo))
        progress.close()
        with whole_file(out) as file:
            for line in kept.items([p.id for p in prompts]):
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def read_trials(path: Path) -> list[dict]:
    """The lines of an engine's file."""
    try:
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        return [line for line in lines if line["id"]]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise EyasError(f"{path}: no trials of an engine ({error}): run `snakemake --force {path}`") from None


def walk_trial(model: str, draft: Path, embeddings: torch.Tensor, evaluation: Evaluation) -> Callable[[Asked], dict]:
    """The reference engine with the draft of a folder; embeddings [vocabulary, H]: the target's."""
    check_export(draft)
    trained = load_draft(draft, embeddings).requires_grad_(False)
    architecture = (AutoConfig.from_pretrained(model).architectures or [""])[0]
    target = CachedTarget(model, layers_of_ids(trained.config.aux_layers, architecture))
    trained.to(target.device)
    proposer = Proposer(trained, target.context + evaluation.chain)

    def trial(prompt: Asked) -> dict:
        found = walk(target, proposer, prompt.input_ids, prompt.id, evaluation.sampling, evaluation.chain)
        alone, seconds = answer_alone(target, prompt.input_ids, prompt.id, evaluation.sampling)
        return {
            "output_ids": found.output_ids,
            "accepted": found.accepted,
            "seconds": round(found.seconds, 4),
            "chain_seconds": round(found.chain_seconds, 4),
            "alone_ids": alone,
            "alone_seconds": round(seconds, 4),
        }

    return trial


def by_dataset(trials: list[dict]) -> Iterator[tuple[str, Acceptance]]:
    """Each dataset's acceptance, by name."""
    for name in sorted({t["dataset"] for t in trials}):
        yield name, Acceptance.of(t for t in trials if t["dataset"] == name)
