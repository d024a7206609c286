"""The target's hidden states on the corpus: one shard of one split, from one prefill pass of each sample."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from eyas.agreement import POSITIONS, Judge, positions_of
from eyas.config import Capture, Target
from eyas.corpus import corpus_metadata
from eyas.errors import EyasError
from eyas.plan import LAYERS, what_fits
from eyas.progress import Progress
from eyas.records import write_json
from eyas.states import (
    CAPTURED,
    DISAGREES,
    NOT_FINITE,
    PENDING,
    REASONS,
    Sample,
    ShardWriter,
    bytes_per_token,
    shard_path,
)
from eyas.states_encoding import decode
from eyas.storage import SPARE, refuse_full_disk
from eyas.target.engine import CaptureRequest, Engine, Refusal, identity_of
from eyas.target.head import Head

FAILURES_SHOWN = 3
JUDGED_TOGETHER = 16 * POSITIONS  # positions: lm_head is read once for all of them


def capture_shard(
    settings: dict,
    corpus: Path,
    layers: tuple[int, int, int],
    head: Head,
    shard: int,
    shards: int,
    open_engine: Callable[[], AbstractContextManager[Engine]],
    out: Path,
) -> dict:
    """Write `out` (states.ShardWriter) and statistics beside it as .json; returns them.

    settings: config.Config.capture_settings. corpus: a Parquet file of the corpus. layers: layers_of. EyasError when
    the disk cannot hold the shard, a sample could not be captured (those that were are kept, a rerun asks for the
    rest), more than max_quarantined are not finite or disagree with the text, or the shard as a whole disagrees.
    """
    started = time.monotonic()
    capture, target = Capture.model_validate(settings["capture"]), Target.model_validate(settings["target"])
    judge = Judge(head, set(settings["greedy"]), capture.min_agreement, capture.min_agreement_sampled)
    _check_head(head, target, corpus)
    lengths = lengths_of(corpus)
    of_shard = shared_out(lengths, shards)
    samples = samples_of(corpus, np.flatnonzero(of_shard == shard))
    metadata = {
        "target": orjson.dumps(identity_of(target), option=orjson.OPT_SORT_KEYS).decode(),
        "tokenizer": corpus_metadata(corpus)["tokenizer"],
        "layers": ",".join(map(str, layers)),
        "layers_convention": "indexes into Hugging Face's output_hidden_states: what that layer reads",
        "last": "after the final norm",
        "dtype": capture.dtype,
        "shard": f"{shard} of {shards}",
    }
    _refuse_full_disk(np.bincount(of_shard, lengths, shards), capture, head.hidden, out)
    with ShardWriter(out, samples, head.hidden, metadata, encoding=capture.dtype) as writer:
        pending = writer.pending
        logging.info("%s: %s samples, %s captured before", out, f"{len(samples):,}", f"{len(samples) - len(pending):,}")
        if pending:
            with open_engine() as engine:
                _capture(writer, pending, engine, judge, capture.concurrency, out)
        agreement = _judged(writer, judge, capture, out)
        writer.publish()
        status = writer.arrays["status"]
        quarantined = {REASONS[s]: [samples[k].id for k in np.flatnonzero(status == s)] for s in REASONS}
        tokens, size = int(writer.offsets[-1]), writer.layout.size
    seconds = time.monotonic() - started
    stats = {
        "shard": shard,
        "shards": shards,
        "samples": len(samples),
        "tokens": tokens,
        "trainable_tokens": int(sum(s.loss_mask.sum() for s in samples)),
        "agreement": agreement,
        "quarantined": quarantined,
        "bytes": size,
        "seconds": round(seconds, 2),
        "captured_tokens": int(sum(len(samples[k].input_ids) for k in pending)),  # in these seconds
        "metadata": metadata,
    }
    write_json(out.with_suffix(".json"), stats)
    return stats


def _capture(
    writer: ShardWriter, pending: list[int], engine: Engine, judge: Judge, concurrency: int, out: Path
) -> None:
    progress, done, tokens, failures = Progress(out.name, "samples"), 0, 0, []
    requests = (CaptureRequest(str(k), writer.samples[k].input_ids.tolist(), writer.slot(k)) for k in pending)
    written: list[int] = []
    with ThreadPoolExecutor(1) as beside:  # the target goes on while samples are judged
        judging = beside.submit(lambda: None)
        for result in engine.capture(requests, concurrency):
            k = int(result.id)
            if isinstance(result, Refusal):
                failures.append(f"{writer.samples[k].id}: {result.reason}: {result.detail}")
            else:
                written.append(k)
            if len(written) * POSITIONS >= JUDGED_TOGETHER:
                judging.result()
                judging, written = beside.submit(_finish, writer, written, judge), []
            done, tokens = done + 1, tokens + len(writer.samples[k].input_ids)
            rate = tokens / max(time.monotonic() - progress.start, 1e-9)
            progress.update(done, done / len(pending), f"{rate:,.0f} tokens/s")
        judging.result()
        _finish(writer, written, judge)
    progress.close()
    if failures:
        shown = "\n  ".join(failures[:FAILURES_SHOWN])
        raise EyasError(
            f"{out}: {len(failures):,} of {len(pending):,} samples were not captured; the others are kept, a rerun "
            f"asks for these:\n  {shown}"
        )


def _finish(writer: ShardWriter, written: list[int], judge: Judge) -> None:
    """Look at samples whose rows are written, and seal them."""
    finite = []
    for k in written:
        if writer.is_finite(k):
            finite.append(k)
        else:
            writer.finish(k, NOT_FINITE)
            logging.warning("sample %s is quarantined: its states are not finite", writer.samples[k].id)
    samples = [writer.samples[k] for k in finite]
    for k, found in zip(finite, judge.judge(samples, [_last(writer, k) for k in finite]), strict=True):
        writer.finish(k, CAPTURED if found.passes else DISAGREES, (found.checked, found.agreed))
        if not found.passes:
            agreed = f"{found.agreed} of {found.checked}"
            logging.warning("sample %s is quarantined: lm_head proposes %s tokens", writer.samples[k].id, agreed)


def _last(writer: ShardWriter, k: int) -> torch.Tensor:
    """The states after the final norm at the positions that are judged: [positions, H]."""
    return decode(writer.arrays, "last", writer.offsets[k] + positions_of(writer.samples[k]))


def _judged(writer: ShardWriter, judge: Judge, capture: Capture, out: Path) -> dict:
    """{"greedy", "sampled": {"checked", "agreed"}} of the whole shard; EyasError when it is not sound."""
    status, counts = writer.arrays["status"], writer.arrays["agreement"].astype(np.int64)
    greedy = np.array([s.dataset in judge.greedy for s in writer.samples], dtype=bool)
    not_finite, disagree = (np.flatnonzero(status == s) for s in (NOT_FINITE, DISAGREES))
    limit, agreement = capture.max_quarantined * len(status), {}
    if len(not_finite) > limit:
        status[not_finite] = PENDING
        raise EyasError(
            f"{out}: {len(not_finite):,} of {len(status):,} samples have states that are not finite (NaN or infinite), "
            f"e.g. {writer.samples[not_finite[0]].id}: the target overflows; check its dtype and flags, or raise "
            "capture.max_quarantined; a rerun captures them again"
        )
    complaint = None
    for name, kind, key in (("greedy", greedy, "min_agreement"), ("sampled", ~greedy, "min_agreement_sampled")):
        checked, agreed = counts[kind].sum(axis=0).tolist()
        agreement[name] = {"checked": checked, "agreed": agreed}
        if agreed < getattr(capture, key) * checked:
            suspects = np.flatnonzero(kind & (counts[:, 0] > 0))
            complaint = f"lm_head proposes {agreed:,} of {checked:,} tokens of {name} answers (capture.{key})"
    if complaint is None and len(not_finite) + len(disagree) > limit:
        suspects = disagree
        complaint = (
            f"{len(disagree):,} of {len(status):,} samples do not agree with their text (capture.max_quarantined), "
            f"e.g. {writer.samples[disagree[0]].id}"
        )
    if complaint:
        status[suspects] = PENDING
        shown = suspects[: JUDGED_TOGETHER // POSITIONS]
        words = judge.diagnosis([writer.samples[k] for k in shown], [_last(writer, k) for k in shown])
        raise EyasError(f"{out}: {complaint}: {words}; a rerun captures them again")
    return agreement


def _check_head(head: Head, target: Target, corpus: Path) -> None:
    """EyasError when lm_head cannot be this target's."""
    vocabulary = corpus_metadata(corpus)["vocabulary"]
    if head.metadata.get("model") != target.model or head.vocabulary < vocabulary:
        raise EyasError(
            f"target/head.safetensors: of {head.metadata.get('model')} with {head.vocabulary:,} tokens, expected "
            f"{target.model} and {vocabulary:,} or more, as the corpus has: run `snakemake --force "
            "target/head.safetensors`"
        )


