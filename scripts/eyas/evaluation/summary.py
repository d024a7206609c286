"""evaluation/summary.json: all figures of an evaluation, what is odd about them, and the verdict.

    speedup = acceptance length / cost ratio,   cost ratio R = seconds of a step with the draft ÷ of one without

A step is one pass of the target. So R is the acceptance length at which the draft begins to pay (break-even).
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from eyas.config import Evaluation
from eyas.eagle3.metrics import FILE as METRICS
from eyas.eagle3.metrics import read_metrics
from eyas.errors import EyasError
from eyas.evaluation import ENGINES
from eyas.evaluation.acceptance import Acceptance, by_dataset, weighed
from eyas.evaluation.causes import explain
from eyas.target.launch import ALGORITHM, Drafting

ENGINES_DIFFER = 0.05  # of an acceptance length, over prompts whose greedy answers agree


def summarize(
    evaluation: Evaluation,
    trials: dict[str, list[dict]],
    draft: Path,
    speed: dict | None = None,
    tokenized: Collection[str] = (),
    population: Mapping[str, int] | None = None,
) -> dict:
    """trials: engine → lines of its file. draft: its folder, with metrics.jsonl. speed: rates by concurrency.

    tokenized: datasets whose texts are not this target's answers, so that no simulation on them tells of serving.
    population: dataset → held-out samples. An engine's acceptance lengths are over these, each dataset counting as it
    does among them (none given: as it was asked); benchmark sets stand by themselves. EyasError when one is below
    min_acceptance, with what is known of the causes.
    """
    by_simulation = simulated_lengths(draft / METRICS, evaluation.chain)
    known = {name: length for name, length in by_simulation.items() if name not in tokenized}
    summary: dict = {
        "chain": evaluation.chain,
        "topk": evaluation.topk,
        "draft_tokens": Drafting.of(evaluation).verified,
        "temperature": evaluation.temperature,
        "simulation": {},
        "acceptance_length": {},
        "accepted_by_position": {},
        "by_dataset": {},
        "by_benchmark": {},
        "cost_ratio": {},
        "break_even_acceptance_length": {},
        "speedup": {},
        "best_chain": {},
        "speed": speed or {},
        "lossless": {},
        "agreement": {},
        "findings": [],
    }
    measured: dict[str, dict[int, tuple[Acceptance, Cost]]] = {}  # by engine and concurrency
    for engine, lines in trials.items():
        by_concurrency = {c: [t for t in lines if t.get("concurrency", 1) == c] for c in concurrencies(lines)}
        widest = by_concurrency[max(by_concurrency)]  # all prompts
        heldout = [t for t in widest if not t.get("benchmark")]
        of_all = weighed(heldout, population or {})
        if of_all.length is None:
            raise EyasError(f"evaluation/{engine}.jsonl: no answer has a second token: raise evaluate.max_new_tokens")
        simulation = compared(heldout, known)
        algorithm = lines[0].get("algorithm")  # what a draft accepts by luck under another is no result
        if of_all.length < evaluation.min_acceptance or algorithm not in (None, ALGORITHM):
            raise EyasError(explain(draft, engine, of_all.length, evaluation.min_acceptance, simulation, algorithm))
        summary["acceptance_length"][engine] = round(of_all.length, 4)
        summary["accepted_by_position"][engine] = of_all.as_dict()["accepted_by_position"]
        summary["by_dataset"][engine] = {name: own.as_dict() for name, own in by_dataset(heldout)}
        judged = [t for t in widest if t.get("benchmark")]
        summary["by_benchmark"][engine] = {name: own.as_dict() for name, own in by_dataset(judged)}
        measured[engine] = {}
        for concurrency, own in by_concurrency.items():
            acceptance = weighed([t for t in own if not t.get("benchmark")], population or {})
            if not acceptance.verifications:
                continue
            cost = Cost.of(own, Acceptance.of(own))
            measured[engine][concurrency] = acceptance, cost
            for key, value in (
                ("cost_ratio", round(cost.ratio, 4)),
                ("break_even_acceptance_length", round(cost.ratio, 4)),
                ("speedup", round(acceptance.length / cost.ratio, 4)),
                ("best_chain", cost.best_chain(acceptance)),
            ):
                summary[key].setdefault(engine, {})[str(concurrency)] = value
        summary["lossless"][engine] = same_answers(widest)
        summary["simulation"][engine] = simulation
        summary["findings"] += findings(engine, simulation, summary["lossless"][engine], evaluation)
    for engine in trials.keys() - {"walk"} if "walk" in trials else ():
        summary["agreement"][engine] = found = agreement(trials["walk"], trials[engine])
        summary["findings"] += disagreement(engine, found)
    summary["verdict"] = verdict(summary, measured, evaluation.serving_concurrency)
    return summary


def concurrencies(trials: list[dict]) -> list[int]:
    """At how many answers at once the trials were made, rising; the reference makes one."""
    return sorted({t.get("concurrency", 1) for t in trials})


@dataclass(frozen=True)
class Cost:
    """Seconds of a step with the draft, of these in its chain of so many drafts, and of a step without it."""

    step: float
    chain: float
    alone: float
    drafts: int

    @classmethod
    def of(cls, trials: list[dict], acceptance: Acceptance) -> "Cost":
        """trials: lines with seconds, alone_seconds, and chain_seconds where it is known."""
        steps, plain = acceptance.verifications, sum(len(t["alone_ids"]) - 1 for t in trials)
        if not (sum(t["seconds"] for t in trials) > 0 and sum(t["alone_seconds"] for t in trials) > 0):
            raise EyasError(
                "evaluation/*.jsonl: no time passed between the tokens of any answer: expected a server that streams "
                "them, or longer answers (evaluate.max_new_tokens)"
            )
        return cls(
            sum(t["seconds"] for t in trials) / steps,
            sum(t.get("chain_seconds", 0.0) for t in trials) / steps,
            sum(t["alone_seconds"] for t in trials) / max(plain, 1),
            len(acceptance.accepted) - 1,
        )

    @property
    def ratio(self) -> float:
        return self.step / self.alone

    @property
    def verifying(self) -> float:
        """Of the ratio, what is not the draft's chain."""
        return (self.step - self.chain) / self.alone

    def best_chain(self, acceptance: Acceptance) -> dict:
        """Of the chains up to the one that was tried, the fastest: each draft costs its share of the chain's time.

        Where that time is not known, only the chain that was tried is.
        """
        shortest = 1 if self.chain else self.drafts
        speedups = {
            n: acceptance.of_chain(n) * self.alone / (self.step - self.chain * (1 - n / self.drafts))
            for n in range(shortest, self.drafts + 1)
        }
        best = max(speedups, key=speedups.get)
        return {"drafts": best, "speedup": round(speedups[best], 4)}


