"""The target's hidden states on the corpus: one shard of one split, from one prefill pass of each sample."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eyas.config import Capture, Target
from eyas.corpus import corpus_metadata
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.records import write_json
from eyas.states import QUARANTINED, Sample, ShardWriter
from eyas.target.engine import CaptureRequest, Engine, Refusal, identity_of

FAILURES_SHOWN = 3


@dataclass(frozen=True)
class Shape:
    """What the target's config.json says of it."""

    layers: int
    hidden: int
    architecture: str

    @classmethod
    def of(cls, *folders: Path) -> "Shape":
        """From the first folder that has a config.json; a text model nested in it (text_config) counts."""
        for folder in folders:
            path = folder / "config.json"
            if not path.is_file():
                continue
            try:
                config = orjson.loads(path.read_bytes())
                text = config.get("text_config") or config
                return cls(text["num_hidden_layers"], text["hidden_size"], (config.get("architectures") or [""])[0])
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise EyasError(f"{path}: not a model's config.json ({error!r})") from None
        raise EyasError(
            f"{' and '.join(map(str, folders))}: no config.json: it says how many layers the target has and how wide "
            "they are: add config.json to target.tokenizer.files"
        )


def layers_of(shape: Shape, explicit: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Low, mid, high, as indexes into Hugging Face's output_hidden_states: state i is what layer i reads."""
    n = shape.layers
    layers = tuple(explicit) if explicit else (2, n // 2, n - 3)
    if not 0 < layers[0] < layers[1] < layers[2] < n:
        raise EyasError(
            f"capture.layers: {list(layers)} of a target with {n} layers: expected three that go up, each above 0 and "
            f"below {n}: set capture.layers"
        )
    return layers


def capture_shard(
    settings: dict,
    corpus: Path,
    layers: tuple[int, int, int],
    hidden: int,
    shard: int,
    shards: int,
    open_engine: Callable[[], AbstractContextManager[Engine]],
    out: Path,
) -> dict:
    """Write `out` (states.ShardWriter) and statistics beside it as .json; returns them.

    settings: config.Config.capture_settings. corpus: a Parquet file of the corpus. layers, hidden: layers_of, the width
    of a state. EyasError when a sample could not be
    captured (those that were are kept, a rerun asks for the rest), or more than max_quarantined are not finite.
    """
    started = time.monotonic()
    capture, target = Capture.model_validate(settings["capture"]), Target.model_validate(settings["target"])
    samples = samples_of(corpus, shard, shards)
    metadata = {
        "target": orjson.dumps(identity_of(target), option=orjson.OPT_SORT_KEYS).decode(),
        "tokenizer": corpus_metadata(corpus)["tokenizer"],
        "layers": ",".join(map(str, layers)),
        "layers_convention": "indexes into Hugging Face's output_hidden_states: what that layer reads",
        "last": "after the final norm",
        "shard": f"{shard} of {shards}",
    }
    with ShardWriter(out, samples, hidden, metadata) as writer:
        pending = writer.pending
        logging.info("%s: %s samples, %s captured before", out, f"{len(samples):,}", f"{len(samples) - len(pending):,}")
        if pending:
            with open_engine() as engine:
                _capture(writer, pending, engine, capture.concurrency, out)
        quarantined = [samples[k].id for k in np.flatnonzero(writer.arrays["status"] == QUARANTINED)]
        if len(quarantined) > capture.max_quarantined * len(samples):
            raise EyasError(
                f"{out}: {len(quarantined):,} of {len(samples):,} samples have states that are not finite (NaN or "
                f"infinite), e.g. {quarantined[0]}: the target overflows; check its dtype and flags, or raise "
                "capture.max_quarantined"
            )
        writer.publish()
        tokens, seconds = int(writer.offsets[-1]), time.monotonic() - started
        size = writer.layout.size
    stats = {
        "shard": shard,
        "shards": shards,
        "samples": len(samples),
        "tokens": tokens,
        "trainable_tokens": int(sum(s.loss_mask.sum() for s in samples)),
        "quarantined": quarantined,
        "bytes": size,
        "seconds": round(seconds, 2),
        "metadata": metadata,
    }
    write_json(out.with_suffix(".json"), stats)
    return stats


def _capture(writer: ShardWriter, pending: list[int], engine: Engine, concurrency: int, out: Path) -> None:
    progress, done, tokens, failures = Progress(out.name, "samples"), 0, 0, []
    requests = (CaptureRequest(str(k), writer.samples[k].input_ids.tolist(), writer.slot(k)) for k in pending)
    for result in engine.capture(requests, concurrency):
        k = int(result.id)
        if isinstance(result, Refusal):
            failures.append(f"{writer.samples[k].id}: {result.reason}: {result.detail}")
        elif not writer.finish(k):
            logging.warning("%s: sample %s is quarantined: its states are not finite", out, writer.samples[k].id)
        done, tokens = done + 1, tokens + len(writer.samples[k].input_ids)
        rate = tokens / max(time.monotonic() - progress.start, 1e-9)
        progress.update(done, done / len(pending), f"{rate:,.0f} tokens/s")
    progress.close()
    if failures:
        shown = "\n  ".join(failures[:FAILURES_SHOWN])
        raise EyasError(
            f"{out}: {len(failures):,} of {len(pending):,} samples were not captured; the others are kept, a rerun "
            f"asks for these:\n  {shown}"
        )


def samples_of(corpus: Path, shard: int, shards: int) -> list[Sample]:
    """The samples of one shard: consecutive ones, each shard with about as many tokens as any other."""
    samples = []
    with pq.ParquetFile(corpus) as file:
        lengths = [
            pc.list_value_length(batch.column(0)).to_numpy()
            for batch in file.iter_batches(columns=["loss_mask"])  # the smaller column
        ]
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *lengths])
        middles = lengths.cumsum() - lengths / 2
        of_shard = np.minimum((middles * shards / max(1, lengths.sum())).astype(np.int64), shards - 1)
        mine = np.flatnonzero(of_shard == shard)
        if not len(mine):
            return []
        first, last, row = mine[0], mine[-1], 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row + rows > first and row <= last:
                start = max(0, first - row)
                table = file.read_row_group(group).slice(start, min(rows, last + 1 - row) - start)
                samples += _samples(table)
            row += rows
    return samples


def _samples(table: pa.Table) -> list[Sample]:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    ids, masks = columns["input_ids"], columns["loss_mask"]
    return [
        Sample(
            columns["id"][k].as_py(),
            columns["dataset"][k].as_py(),
            ids[k].values.to_numpy(),
            masks[k].values.to_numpy().astype(np.uint8),
        )
        for k in range(len(table))
    ]
