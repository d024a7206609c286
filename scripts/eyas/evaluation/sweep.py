"""Which chain or tree is the fastest: the draft served with each, on the same prompts, at the serving concurrency."""

from collections.abc import Iterable

from eyas.config import Evaluation
from eyas.errors import EyasError
from eyas.evaluation.acceptance import Acceptance
from eyas.evaluation.summary import Cost, listed
from eyas.target.launch import Drafting


def swept(evaluation: Evaluation, engine: str) -> tuple[list[Drafting], list[Drafting]]:
    """(what is tried, what is left out: trees, which the reference does not draft)."""
    every = [Drafting.whole(chain, topk) for topk in evaluation.sweep.topk for chain in evaluation.sweep.chains]
    tried = [d for d in every if d.topk == 1 or engine == "sglang"]
    if not tried:
        raise EyasError("evaluate.sweep.topk: the reference drafts chains alone: add 1")
    return tried, [d for d in every if d not in tried]


def sweep_summary(
    evaluation: Evaluation, engine: str, concurrency: int, trials: Iterable[tuple[Drafting, list[dict]]]
) -> dict:
    """evaluation/sweep.json. trials: how it was drafted → lines of one concurrency, as in trials.py."""
    rows = []
    for drafting, lines in trials:
        acceptance = Acceptance.of(lines)
        if not acceptance.verifications:
            raise EyasError("evaluate.sweep: no answer has a second token: raise evaluate.max_new_tokens")
        cost = Cost.of(lines, acceptance)
        rows.append(
            {
                **{"chain": drafting.chain, "topk": drafting.topk, "draft_tokens": drafting.verified},
                **acceptance.as_dict(),
                "cost_ratio": round(cost.ratio, 4),
                "speedup": round(acceptance.length / cost.ratio, 4),
            }
        )
    best = max(rows, key=lambda row: row["speedup"])
    chosen = next((r for r in rows if (r["chain"], r["topk"]) == (evaluation.chain, evaluation.topk)), None)
    return {
        **{"engine": engine, "concurrency": concurrency, "temperature": evaluation.temperature, "tried": rows},
        "left_out": [str(drafting) for drafting in swept(evaluation, engine)[1]],
        "best": best,
        "sentence": _sentence(best, chosen, concurrency),
    }


def _sentence(best: dict, chosen: dict | None, concurrency: int) -> str:
    keys = {"chain": best["chain"], "topk": best["topk"]} | (
        {"draft_tokens": best["draft_tokens"]} if best["topk"] > 1 else {}
    )
    wanted = listed([f"evaluate.{key}: {value}" for key, value in keys.items()])
    if best["speedup"] <= 1:
        return (
            f"At concurrency {concurrency} nothing that was tried is faster than no draft; the best makes "
            f"{best['speedup']:.2f} times the speed."
        )
    words = f"At concurrency {concurrency} the fastest makes {best['speedup']:.2f} times the speed: {wanted}"
    if chosen is best:
        return f"{words} They are what the configuration says."
    return words + ("" if chosen is None else f" Those of the configuration make {chosen['speedup']:.2f} times.")
