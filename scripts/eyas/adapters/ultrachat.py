"""UltraChat 200k: multi-turn chats.

A row: {"prompt", "prompt_id", "messages": [{"content", "role"}, …]}. `prompt` can differ from the first message: the
messages count. Splits are train_sft, test_sft, train_gen, test_gen: there is no `train`.
"""

from eyas.adapters.base import Conversation
from eyas.adapters.turns import needed, parse_turns

COLUMNS = ("prompt_id", "messages")


def conversation(row: dict, options) -> Conversation:
    meta = {"source_id": row["prompt_id"]} if isinstance(row.get("prompt_id"), str) else {}
    return Conversation(parse_turns(needed(row, "messages")), meta=meta)
