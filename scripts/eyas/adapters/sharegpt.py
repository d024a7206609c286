"""ShareGPT (Vicuna, unfiltered): real chats with several assistants, pieces of longer ones among them.

A row: {"id", "conversations": [{"from": role, "value": str}, …]}, the role being human, gpt, user, chatgpt, bing,
bard or system.
The first turn may be the assistant's (ids …_N are pieces); `conversations` may be empty; values may be null.
"""

from eyas.adapters.base import Conversation
from eyas.adapters.turns import needed, parse_turns

COLUMNS = ("id", "conversations")


def conversation(row: dict, options) -> Conversation:
    messages = parse_turns(needed(row, "conversations"), field="conversations", role="from", content="value")
    return Conversation(messages, meta={"source_id": row["id"]} if isinstance(row.get("id"), str) else {})
