"""MT-Bench: 80 questions of two turns, of which the first is asked (the second refers to an answer of it).

A row: {"question_id": int, "category": str, "turns": [str, str], …}.
"""

from eyas.adapters.base import Conversation, Rejected
from eyas.adapters.turns import needed

COLUMNS = ("category", "turns")


def conversation(row: dict, options) -> Conversation:
    turns = needed(row, "turns")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise Rejected("bad_messages", f"turns is {str(turns)[:80]}, expected a list of texts")
    return Conversation([{"role": "user", "content": turns[0]}], meta={"category": row.get("category")})
