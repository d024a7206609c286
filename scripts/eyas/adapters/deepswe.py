"""DeepSWE-Agent-Kimi-K2-Trajectories: repair-agent trajectories, spoken by Kimi-K2.

A row: {"messages": [{"role": "system" | "user" | "assistant", "content": str | None | [parts]}, …]}, or `messages` as
JSON text. Tool calls are XML text inside assistant content; tool results are user messages. Often 84
messages; the last one is often the user's observation, so nothing may depend on a final answer.
"""

from eyas.adapters.base import Conversation
from eyas.adapters.turns import needed, parse_turns

COLUMNS = ("messages",)


def conversation(row: dict, options) -> Conversation:
    return Conversation(parse_turns(needed(row, "messages")))
