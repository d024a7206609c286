"""A draft that nothing is accepted of: the known causes, the likeliest first, each with the check made."""

from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open

from eyas.eagle3.export import CONFIG, WEIGHTS, faults, load_config
from eyas.errors import EyasError


def explain(
    draft: Path, engine: str, length: float, floor: float, simulation: dict | None, algorithm: str | None
) -> str:
    """The message of an evaluation that fails: what was measured, and what each check found.

    simulation: see summary.compared. algorithm: that the server was started with; None for the reference.
    """
    causes = list(_causes(draft, simulation, algorithm))
    lines = [f"  {n}. {cause}: {found}" for n, (cause, found) in enumerate(causes, start=1)]
    return (
        f"evaluation/{engine}.jsonl: acceptance length {length:.2f}, expected {floor:.2f} or more "
        "(evaluate.min_acceptance): the draft gains nothing. Known causes, the likeliest first, and what was checked:\n"
        + "\n".join(lines)
    )


def _causes(draft: Path, simulation: dict | None, algorithm: str | None) -> Iterator[tuple[str, str]]:
    if algorithm is not None:
        right = algorithm == "EAGLE3"
        said = "EAGLE3: right" if right else f"{algorithm}: WRONG, a draft of three layers needs EAGLE3"
        yield "another algorithm than EAGLE3 feeds the draft the last state alone", said
    yield (
        "the draft learned too little",
        f"the training simulated {simulation['simulated']:.2f} on held-out samples" if simulation else "not simulated",
    )
    config = load_config(draft)
    wrong = [f"{name}: {fault}" for name, fault in faults(draft, config)]
    yield (
        "a tensor is missing or misnamed, and dropped in silence",
        "; ".join(wrong) or "all names and shapes are right",
    )
    yield "lm_head was not trained, or is another's", _head(draft)
    yield (
        "the layers' states come in another order, or from a neighbouring layer",
        (f"{CONFIG} says {list(config.aux_layers)}, as SGLang numbers them: compare with `layers` of the shards"),
    )
    yield (
        "the prompts are not what the target serves (chat template, tokenizer)",
        ("the prompts are the corpus's own tokens"),
    )


def _head(draft: Path) -> str:
    try:
        with safe_open(draft / WEIGHTS, "pt") as file:
            head = file.get_tensor("lm_head.weight").float()
    except Exception as error:
        raise EyasError(f"{draft / WEIGHTS}: lm_head.weight cannot be read ({error}): train the draft again") from None
    return f"its rows have norms of {head.norm(dim=1).median():.3g} (median), {int((head == 0).all(1).sum())} are zero"
