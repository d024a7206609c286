"""From hidden_states/, draft_vocab/ and target/ to draft/: one process's part, alone or beside others (torchrun)."""

import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eyas.config import DECIDES_NO_TRAINING, Capture, DraftModel, Target, Training
from eyas.differences import fingerprint
from eyas.eagle3.data import Shards
from eyas.eagle3.export import check_export, export
from eyas.eagle3.metrics import FILE as METRICS
from eyas.eagle3.metrics import read_metrics
from eyas.eagle3.model import Draft
from eyas.eagle3.start import check_start, objective_of, open_draft, target_config
from eyas.eagle3.teacher import Teacher
from eyas.eagle3.trainer import BEST, AllAtOnce, Trainer, Windowed
from eyas.eagle3.world import World
from eyas.errors import EyasError
from eyas.records import whole_file, write_json
from eyas.states import shard_path
from eyas.storage import refuse_full_disk
from eyas.target.head import Head
from eyas.window import window_of

CHECKPOINT_COPIES = 4  # fp32 weights and two moments, beside a partial file of the same


@dataclass(frozen=True)
class Folders:
    """Where a training reads and writes: those of the workflow, below one working directory or elsewhere."""

    states: Path
    corpus: Path
    vocabulary: Path  # map.safetensors
    head: Path
    tokenizer: Path
    state: Path
    out: Path


def train(settings: dict, at: Folders, alive: Callable[[], None] | None = None) -> None:
    """Train, or go on, and publish `at.out`/{model.safetensors,config.json,metrics.jsonl,training.json}.

    settings: config.Config.train_settings or part_settings. A run's checkpoints lie below at.state, in a folder named
    by all that decides what comes of the run. alive: of a window, see Window.wait_for. EyasError for what does not fit,
    before anything is trained; window.Starved when the next shard of a window is not there and not waited for.
    """
    if "part" in settings and settings["capture"]["window"] is not None:
        raise EyasError(
            "capture.window: a draft on a part of the corpus needs all states on the disk: set it to null, with fewer "
            "prompts (prepare.cap) where they do not fit"
        )
    training, model = Training.model_validate(settings["train"]), DraftModel.model_validate(settings["draft"])
    target, capture = Target.model_validate(settings["target"]), Capture.model_validate(settings["capture"])
    objective = objective_of(training)
    with World("cpu" if training.gpus == 0 else None) as world:
        head = Head.load(at.head)
        heldout = Shards(shard_files(at.states / "heldout", capture.heldout_shards))
        window = window_of(settings, at.states, at.corpus, at.vocabulary, at.state)
        if window is None:
            shards = Shards(shard_files(at.states / "train", capture.shards), settings.get("part", 1))
        elif window.next < window.total:
            shards = Shards([window.wait_for(window.next, alive)])
        else:  # all was trained; what is left is to publish
            shards = heldout
        heldout = heldout if len(heldout.samples) else None
        description = target_config(at.tokenizer, Path(target.model))
        draft = open_draft(model, training, description, head, shards, at.vocabulary)
        check_start(shards, draft, objective)
        state = at.state / (window.key if window else run_key(settings, draft, shards, head))
        verified = training.verify_at_start and window is None
        if world.rank == 0:
            state.mkdir(parents=True, exist_ok=True)
            _refuse_full_disk(draft, state)
            if verified:
                shards.verify()
        world.wait()
        dtype = world.compute_dtype(training.precision)
        teacher = Teacher(head.lm_head.to(world.device), draft.t2d, dtype)
        sizes = f"{sum(p.numel() for p in draft.trainable(objective.train_lm_head).values()) / 1e6:,.1f} M parameters"
        logging.info("%s samples, %s tokens; %s", f"{len(shards.samples):,}", f"{shards.tokens:,}", sizes)
        trainer = Trainer(training, objective, draft, teacher, state, world, heldout)
        if window is None:
            source = AllAtOnce(shards, training.epochs, verified)
        else:
            source = Windowed(window, alive, world.rank == 0)
        position = trainer.run(source)
        whole = world.whole_draft(trainer.model, draft)
        if world.rank == 0:
            read = {"samples": len(shards.samples), "corpus_tokens": shards.tokens} if window is None else {}
            publish(whole, state, at.out, settings, vars(position), read)
        world.wait()


def run_key(settings: dict, draft: Draft, shards: Shards, head: Head) -> str:
    """Names a run by all that decides what comes of it; the states by their samples' checksums."""
    deciding = {k: v for k, v in settings["train"].items() if k not in DECIDES_NO_TRAINING}
    contents = [
        [shard.metadata["content"], hashlib.blake2b(shard.arrays["digests"].tobytes()).hexdigest(), head.metadata]
        for shard in shards.shards
    ]
    warm_start = settings["draft"]["warm_start"]
    part = [settings["part"]] if "part" in settings else []
    return fingerprint(deciding, draft.config.to_json(), warm_start, contents, draft.d2t.tolist(), *part)


def published_judgement(lines: list[dict], best: dict | None) -> dict | None:
    """Of the draft that is published, on held-out samples; None where it was never judged."""
    judged = [line for line in lines if line["kind"] == "heldout" and (best is None or line["step"] == best["step"])]
    return judged[-1] if judged else None


def shard_files(folder: Path, count: int) -> list[Path]:
    """The shards that the configuration asks for; EyasError when one is missing."""
    paths = [shard_path(folder, k, count) for k in range(count)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        asked = "/".join(missing[0].parts[-3:])
        raise EyasError(f"{missing[0]}: no such shard, and {len(missing) - 1} more: run `snakemake {asked}`")
    return paths


def _refuse_full_disk(draft, folder: Path) -> None:
    """EyasError when the disk cannot hold the checkpoints."""
    needed = CHECKPOINT_COPIES * sum(4 * p.numel() for p in draft.parameters() if p.requires_grad)
    remedy = "make room, or move state/ to another disk and link it"
    refuse_full_disk(folder, "checkpoints", needed, lambda free: remedy)


def publish(draft, state: Path, out: Path, settings: dict, position: dict, read: dict) -> None:
    """The best draft by held-out acceptance length, or the last one; what was measured; how it was made.

    read: samples and tokens of one pass, where it is known.
    """
    out.mkdir(parents=True, exist_ok=True)
    best = state / BEST
    if position["best"] is not None:
        check_export(best)
        for file in ("config.json", "model.safetensors"):
            with whole_file(out / file) as copy, open(best / file, "rb") as original:
                shutil.copyfileobj(original, copy)
        check_export(out)
    else:
        export(draft, out, embeddings=False)
    lines = read_metrics(state / METRICS)
    with whole_file(out / METRICS) as copy:
        copy.write((state / METRICS).read_bytes())
    trained = [line for line in lines if line["kind"] == "train"]
    write_json(
        out / "training.json",
        {
            **read,
            "steps": position["step"],
            "tokens": position["tokens"],
            "seconds": round(position["seconds"], 1),
            "best": position["best"],
            "tokens_per_s": round(float(np.median([t["tokens_per_s"] for t in trained])), 1) if trained else None,
            "data_wait": round(float(np.median([t["data_wait"] for t in trained])), 4) if trained else None,
            "heldout": published_judgement(lines, position["best"]),
            "settings": settings,
        },
    )
    logging.info("%s: %s steps, best %s", out, f"{position['step']:,}", position["best"])
