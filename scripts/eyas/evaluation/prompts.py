"""What the draft is judged on: held-out samples of the corpus, and public benchmark sets, as the target reads them.

evaluation/prompts.jsonl, a line: {"id", "dataset", "benchmark": bool, "input_ids"}, the header of the answer included.
Every engine is asked the same.
"""

import heapq
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import xxhash

from eyas.chat import Chat, NotRenderable
from eyas.errors import EyasError
from eyas.records import fault_in_prompt, whole_file

COLUMNS = ["id", "dataset", "input_ids", "loss_mask"]


@dataclass(frozen=True)
class Asked:
    """One prompt. benchmark: whether its dataset is a public set, not held out of the corpus."""

    id: str
    dataset: str
    input_ids: list[int]
    benchmark: bool = False


def choose_prompts(evaluation, corpus: Path, benchmarks: dict[str, tuple[Path, bool]], chat: Chat) -> list[Asked]:
    """At most evaluation.prompts of each dataset and benchmark set.

    corpus: its folder. benchmarks: name → (prompts.jsonl, whether the target thinks). A benchmark's prompt that the
    corpus trains on is passed over, and said.
    """
    most, longest = evaluation.prompts, evaluation.max_prompt_tokens
    asked = heldout_prompts(corpus / "heldout.parquet", most, longest)
    known = {prompt.id for prompt in asked}
    trained = {_digest(ids) for _, _, ids in _prompts(corpus / "train.parquet")} if benchmarks else set()
    for name, (path, thinking) in benchmarks.items():
        fresh, seen, long = [], 0, 0
        for prompt in _benchmark_prompts(name, path, thinking, chat):
            if _digest(np.array(prompt.input_ids, np.int32)) in trained:
                seen += 1
            elif len(prompt.input_ids) > longest:
                long += 1
            elif prompt.id not in known:
                known.add(prompt.id)
                fresh.append(prompt)
        chosen = heapq.nsmallest(most, fresh, key=lambda p: p.id)  # ids are hashes
        logging.info(
            "%s: %s prompts asked of %s; passed over: %s are trained on, %s are longer than %s tokens",
            *(name, len(chosen), len(fresh) + seen + long, seen, long, f"{longest:,}"),
        )
        if not chosen:
            raise EyasError(
                f"{path}: none of its prompts can be asked: {seen} are trained on, {long} are longer than {longest:,} "
                "tokens: raise evaluate.max_prompt_tokens, or leave the set out"
            )
        asked += chosen
    return asked


def heldout_prompts(corpus: Path, most: int, longest: int) -> list[Asked]:
    """The first `most` samples of each dataset in corpus/heldout.parquet, each up to its first trained token.

    They lie in an order that a hash decides, so the first are as good as any. longest: tokens of a prompt; longer ones
    are passed over.
    """
    found: dict[str, list[Asked]] = {}
    for name, dataset, ids in _prompts(corpus):
        own = found.setdefault(dataset, [])
        if len(own) < most and len(ids) <= longest:
            own.append(Asked(name, dataset, ids.tolist()))
    asked = [prompt for name in sorted(found) for prompt in found[name]]
    if not asked:
        raise EyasError(
            f"{corpus}: no held-out prompt of at most {longest:,} tokens: raise corpus.heldout, or "
            "evaluate.max_prompt_tokens"
        )
    return asked


def write_prompts(path: Path, prompts: list[Asked]) -> None:
    with whole_file(path) as file:
        for prompt in prompts:
            file.write(orjson.dumps(asdict(prompt), option=orjson.OPT_APPEND_NEWLINE))


def read_prompts(path: Path) -> list[Asked]:
    """What write_prompts wrote."""
    try:
        return [Asked(**orjson.loads(line)) for line in path.read_bytes().splitlines()]
    except (OSError, orjson.JSONDecodeError, TypeError) as error:
        raise EyasError(f"{path}: no prompts to ask ({error}): run `snakemake --force {path}`") from None


def in_turns(prompts: list[Asked], most: int) -> list[Asked]:
    """At most so many, from the datasets in turn."""
    own: dict[str, list[Asked]] = {}
    for prompt in prompts:
        own.setdefault(prompt.dataset, []).append(prompt)
    turns = [queue[k] for k in range(min(most, len(prompts))) for queue in own.values() if k < len(queue)]
    return turns[:most]


def first_of_each(prompts: list[Asked], most: int) -> list[Asked]:
    """At most so many of each dataset, in their order."""
    seen: Counter[str] = Counter()
    out = []
    for prompt in prompts:
        seen[prompt.dataset] += 1
        if seen[prompt.dataset] <= most:
            out.append(prompt)
    return out


def _prompts(corpus: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """(id, dataset, tokens up to the first trained one) of each sample."""
    with pq.ParquetFile(corpus) as file:
        for batch in file.iter_batches(batch_size=1024, columns=COLUMNS):
            for k in range(len(batch)):
                sample, dataset, ids, mask = (batch.column(name)[k] for name in COLUMNS)
                first = int(np.argmax(mask.values.to_numpy()))
                yield sample.as_py(), dataset.as_py(), ids.values.to_numpy()[:first]


def _benchmark_prompts(name: str, path: Path, thinking: bool, chat: Chat) -> Iterator[Asked]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if line.isspace() or not line:
            continue
        if fault := fault_in_prompt(line, name):
            raise EyasError(f"{path}, line {number}: {fault}: run `snakemake --force {path}` to rebuild it")
        prompt = orjson.loads(line)
        try:
            plan = chat.format.prompt(prompt["messages"], prompt.get("tools"), thinking)
        except NotRenderable as error:
            logging.warning("%s: prompt %s is passed over: %s", name, prompt["id"], error.detail)
            continue
        ((ids, _),) = chat.encode([plan])
        yield Asked(prompt["id"], name, ids, benchmark=True)


def _digest(ids: np.ndarray) -> bytes:
    return xxhash.xxh3_128_digest(ids.astype("<i4", copy=False).tobytes())
