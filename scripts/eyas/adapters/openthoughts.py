"""OpenThoughts-114k: reasoning tasks.

A row: {"system": str, "conversations": [{"from": "user" | "assistant", "value": str}, …]}. The system text asks
for markers such as <|begin_of_thought|> that another model's answers used; it is left out, since the target
answers anew in its own way.
"""

from eyas.adapters.base import Conversation
from eyas.adapters.turns import needed, parse_turns

COLUMNS = ("conversations",)


def conversation(row: dict, options) -> Conversation:
    return Conversation(parse_turns(needed(row, "conversations"), field="conversations", role="from", content="value"))
