"""The draft vocabulary: which of the target's tokens a draft can propose, and how much of the corpus they cover.

A token is kept when it is among the most frequent of those that are trained on. `d2t[i]` is an offset: token i of the
draft is token i + d2t[i] of the target; `t2d[t]` says whether the draft has token t (the form of EAGLE-3's checkpoints,
which SGLang reads).
"""

import logging
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from eyas.corpus import SPLITS, corpus_metadata
from eyas.errors import EyasError
from eyas.hub import model_file
from eyas.records import whole_file, write_json


def build_vocabulary(settings: dict, corpus: Path, out: Path) -> dict:
    """Write out/map.safetensors (d2t int64 [draft], t2d bool [target]) and out/coverage.json; returns the latter.

    settings: config.Config.vocabulary_settings. corpus: folder of train.parquet and heldout.parquet. Coverage: the
    share of trainable tokens that the draft has, in each split, in all and by dataset, and for each size of the ladder.
    """
    of_corpus = corpus_metadata(corpus / "train.parquet")
    target = of_corpus["vocabulary"]
    counts = {split: count_trainable(corpus / f"{split}.parquet", target) for split in SPLITS}
    whole = sum(counts["train"].values(), np.zeros(target, dtype=np.int64))
    ranked = by_frequency(whole)
    if settings["warm_start"] is not None:
        weights = model_file(
            settings["warm_start"], "model.safetensors", settings["warm_start_revision"], "draft.warm_start"
        )
        kept = kept_by_draft(weights, target)
    else:
        if settings["size"] > target:
            raise EyasError(f"draft_vocabulary.size: {settings['size']:,}, the target has only {target:,} tokens")
        kept = np.sort(ranked[: settings["size"]])
    coverage = {
        "size": len(kept),
        "vocabulary": target,
        "tokenizer": of_corpus["tokenizer"],
        "warm_start": settings["warm_start"],
        "seen": int((whole > 0).sum()),
        "ladder": [
            {"size": size, **_coverage(np.sort(ranked[:size]), counts)}
            for size in sorted({*settings["ladder"], len(kept)})
            if size <= target
        ],
        **_coverage(kept, counts),
        "settings": settings,
    }
    d2t, t2d = maps_of(kept, target)
    with whole_file(out / "map.safetensors") as file:
        file.write(save({"d2t": d2t, "t2d": t2d}, {"tokenizer": of_corpus["tokenizer"]}))
    write_json(out / "coverage.json", coverage)
    logging.info("draft vocabulary: %s tokens cover %.2f%%", f"{len(kept):,}", 100 * coverage["train"]["share"])
    return coverage


def by_frequency(counts: np.ndarray) -> np.ndarray:
    """Token ids from the most frequent on, equals by id; those never seen come last."""
    return np.lexsort((np.arange(len(counts)), -counts))


def maps_of(kept: np.ndarray, target: int) -> tuple[np.ndarray, np.ndarray]:
    """(d2t int64 [draft], t2d bool [target]) of sorted token ids."""
    t2d = np.zeros(target, dtype=bool)
    t2d[kept] = True
    return kept.astype(np.int64) - np.arange(len(kept)), t2d


def count_trainable(path: Path, target: int) -> dict[str, np.ndarray]:
    """dataset → how often each token is trained on, [target]."""
    counts: dict[str, np.ndarray] = {}
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["dataset", "input_ids", "loss_mask"]):
            ids, mask = (batch.column(name) for name in ("input_ids", "loss_mask"))
            lengths = np.diff(mask.offsets.to_numpy())
            datasets = np.repeat(batch.column("dataset").to_numpy(zero_copy_only=False), lengths)
            trained = mask.flatten().to_numpy() == 1
            ids = ids.flatten().to_numpy()[trained]
            for dataset in set(batch.column("dataset").to_pylist()):
                mine = np.bincount(ids[datasets[trained] == dataset], minlength=target)
                counts[dataset] = counts.get(dataset, 0) + mine
    return counts


def kept_by_draft(path: Path, target: int) -> np.ndarray:
    """The target's tokens that a draft has, sorted; EyasError when its map does not fit this target."""
    remedy = "name an EAGLE-3 draft of this target in draft.warm_start"
    try:
        with safe_open(path, "numpy") as file:
            d2t, t2d = file.get_tensor("d2t"), file.get_tensor("t2d")
    except (OSError, SafetensorError) as error:
        raise EyasError(f"{path}: d2t and t2d cannot be read ({error}): {remedy}") from None
    kept = np.arange(len(d2t)) + d2t
    if len(t2d) != target or not np.array_equal(np.flatnonzero(t2d), kept):
        raise EyasError(
            f"{path}: d2t and t2d belong to a target of {len(t2d):,} tokens, or not to each other; this target has "
            f"{target:,}: {remedy}"
        )
    return kept


def _coverage(kept: np.ndarray, counts: dict[str, dict[str, np.ndarray]]) -> dict:
    return {
        split: {
            "share": _share(kept, sum(by.values(), np.zeros(1, dtype=np.int64))),
            "datasets": {dataset: _share(kept, by[dataset]) for dataset in sorted(by)},
        }
        for split, by in counts.items()
    }


def _share(kept: np.ndarray, counts: np.ndarray) -> float | None:
    total = int(counts.sum())
    return round(int(counts[kept].sum()) / total, 6) if total else None