def simulated_lengths(metrics: Path, chain: int) -> dict[str, float]:
    """What the training said of the draft that was published, on held-out samples of each dataset: 1 + Σ joint hits."""
    judged = [line for line in read_metrics(metrics) if line["kind"] == "heldout"]
    if not judged:
        return {}
    best = max(judged, key=lambda line: line["acceptance_length"])
    return {name: 1 + sum(own["joint"][:chain]) for name, own in best["datasets"].items() if own["supervised"]}


def compared(trials: list[dict], simulated: dict[str, float]) -> dict | None:
    """{"simulated", "measured", "error"}: acceptance lengths over the datasets that have both; None without any.

    A length is a mean over verifications, so the simulated ones are weighed by those that were measured. error: the
    standard error of the measured one, a ratio of sums over prompts (Cochran, Sampling Techniques, 6.4), since the
    verifications of one prompt are not independent; None for a single prompt.
    """
    shared = [t for t in trials if t["dataset"] in simulated]
    counts = [(t["dataset"], Acceptance.of([t])) for t in shared]
    counts = [(name, own.verifications, own.tokens) for name, own in counts if own.verifications]
    if not counts:
        return None
    steps, tokens = (sum(column) for column in list(zip(*counts, strict=True))[1:])
    length, n = tokens / steps, len(counts)
    spread = sum((own - length * verified) ** 2 for _, verified, own in counts)
    return {
        "simulated": round(sum(simulated[name] * verified for name, verified, _ in counts) / steps, 4),
        "measured": round(length, 4),
        "error": round(math.sqrt(spread * n / (n - 1)) / steps, 4) if n > 1 else None,
    }


def same_answers(trials: list[dict]) -> dict:
    """How many answers are the same with and without the draft, and how much of the others is."""
    parted = []
    for trial in trials:
        a, b = trial["output_ids"], trial["alone_ids"]
        shared = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if shared is not None:
            parted.append({"id": trial["id"], "dataset": trial["dataset"], "after": shared, "of": len(b)})
    return {"answers": len(trials), "same": len(trials) - len(parted), "parted": parted}


