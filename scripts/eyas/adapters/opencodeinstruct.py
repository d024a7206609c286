"""OpenCodeInstruct: five million generated programming tasks with test scores, in Parquet.

A row: all strings: id, input (the task), output, domain, generation_algorithm, llm_judgement, unit_tests,
tests_execution_status, average_test_score ("1", "0.9", …, or null). Only three columns are read, and
most rows are decided on a whole batch at a time, without becoming Python objects.
"""

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from eyas.adapters.base import Conversation, Filtered, Preselection, Rejected
from eyas.adapters.sampling import content_order
from eyas.adapters.turns import needed_text
from eyas.config import Strict

COLUMNS = ("id", "input", "average_test_score")

WANTED, TOO_LOW, NO_SCORE, BAD_SCORE = range(4)


class Options(Strict):
    min_score: float = Field(1.0, ge=0, le=1, description="Keep tasks whose average_test_score is at least this.")


@lru_cache(maxsize=4096)
def judge(score: str | None, min_score: float) -> int:
    if score is None:
        return NO_SCORE
    try:
        return WANTED if float(score) >= min_score else TOO_LOW
    except (TypeError, ValueError):
        return BAD_SCORE


def conversation(row: dict, options: Options) -> Conversation:
    score = row.get("average_test_score")
    verdict = judge(score, options.min_score)
    if verdict == NO_SCORE:
        raise Filtered("no_score", "average_test_score is null")
    if verdict == TOO_LOW:
        raise Filtered("below_min_score", f"average_test_score {score}")
    if verdict == BAD_SCORE:
        raise Rejected("bad_score", f"average_test_score {score!r} is not a number")
    task = row.get("input") and needed_text(row, "input")
    if not task or not task.strip():
        raise Rejected("empty_prompt", "input is empty")
    return Conversation([{"role": "user", "content": task}], meta={"source_id": row.get("id")})


def preselect(batch: pa.RecordBatch, options: Options) -> Preselection:
    """The verdicts of `conversation` for a whole batch, and each wanted row's place in the sample."""
    codes = pc.dictionary_encode(batch["average_test_score"], null_encoding="encode")
    verdicts = np.array([judge(s, options.min_score) for s in codes.dictionary.to_pylist()], dtype=np.int8)
    verdict = verdicts[codes.indices.to_numpy(zero_copy_only=False)]
    wanted = np.flatnonzero(verdict == WANTED)
    tasks = batch["input"].take(pa.array(wanted))
    blank = pc.or_(pc.equal(pc.binary_length(tasks), 0), pc.utf8_is_space(tasks))
    blank = pc.fill_null(blank, True).to_numpy(zero_copy_only=False)
    turned_down = []
    for code, reason in ((NO_SCORE, "no_score"), (TOO_LOW, "below_min_score"), (BAD_SCORE, "bad_score")):
        rows = np.flatnonzero(verdict == code)
        if len(rows):
            turned_down.append((reason, code != BAD_SCORE, rows, batch["average_test_score"]))
    if blank.any():
        turned_down.append(("empty_prompt", False, wanted[blank], batch["input"]))
        tasks, wanted = tasks.filter(pa.array(~blank)), wanted[~blank]
    return Preselection(turned_down, wanted, content_order(tasks))
