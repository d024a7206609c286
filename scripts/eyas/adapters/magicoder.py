"""Magicoder's two sets: OSS-Instruct (75 k rows) and Evol-Instruct (110 k rows).

A row of the first: {"lang", "raw_index", "index", "seed", "openai_fingerprint", "problem", "solution"}.
A row of the second: {"instruction", "response"}. Neither has an id.
"""

from eyas.adapters.base import Conversation, Rejected
from eyas.adapters.turns import needed_text

COLUMNS = None  # the two files differ


def conversation(row: dict, options) -> Conversation:
    key = "problem" if "problem" in row else "instruction"
    task = needed_text(row, key)
    if not task.strip():
        raise Rejected("empty_prompt", f"{key} is empty")
    meta = {"language": row["lang"]} if isinstance(row.get("lang"), str) else {}
    return Conversation([{"role": "user", "content": task}], meta=meta)
