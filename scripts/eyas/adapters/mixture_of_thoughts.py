"""Mixture-of-Thoughts: reasoning tasks in code, maths and science; several solutions for one problem.

A row: {"messages": [{"content", "role"}, …], "num_tokens": int, "source": str}. There is no default configuration on
the Hub: `all` is the union of `code`, `math` and `science` (the source's `config` in datasets.yaml).
"""

from eyas.adapters.base import Conversation
from eyas.adapters.turns import needed, parse_turns

COLUMNS = ("messages", "source")


def conversation(row: dict, options) -> Conversation:
    meta = {"source": row["source"]} if isinstance(row.get("source"), str) else {}
    return Conversation(parse_turns(needed(row, "messages")), meta=meta)
