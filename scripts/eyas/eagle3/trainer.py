"""The training loop: optimizer steps over packed batches, checkpoints that a killed run goes on from, what is measured.

One optimizer step takes `batches_per_step` batches of the whole run, however many processes share them, and divides
each step's losses by the supervised positions of all of them: one process or eight give the same losses. A checkpoint
holds all that the next step depends on, so a run that was killed and goes on gives the losses of one that was not.
"""

import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import orjson
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from eyas.config import Training
from eyas.eagle3.data import Pack, Reader, Shards, on_device
from eyas.eagle3.export import export
from eyas.eagle3.metrics import Metrics
from eyas.eagle3.model import Draft
from eyas.eagle3.optimizers import optimizers_of, schedule, set_rates
from eyas.eagle3.supervision import Batch, Objective, supervise
from eyas.eagle3.teacher import Teacher
from eyas.eagle3.world import World
from eyas.errors import EyasError
from eyas.progress import duration
from eyas.records import whole_file
from eyas.window import Window

LAST = "last.pt"
BEST = "best"
RECENT = 50  # losses that a spike is seen against
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass(frozen=True)
class Block:
    """Shards that are shuffled together: all of them, or one of a window.

    number: 0, 1, … through all passes. verify: compare checksums as samples are read.
    """

    number: int
    shards: Shards
    verify: bool


class Source(Protocol):
    """Where blocks come from."""

    def blocks(self, first: int) -> Iterator[Block]:
        """From block `first` on; waits for one that is not there yet."""

    def done(self, block: int) -> None:
        """The block was trained on, and a checkpoint that says so is on the disk."""

    def share(self, block: int, of_block: float) -> float:
        """How much of the whole training is done when `of_block` of this block is."""


class AllAtOnce:
    """Every shard is there: a block is a pass over all of them. verified: the checksums were compared before."""

    def __init__(self, shards: Shards, epochs: int, verified: bool):
        self.shards, self.epochs, self.verified = shards, epochs, verified

    def blocks(self, first: int) -> Iterator[Block]:
        for epoch in range(first, self.epochs):
            yield Block(epoch, self.shards, epoch == 0 and not self.verified)

    def done(self, block: int) -> None:
        pass

    def share(self, block: int, of_block: float) -> float:
        return (block + of_block) / self.epochs


class Windowed:
    """Shards come and go: a block is one of them. alive: see Window.wait_for."""

    def __init__(self, window: Window, alive: Callable[[], None] | None, first_process: bool):
        self.window, self.alive, self.first_process = window, alive, first_process

    def blocks(self, first: int) -> Iterator[Block]:
        for number in range(first, self.window.total):
            yield Block(number, Shards([self.window.wait_for(number, self.alive)]), True)

    def done(self, block: int) -> None:
        if self.first_process:
            self.window.advance(block + 1)

    def share(self, block: int, of_block: float) -> float:
        return (block + of_block) / self.window.total


@dataclass
class Position:
    """How far a run is: optimizer steps taken; the block, and batches of it that are done; seconds spent training."""

    step: int = 0
    block: int = 0
    batches: int = 0
    seconds: float = 0.0
    tokens: int = 0
    recent: list[float] = field(default_factory=list)
    best: dict | None = None


class Stopped(Exception):
    """A signal asked the run to end; a checkpoint was written."""


