"""Chit-Chat Challenge: real dialogues between two people, from the Python package chitchat-dataset.

One JSON object of 7,168 dialogues by id. A dialogue: {"messages": [[{"text", "sender", "timestamp"}, …], …], …};
each inner list is one turn of one person, in several short utterances. The turns become user, assistant,
user, …
"""

from pydantic import Field

from eyas.adapters.base import Conversation, Rejected
from eyas.adapters.turns import text_of
from eyas.config import Strict

COLUMNS = None


class Options(Strict):
    min_words: int = Field(
        4, ge=1, description="Shorter first turns are passed over: the next turn of that person opens the chat."
    )


def conversation(row: dict, options: Options) -> Conversation:
    turns = row.get("messages")
    if not isinstance(turns, list) or not turns:
        raise Rejected("no_messages", "messages is missing or empty")
    texts = []
    for k, utterances in enumerate(turns):
        if not isinstance(utterances, list) or not all(isinstance(u, dict) for u in utterances):
            raise Rejected("bad_messages", f"messages[{k}] is not a list of utterances")
        words = [text_of(u.get("text"), f"messages[{k}]").strip() for u in utterances]
        texts.append(" ".join(w for w in words if w))
    opening = next((k for k, t in enumerate(texts) if len(t.split()) >= options.min_words), None)
    if opening is None:
        raise Rejected("empty_prompt", f"no turn has {options.min_words} words")
    roles = ("user", "assistant")
    return Conversation([{"role": roles[k % 2], "content": t} for k, t in enumerate(texts[opening:])])
