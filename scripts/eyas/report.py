"""The whole report in one document, made from what is there, also half-way through a run (`make report`)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from eyas import describe_corpus, describe_evaluation, describe_records, describe_training, pages
from eyas.config import Config
from eyas.describe_run import describe_run
from eyas.eagle3.metrics import FILE as METRICS
from eyas.errors import EyasError
from eyas.pages import Page
from eyas.tally import as_page, tally


def report(config: Config, root: Path, command: str = "snakemake", processes: int = 1) -> str:
    """The run, then a chapter for all that is there: the inventory, each dataset, corpus, training, evaluation.

    A chapter that cannot be made, since a file is damaged, says so in its place. command, processes: as tally's.
    """
    tokenizer = root / "target/tokenizer"
    states = sorted((root / "hidden_states").rglob("*-of-*.json"))
    makers: list[tuple[str, str, list[Path], Callable[[], Page]]] = [
        ("Inventory", "Inventory of the records", [], lambda: _inventory(config, root, command, processes))
    ]
    for folder, group in (("prepared", "Prepared"), ("responses", "Answers of the target")):
        for name in config.names():
            own = root / folder / name
            makers.append((group, name, [own / "stats.json"], partial(describe_records.describe, own, tokenizer)))
    corpus, coverage = root / "corpus/stats.json", root / "draft_vocab/coverage.json"
    of_corpus = partial(describe_corpus.describe_corpus, corpus, coverage, states)
    makers.append(("Corpus", "Corpus, draft vocabulary, hidden states", [corpus, coverage], of_corpus))
    training, metrics = root / "draft/training.json", root / "draft" / METRICS
    of_training = partial(describe_training.describe_training, metrics, training)
    makers.append(("Training", "Training of the draft", [training], of_training))
    for path, describe in (
        ("evaluation/summary.json", describe_evaluation.describe_evaluation),
        ("evaluation/sweep.json", describe_evaluation.describe_sweep),
        ("scaling/summary.json", describe_evaluation.describe_scaling),
    ):
        makers.append(("Evaluation", path, [root / path], partial(describe, root / path)))
    chapters = []
    for group, title, needed, make in makers:
        if all(path.exists() for path in needed):
            try:
                chapters.append((group, make()))
            except EyasError as error:
                chapters.append((group, pages.page(title, pages.notice(str(error)))))
    return pages.book(describe_run(config, root), chapters)


def _inventory(config: Config, root: Path, command: str, processes: int) -> Page:
    return as_page(tally(config, root / "prepared", command=command, processes=processes))