def agreement(reference: list[dict], trials: list[dict]) -> dict:
    """{"answers", "walk", "it"}: acceptance lengths of the reference and of an engine over prompts both answer alike.

    The same answer and the same draft give the same chains, so what differs is how the engine feeds the draft.
    """
    widest = max(concurrencies(trials))
    walked = {t["id"]: t for t in reference}
    alike = [
        (walked[t["id"]], t)
        for t in trials
        if t.get("concurrency", 1) == widest and t["id"] in walked and walked[t["id"]]["output_ids"] == t["output_ids"]
    ]
    lengths = [Acceptance.of(own).length for own in zip(*alike, strict=True)] if alike else [None, None]
    return {"answers": len(alike), "walk": lengths[0], "it": lengths[1]}


def disagreement(engine: str, found: dict) -> list[dict]:
    if found["walk"] is None or found["it"] is None or abs(found["walk"] - found["it"]) <= ENGINES_DIFFER:
        return []
    return [
        {
            "kind": "engines",
            "text": f"{ENGINES[engine]} accepts {found['it']:.2f} tokens a step, the reference {found['walk']:.2f}, "
            f"over {found['answers']} prompts that both answer alike: it feeds the draft something else than it "
            "was trained on (a neighbouring layer, another order of the layers, another vocabulary's map)",
        }
    ]


def findings(engine: str, simulation: dict | None, lossless: dict, evaluation: Evaluation) -> list[dict]:
    """[{"kind", "text"}]: what does not fit together."""
    found = []
    if simulation and simulation["simulated"] > 1.1 and simulation["error"] is not None:
        gain, error = simulation["simulated"] - 1, simulation["error"]
        lost = 1 - (simulation["measured"] - 1) / gain
        if lost - 2 * error / gain > evaluation.max_gap:  # what few prompts cannot tell from chance is none
            found.append(
                {
                    "kind": "gap",
                    "text": f"{ENGINES[engine]}: acceptance length {simulation['measured']:.2f} ± {2 * error:.2f}, "
                    f"while the training simulated {simulation['simulated']:.2f} on held-out samples of the same "
                    f"datasets: {lost:.0%} of the gain is lost (evaluate.max_gap {evaluation.max_gap:.0%}). Suspect "
                    "what differs between the two: the order of the layers, states before or after the norm, the "
                    "vocabulary's map, the chat template.",
                }
            )
    parted = lossless["answers"] - lossless["same"]
    if evaluation.temperature == 0 and parted > 0.5 * lossless["answers"]:
        found.append(
            {
                "kind": "lossy",
                "text": f"{ENGINES[engine]}: {parted} of {lossless['answers']} greedy answers differ from those "
                "without the draft: more than ties explain",
            }
        )
    return found


def verdict(summary: dict, measured: dict[str, dict[int, tuple[Acceptance, Cost]]], serving: int) -> dict:
    """Whether the draft makes serving faster at the concurrency that the server will have; and a sentence why.

    By the engine that serves, where there is one; others answer one prompt after the other.
    """
    engine = "sglang" if "sglang" in measured else next(iter(measured))
    at = serving if serving in measured[engine] else min(measured[engine])
    acceptance, cost = measured[engine][at]
    concurrency, speedups = str(at), summary["speedup"][engine]
    speedup, ratio, length = speedups[concurrency], cost.ratio, acceptance.length
    faster = speedup > 1
    words = (
        f"At concurrency {concurrency} a step with the draft takes {ratio:.2f} times one without, so an acceptance "
        f"length of {ratio:.2f} breaks even; it is {length:.2f}: {speedup:.2f} times the speed."
    )
    best = summary["best_chain"][engine][concurrency]
    if not faster:
        if ratio >= summary["chain"] + 1:
            words += " Even a draft that is always right would not pay: the cost of a step is in the way."
        elif length <= 1 + cost.chain / cost.alone:
            words += (
                " The draft's acceptance is in the way: it would not pay even if verifying cost no more than a plain "
                "step. More data or a longer training would help."
            )
        else:
            words += (
                f" The cost of verifying is in the way: {cost.verifying:.2f} times a plain step, the chain of drafts "
                f"{ratio - cost.verifying:.2f}."
            )
    if best["drafts"] != summary["chain"]:
        words += f" Chains of {best['drafts']} would give {best['speedup']:.2f} times the speed."
    others = {c: s for c, s in speedups.items() if (s > 1) != faster}
    if others:
        words += f" It is {'slower' if faster else 'faster'} at " + listed(
            [f"{c} ({s:.2f} times)" for c, s in sorted(others.items(), key=lambda item: int(item[0]))]
        )
    return {
        "faster": faster,
        "engine": engine,
        "concurrency": at,
        "speedup": speedup,
        "acceptance_length": round(length, 4),
        "sentence": words,
    }


def listed(words: list[str]) -> str:
    """One, two and three."""
    return (", ".join(words[:-1]) + " and " if words[1:] else "") + words[-1] + "."
