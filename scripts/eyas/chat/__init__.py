"""Messages → token ids and loss mask, in one pass: rendered once, tokenized once.

`chat_of` gives a `Chat` for a target's tokenizer folder. What it renders is a plan: a list of
(item, mark), where an item is a control token's id or plain text, and the mark is ANSWER for what the
assistant itself generates, else CONTEXT. Text never becomes a control token, whatever it spells.
"""

from eyas.chat.chat import Chat, chat_of, keep_torch_out, load_chat
from eyas.chat.plan import ANSWER, CONTEXT, NotRenderable, Plan

__all__ = ["ANSWER", "CONTEXT", "Chat", "NotRenderable", "Plan", "chat_of", "keep_torch_out", "load_chat"]