def _refuse_full_disk(tokens: np.ndarray, capture: Capture, hidden: int, out: Path) -> None:
    """EyasError when the shards that are not there yet will not fit. tokens: of each shard."""
    per_token = bytes_per_token(hidden, LAYERS, capture.dtype)
    shards = len(tokens)
    left = [k for k in range(shards) if not shard_path(out.parent, k, shards).exists()]
    if capture.window is not None:
        left = left[: max(1, capture.window - (shards - len(left)))]
    own = out.with_name(f".{out.name}.partial")
    written = own.stat().st_blocks * 512 if own.exists() else 0
    needed = int(tokens[left].sum()) * per_token - written

    def remedy(free: int) -> str:
        return "; or ".join(what_fits(needed, free, per_token, capture.dtype, shards, hidden))

    refuse_full_disk(out.parent, f"{len(left):,} shards", needed, remedy, SPARE)


def lengths_of(corpus: Path) -> np.ndarray:
    """Tokens of each sample of a Parquet file of the corpus."""
    with pq.ParquetFile(corpus) as file:
        lengths = [
            pc.list_value_length(batch.column(0)).to_numpy()
            for batch in file.iter_batches(columns=["loss_mask"])  # the smaller column
        ]
    return np.concatenate([np.zeros(0, dtype=np.int64), *lengths])


def shared_out(lengths: np.ndarray, shards: int) -> np.ndarray:
    """Each sample's shard: consecutive samples, each shard with about as many tokens as any other."""
    middles = lengths.cumsum() - lengths / 2
    return np.minimum((middles * shards / max(1, lengths.sum())).astype(np.int64), shards - 1)


def samples_of(corpus: Path, mine: np.ndarray) -> list[Sample]:
    """Some consecutive samples of a Parquet file of the corpus; mine: their numbers."""
    if not len(mine):
        return []
    samples, first, last, row = [], mine[0], mine[-1], 0
    with pq.ParquetFile(corpus) as file:
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
