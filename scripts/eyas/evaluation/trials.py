"""One engine's trial: each prompt answered with the draft and without it, kept as it comes.

A line of evaluation/<engine>.jsonl: id, dataset, benchmark, output_ids (with the draft), accepted (see acceptance.py),
seconds (after the first token), chain_seconds (of these, in the draft's chains; where it is known), alone_ids and
alone_seconds (the same without a draft).
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import orjson
import xxhash

from eyas.config import Target
from eyas.differences import fingerprint
from eyas.eagle3.export import CONFIG, WEIGHTS
from eyas.errors import EyasError
from eyas.evaluation.prompts import Asked
from eyas.journal import Journal
from eyas.progress import Progress
from eyas.target.engine import identity_of


def draft_digest(draft: Path) -> list[str]:
    """Of the two files of a draft's folder."""
    return [xxhash.xxh3_128((draft / name).read_bytes()).hexdigest() for name in (WEIGHTS, CONFIG)]


def trial_key(settings: dict, draft: Path) -> str:
    """Names a journal by all that decides what a trial gives: the draft, the target, how it is asked."""
    asked = settings["evaluate"]
    deciding = {k: asked[k] for k in ("chain", "max_new_tokens", "temperature")}
    return fingerprint(deciding, identity_of(Target.model_validate(settings["target"])), draft_digest(draft))


def run_trials(
    engine: str,
    prompts: list[Asked],
    journal: Path,
    open_trial: Callable[[], AbstractContextManager[Callable[[Asked], dict]]],
) -> list[dict]:
    """Try each prompt and give the lines; what the journal has is not tried again. open_trial: prompt → its line."""
    with Journal(journal) as kept:
        todo = [p for p in prompts if p.id not in kept]
        logging.info("%s: %s prompts, %s tried before", engine, len(prompts), len(prompts) - len(todo))
        if todo:
            progress = Progress(engine, "prompts")
            with open_trial() as trial:
                for done, prompt in enumerate(todo, start=1):
                    line = trial(prompt)
                    own = {"id": prompt.id, "dataset": prompt.dataset, "benchmark": prompt.benchmark}
                    kept.append({**own, **line})
                    progress.update(done, done / len(todo))
            progress.close()
        return list(kept.items([p.id for p in prompts]))


def read_trials(path: Path) -> list[dict]:
    """The lines of an engine's file."""
    try:
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        return [line for line in lines if line["id"]]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise EyasError(f"{path}: no trials of an engine ({error}): run `snakemake --force {path}`") from None