class Trainer:
    """Trains `draft` in place. state: folder of checkpoints and metrics. heldout: judged at intervals, or None.

    EyasError when the loss is no number or jumps, naming step and samples; what was trained until the last checkpoint
    stays.
    """

    def __init__(
        self,
        training: Training,
        objective: Objective,
        draft: Draft,
        teacher: Teacher,
        state: Path,
        world: World,
        heldout: Shards | None,
    ):
        self.training, self.objective, self.draft, self.teacher = training, objective, draft, teacher
        self.state, self.world, self.heldout = state, world, heldout
        self.parameters = draft.trainable(objective.train_lm_head)
        self.model = world.wrapped(draft, training)
        if training.sharding == "fsdp":  # sharding made others of them
            self.parameters = draft.trainable(objective.train_lm_head)
        self.optimizers = optimizers_of(self.parameters, training)
        self.position, self.dtype = Position(), world.compute_dtype(training.precision)
        self.metrics = Metrics(state, world.rank == 0, training.wandb)
        self.interval = _Interval()
        self.saved_at = time.monotonic()

    def run(self, source: Source) -> Position:
        """Train to the end of the source, or of the time budget; goes on from the last checkpoint."""
        if self._restore():
            logging.info("going on at step %s", f"{self.position.step:,}")
        self.metrics.open(self.position.step)
        self.started = time.monotonic() - self.position.seconds
        self.world.watch_signals()
        for block in source.blocks(self.position.block):
            if self._block(block, source):
                break
            self.position.block, self.position.batches = block.number + 1, 0
            self._save()
            source.done(block.number)
        self._evaluate()
        self._save(final=True)
        self.metrics.close()
        return self.position

    def _block(self, block: Block, source: Source) -> bool:
        """Train on one block; whether the time is up."""
        training, world, position = self.training, self.world, self.position
        packs = block.shards.packs(training.batch_tokens, training.seed, block.number)
        at_once = training.batches_per_step
        todo = packs[position.batches :]
        steps = [todo[k : k + at_once] for k in range(0, len(todo), at_once)]
        mine = [pack for step in steps for pack in step[world.rank :: world.size]]
        with_last = self.objective.loss != "hard"
        reading = Reader(block.shards, mine, with_last=with_last, verify=block.verify, device=world.device)
        with reading:
            batches = iter(reading)
            for step in steps:
                progress = source.share(block.number, position.batches / len(packs))
                if training.max_minutes is not None:
                    position.seconds = time.monotonic() - self.started
                    progress = max(progress, world.first(position.seconds) / (60 * training.max_minutes))
                    if progress >= 1:
                        return True
                own = step[world.rank :: world.size]
                waited = reading.waited_s
                self._step(step, [next(batches) for _ in own], progress, block.shards)
                self.interval.waited += reading.waited_s - waited
                position.step += 1
                position.batches += len(step)
                position.tokens += sum(pack.tokens for pack in step)
                self._after_step(progress)
        return False

    def _step(self, step: list[Pack], batches: list[Batch], progress: float, shards: Shards) -> None:
        """One optimizer step over the batches that this process has of it."""
        training, world, objective = self.training, self.world, self.objective
        t2d = self.draft.t2d
        while len(batches) < -(-len(step) // world.size):  # every process runs as many times
            batches.append(_nothing(self.draft, world.device))
        plans = [supervise(b, self.teacher.targets(b, objective), t2d, objective) for b in batches]
        totals = torch.stack([torch.stack([p.counts, p.masked, p.chains]) for p in plans]).sum(0)  # [3, steps]
        stop = torch.tensor([world.asked_to_stop], device=totals.device)
        totals = world.summed(torch.cat([totals.flatten(), stop]))
        totals, self.stopping = totals[:-1].view(3, -1), bool(totals[-1])
        counts, masked, chains = totals
        found = torch.zeros(3, objective.steps, device=counts.device, dtype=torch.float64)
        share = schedule(progress, training)
        set_rates(self.optimizers, share)
        for k, (batch, plan) in enumerate(zip(batches, plans, strict=True)):
            with world.syncing(self.model, k == len(batches) - 1):
                with self._autocast():
                    result = self.model(batch, plan, objective, counts)
                # Processes average their gradients, while each divided by the counts of all.
                (result.loss * world.size).backward()
            found += torch.stack([result.sums.detach(), result.hits, result.joint])
        sums, hits, joint = world.summed(found)
        weights = torch.tensor(objective.weights, device=sums.device)
        losses = sums / counts.clamp_min(1)
        loss = float((weights * losses).sum())
        norm = float(world.clip(self.parameters.values(), training.clip))
        self._check_sound(loss, norm, step, shards)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.position.recent = [*self.position.recent[1 - RECENT :], loss]
        self.interval.add(loss, norm, share, sum(p.tokens for p in step), sums, counts, hits, masked, joint, chains)

    def _check_sound(self, loss: float, norm: float, step: list[Pack], shards: Shards) -> None:
        """EyasError before anything was changed, when the loss or the gradient is no number, or the loss jumps."""
        recent = self.position.recent
        usual = statistics.median(recent) if len(recent) == RECENT else math.inf
        if math.isfinite(loss) and math.isfinite(norm) and loss <= self.training.max_loss_ratio * usual:
            return
        number = self.position.step + 1
        names = [shards.name(*sample) for pack in step for sample in pack.samples]
        what = f"the loss is {loss:.4g}, the gradient's norm {norm:.4g}"
        if math.isfinite(loss) and math.isfinite(norm):
            what += f"; the median of the last {RECENT} is {usual:.4g} (train.max_loss_ratio)"
        raise EyasError(
            f"training, step {number:,}: {what}; the step was not taken. Its samples: {', '.join(names[:5])}"
            f"{f' and {len(names) - 5:,} more' if len(names) > 5 else ''}. A rerun goes on from the checkpoint in "
            f"{self.state}: look at these samples first; with a higher train.max_loss_ratio it goes on over them, "
            "with a lower train.lr or train.clip it starts anew"
        )

    def _autocast(self):
        device = self.world.device.type
        return torch.autocast(device, self.dtype) if self.dtype != torch.float32 else nullcontext()

    def _after_step(self, progress: float) -> None:
        training, position = self.training, self.position
        position.seconds = time.monotonic() - self.started
        if position.step % training.log_every == 0:
            self._report(progress)
        if self.stopping:
            self._save(final=True)
            raise Stopped(f"training was stopped at step {position.step:,}; the next run goes on from there")
        if position.step % training.evaluate_every == 0:
            self._evaluate()
        if self.world.first(time.monotonic() - self.saved_at) > 60 * training.checkpoint_minutes:
            self._save()

    def _report(self, progress: float) -> None:
        position, values = self.position, self.interval.values()
        values |= {"step": position.step, "tokens": position.tokens, "progress": round(progress, 5)}
        values |= {"memory_gb": round(self.world.memory_gb(), 3), "seconds": round(position.seconds, 2)}
        self.metrics.write("train", values)
        if self.world.rank == 0:
            left = position.seconds * (1 / max(progress, 1e-6) - 1)
            logging.info(
                "step %s (%.1f%%): loss %.3f, simulated acceptance length %.3f, %s tokens/s, data waited for %.1f%%, "
                "%s left",
                *(f"{position.step:,}", 100 * progress, values["loss"], values["acceptance_length"]),
                *(f"{values['tokens_per_s']:,.0f}", 100 * values["data_wait"], duration(left)),
            )
        self.interval = _Interval()

    def _evaluate(self) -> None:
        """Judge the draft on what it does not train on; the best one is kept, exported."""
        if self.heldout is None or self.metrics.evaluated == self.position.step:
            return
        started = time.monotonic()
        found = evaluate(self.model, self.teacher, self.objective, self.heldout, self.training, self.world, self.dtype)
        found |= {"step": self.position.step, "seconds": round(self.position.seconds, 2)}
        self.metrics.write("heldout", found)
        length = found["acceptance_length"]
        if self.world.rank == 0:
            logging.info(
                "held out: loss %.3f, simulated acceptance length %.3f (1 + %s)",
                *(found["loss"], length, " + ".join(f"{x:.2f}" for x in found["joint"])),
            )
        best = self.position.best
        if best is None or length > best["acceptance_length"]:
            self.position.best = {"step": self.position.step, "acceptance_length": length}
            self._export(self.state / BEST)
        self.started += time.monotonic() - started  # judging does not count as training

    def _export(self, folder: Path) -> None:
        draft = self.world.whole_draft(self.model, self.draft)
        if self.world.rank == 0:
            export(draft, folder, embeddings=False)
        self.world.wait()

    # Checkpoints

    def _save(self, final: bool = False) -> None:
        """Write the checkpoint; a full disk costs a warning now, an error at the end."""
        self.saved_at = time.monotonic()
        state = {
            "model": get_model_state_dict(
                self.model, options=StateDictOptions(**{**asdict(FULL), "ignore_frozen_params": True})
            ),
            "optimizers": [get_optimizer_state_dict(self.model, o, options=FULL) for o in self.optimizers],
            "aux_scale": self.draft.aux_scale.cpu(),
            "position": orjson.dumps(asdict(self.position)).decode(),
        }
        if self.world.rank == 0:
            try:
                with whole_file(self.state / LAST) as file:
                    torch.save(state, file)
            except (OSError, RuntimeError) as error:
                if final or not _is_full_disk(error):
                    raise
                logging.warning("no checkpoint at step %s: %s; training goes on", f"{self.position.step:,}", error)
        self.world.wait()

    def _restore(self) -> bool:
        path = self.state / LAST
        if not path.exists():
            return False
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            position = Position(**json.loads(state["position"]))
        except Exception as error:  # torch raises many kinds on a damaged file
            raise EyasError(
                f"{path}: this checkpoint cannot be read ({type(error).__name__}: {error}): move it away to train from "
                "the start"
            ) from None
        options = StateDictOptions(**{**asdict(FULL), "strict": False})
        set_model_state_dict(self.model, state["model"], options=options)
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            set_optimizer_state_dict(self.model, optimizer, own, options=FULL)
        self.draft.aux_scale.copy_(state["aux_scale"])
        self.position = position
        return True


class _Interval:
    """Sums since the last report."""

    def __init__(self):
        self.began, self.waited, self.tokens, self.steps = time.monotonic(), 0.0, 0, 0
        self.loss = self.norm = self.rate = 0.0
        self.totals: Tensor | None = None

    def add(self, loss, norm, rate, tokens, *totals: Tensor) -> None:
        self.steps, self.tokens, self.rate = self.steps + 1, self.tokens + tokens, rate
        self.loss, self.norm = self.loss + loss, self.norm + norm
        totals = torch.stack([t.double() for t in totals])  # [6, steps]
        self.totals = totals if self.totals is None else self.totals + totals

    def values(self) -> dict:
        seconds = max(time.monotonic() - self.began, 1e-9)
        return {
            "loss": self.loss / self.steps,
            **rates(self.totals),
            "lr_share": round(self.rate, 6),
            "gradient_norm": self.norm / self.steps,
            "tokens_per_s": round(self.tokens / seconds, 1),
            "data_wait": round(self.waited / seconds, 4),
        }


def rates(totals: Tensor) -> dict:
    """Of [6, steps]: sums, counts, hits, masked, joint, chains (see ttt.Result and supervision.Plan).

    losses: mean of each step; accuracy: of each step; joint: how often the draft is right up to each step;
    acceptance_length: 1 + Σ joint, simulated: over all positions, not along the walk that serving takes.
    """
    sums, counts, hits, masked, joint, chains = totals.tolist()
    share = [j / c if c else 0.0 for j, c in zip(joint, chains, strict=True)]
    return {
        "losses": [round(s / c, 5) if c else 0.0 for s, c in zip(sums, counts, strict=True)],
        "accuracy": [round(h / m, 5) if m else 0.0 for h, m in zip(hits, masked, strict=True)],
        "joint": [round(x, 5) for x in share],
        "acceptance_length": round(1 + sum(share), 5),
        "supervised": int(counts[0]),
    }


@torch.no_grad()
def evaluate(
    model: nn.Module,
    teacher: Teacher,
    objective: Objective,
    heldout: Shards,
    training: Training,
    world: World,
    dtype: torch.dtype,
) -> dict:
    """`rates` on held-out samples, in all and by dataset; the processes share the batches."""
    draft, by_dataset = world.plain(model), {}
    for dataset in heldout.datasets:
        packs = heldout.packs(training.batch_tokens, None, dataset=dataset)
        totals = torch.zeros(6, objective.steps, dtype=torch.float64, device=world.device)
        for k in range(0, len(packs), world.size):  # every process runs as many times: FSDP's do so together
            pack = packs[k + world.rank] if k + world.rank < len(packs) else None
            batch = _nothing(draft, world.device)
            if pack is not None:
                batch = on_device(heldout.batch(pack, objective.loss != "hard", verify=False), world.device)
            plan = supervise(batch, teacher.targets(batch, objective), draft.t2d, objective)
            with torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32):
                found = draft(batch, plan, objective, plan.counts)
            totals += torch.stack([found.sums, plan.counts, found.hits, plan.masked, found.joint, plan.chains])
        by_dataset[dataset] = world.summed(totals)
    whole = torch.stack(list(by_dataset.values())).sum(0)
    found = rates(whole)
    weighted = sum(w * loss for w, loss in zip(objective.weights, found["losses"], strict=True))
    return {"loss": weighted, **found, "datasets": {name: rates(t) for name, t in by_dataset.items()}}


def _nothing(draft: Draft, device: torch.device) -> Batch:
    """A batch without a supervised position."""
    c = draft.config
    zeros = torch.zeros(1, dtype=torch.int64, device=device)
    aux = torch.zeros(1, len(c.aux_layers) * c.aux_size, device=device)
    last = torch.zeros(1, c.aux_size, device=device)
    return Batch(zeros, zeros, aux, last, torch.tensor([0, 1], device=device))


def _is_full_disk(error: Exception) -> bool:
    import errno

    code = getattr(error, "errno", None)
    return code in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error) or "unexpected pos" in str(error)
