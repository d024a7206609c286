"""The reference: the draft proposes a chain, the target checks it in one pass, in this process.

What it gives is what the target gives alone: greedily the same tokens, up to ties; sampled, from the same distribution
(speculative sampling, arXiv 2211.17192). Any other engine's acceptance length is held against this one's.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, DynamicCache

from eyas.config import Evaluation, Generation
from eyas.eagle3.export import check_export, load_draft
from eyas.eagle3.propose import Proposer
from eyas.evaluation.prompts import Asked
from eyas.layers import architecture_of, layers_of_ids
from eyas.records import read_json, write_json
from eyas.target.engine import seed_of
from eyas.target.weights import load_model


@dataclass(frozen=True)
class Walk:
    """One prompt answered with a draft.

    accepted [chain + 1]: how many verifications accepted so many drafts. seconds: after the first token; chain_seconds:
    of these, in the draft's chains.
    """

    output_ids: list[int]
    accepted: list[int]
    seconds: float
    chain_seconds: float


class CachedTarget:
    """A causal language model that goes on from what it has read; layers: whose states it gives beside the logits.

    layers: indexes into Hugging Face's output_hidden_states. Batch of one.
    """

    def __init__(self, model: str | Path, layers: tuple[int, ...], device: str | None = None):
        self.model = load_model(model, "sdpa", device, exact=True)
        self.device = self.model.device
        stop = self.model.generation_config.eos_token_id
        self.stop_ids = frozenset([stop] if isinstance(stop, int) else stop or [])
        self.context = self.model.config.get_text_config().max_position_embeddings
        self.layers = layers
        self.prompt: list[int] | None = None

    def begin(self, prompt: list[int]) -> tuple[Tensor, Tensor]:
        """Forget all, and read a prompt: `read(prompt, 1)`. The one that was read last is not read again."""
        if prompt == self.prompt:
            self.forget(len(prompt))
        else:
            self.cache, self.length = DynamicCache(), 0
            self.prompt, self.first = prompt, self.read(prompt, 1)
        return self.first

    @torch.inference_mode()
    def read(self, ids: list[int], keep: int) -> tuple[Tensor, Tensor]:
        """Go on by `ids`: (logits of the last `keep` [keep, vocabulary] fp32, aux states [ids, layers · H])."""
        out = self.model(
            input_ids=torch.tensor([ids], device=self.device),
            past_key_values=self.cache,
            use_cache=True,
            output_hidden_states=True,
            logits_to_keep=keep,
        )
        self.length += len(ids)
        return out.logits[0].float(), torch.cat([out.hidden_states[layer][0] for layer in self.layers], -1)

    def forget(self, length: int) -> None:
        """Go back to so many tokens."""
        if length < self.length:
            self.cache.crop(length - self.length)  # negative: so many tokens less
            self.length = length


def answer_alone(target: CachedTarget, prompt: list[int], name: str, sampling: Generation) -> tuple[list[int], float]:
    """(tokens of the target without a draft, seconds after the first one); name: of the prompt, for its seed."""
    choose = _Dice(name, sampling)
    logits, _ = target.begin(prompt)
    out = [choose(logits[0])]
    started = time.perf_counter()
    while _goes_on(target, prompt, out, sampling.max_new_tokens, 1):
        logits, _ = target.read(out[-1:], 1)
        out.append(choose(logits[0]))
    return out, time.perf_counter() - started


def walk(
    target: CachedTarget, proposer: Proposer, prompt: list[int], name: str, sampling: Generation, chain: int
) -> Walk:
    """Answer with `chain` drafts at each step; the proposer has room for the context that the target has."""
    choose, accepted = _Dice(name, sampling), [0] * (chain + 1)
    logits, aux = target.begin(prompt)
    proposer.restart()
    out = [choose(logits[0])]
    started, chains = time.perf_counter(), 0.0
    proposer.extend(aux, torch.tensor([*prompt[1:], out[0]], device=target.device))
    while _goes_on(target, prompt, out, sampling.max_new_tokens, chain + 1):
        known = target.length
        choose.proposals.clear()
        began = time.perf_counter()
        drafts = proposer.chain(chain, choose.propose)
        chains += time.perf_counter() - began
        logits, aux = target.read([out[-1], *drafts], chain + 1)
        new = choose.verified(drafts, logits, proposer.draft.d2t)
        accepted[len(new) - 1] += 1
        target.forget(known + len(new))
        proposer.extend(aux[: len(new)], torch.tensor(new, device=target.device))
        out += new
    seconds = time.perf_counter() - started
    end = next((k + 1 for k, token in enumerate(out) if token in target.stop_ids), len(out))
    return Walk(out[: min(end, sampling.max_new_tokens)], accepted, seconds, chains)


def walk_trial(
    model: str,
    draft: Path,
    embeddings: Tensor,
    evaluation: Evaluation,
    kept: Callable[[Asked], Path],
    device: str | None = None,
) -> Callable[[Asked], dict]:
    """The reference engine with the draft of a folder.

    embeddings [vocabulary, H]: the target's. kept: where a prompt's answer without a draft is put, for other drafts to
    find it. device: see weights.load_model.
    """
    check_export(draft)
    trained = load_draft(draft, embeddings).requires_grad_(False)
    architecture = architecture_of(AutoConfig.from_pretrained(model).to_dict())
    target = CachedTarget(model, layers_of_ids(trained.config.aux_layers, architecture), device)
    trained.to(target.device)
    proposer = Proposer(trained, target.context + evaluation.chain)

    def alone(prompt: Asked) -> dict:
        path = kept(prompt)
        if path.exists():
            return read_json(path, f"delete {path}, and run again: the prompt is answered anew")
        ids, seconds = answer_alone(target, prompt.input_ids, prompt.id, evaluation.sampling)
        write_json(path, answer := {"alone_ids": ids, "alone_seconds": round(seconds, 4)})
        return answer

    def trial(prompt: Asked) -> dict:
        found = walk(target, proposer, prompt.input_ids, prompt.id, evaluation.sampling, evaluation.chain)
        return {
            "output_ids": found.output_ids,
            "accepted": found.accepted,
            "seconds": round(found.seconds, 4),
            "chain_seconds": round(found.chain_seconds, 4),
            **alone(prompt),
        }

    return trial


def _goes_on(target: CachedTarget, prompt: list[int], out: list[int], most: int, room: int) -> bool:
    ended = not target.stop_ids.isdisjoint(out)
    return not ended and len(out) < most and len(prompt) + len(out) + room <= target.context


class _Dice:
    """Chooses tokens from logits as the sampling says, and verifies proposals without changing the distribution."""

    def __init__(self, name: str, sampling: Generation):
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(seed_of(sampling, name))
        self.proposals: list[Tensor] = []  # the draft's distribution at each step of a chain

    def __call__(self, logits: Tensor) -> int:
        """A token of logits [vocabulary]."""
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        return self._drawn(_distribution(logits, self.sampling))

    def propose(self, logits: Tensor) -> int:
        """A draft id of logits [draft vocabulary]."""
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        self.proposals.append(_distribution(logits, self.sampling))
        return self._drawn(self.proposals[-1])

    def verified(self, drafts: list[int], logits: Tensor, d2t: Tensor) -> list[int]:
        """The drafts that stand, and the target's own token after them; logits [drafts + 1, vocabulary].

        Sampled: draft x stands with probability min(1, p(x) / q(x)); at the first that falls, the token is drawn from
        max(0, p − q), normalized.
        """
        if self.sampling.temperature == 0:
            own = logits.argmax(-1).tolist()
            right = next((k for k, (a, b) in enumerate(zip(drafts, own, strict=False)) if a != b), len(drafts))
            return own[: right + 1]
        for k, draft in enumerate(drafts):
            p = _distribution(logits[k], self.sampling)
            q = torch.zeros_like(p)
            q[torch.arange(len(d2t), device=d2t.device) + d2t] = self.proposals[k].to(p)
            if float(torch.rand(1, generator=self.generator)) * float(q[draft]) >= float(p[draft]):
                return [*drafts[:k], self._drawn((p - q).clamp_min(0))]
        return [*drafts, self._drawn(_distribution(logits[-1], self.sampling))]

    def _drawn(self, weights: Tensor) -> int:
        mass = weights.double().cumsum(-1)
        at = torch.rand(1, generator=self.generator, dtype=torch.float64).to(mass) * mass[-1]
        return int(torch.searchsorted(mass, at, right=True).clamp(max=len(mass) - 1))


def _distribution(logits: Tensor, sampling: Generation) -> Tensor:
    """What is sampled from: the fewest, likeliest tokens that have top_p together, renormalized."""
    p = (logits.double() / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        likeliest, ids = p.sort(descending=True)
        kept = ids[likeliest.cumsum(-1) - likeliest < sampling.top_p]
        p = torch.zeros_like(p).index_copy_(0, kept, p[kept])
    return p / p.sum()
