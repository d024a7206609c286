"""What the draft is judged on: prompts that it was not trained on, in the target's tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from eyas.errors import EyasError

COLUMNS = ["id", "dataset", "input_ids", "loss_mask"]


@dataclass(frozen=True)
class Asked:
    """One prompt as the target reads it, header of the answer included."""

    id: str
    dataset: str
    input_ids: list[int]


def heldout_prompts(corpus: Path, most: int, longest: int) -> list[Asked]:
    """The first `most` samples of each dataset in corpus/heldout.parquet, each up to its first trained token.

    They lie in an order that a hash decides, so the first are as good as any. longest: tokens of a prompt; longer ones
    are passed over.
    """
    found: dict[str, list[Asked]] = {}
    for asked in _prompts(corpus):
        own = found.setdefault(asked.dataset, [])
        if len(own) < most and len(asked.input_ids) <= longest:
            own.append(asked)
    asked = [prompt for name in sorted(found) for prompt in found[name]]
    if not asked:
        raise EyasError(
            f"{corpus}: no held-out prompt of at most {longest:,} tokens: raise corpus.heldout, or "
            "evaluate.max_prompt_tokens"
        )
    return asked


def in_turns(prompts: list[Asked], most: int) -> list[Asked]:
    """At most so many, from the datasets in turn."""
    own: dict[str, list[Asked]] = {}
    for prompt in prompts:
        own.setdefault(prompt.dataset, []).append(prompt)
    turns = [queue[k] for k in range(min(most, len(prompts))) for queue in own.values() if k < len(queue)]
    return turns[:most]


def _prompts(corpus: Path) -> Iterator[Asked]:
    with pq.ParquetFile(corpus) as file:
        for batch in file.iter_batches(batch_size=1024, columns=COLUMNS):
            for k in range(len(batch)):
                sample, dataset, ids, mask = (batch.column(name)[k] for name in COLUMNS)
                first = int(np.argmax(mask.values.to_numpy()))
                yield Asked(sample.as_py(), dataset.as_py(), ids.values.to_numpy()[:first].tolist())
