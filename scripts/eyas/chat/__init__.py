"""Messages → token ids and loss mask, in one pass: rendered once, tokenized once.

`chat_of` gives a `Chat` for a target's tokenizer folder. What it renders is a plan: a list of
(item, mark), where an item is a control token's id or plain text, and the mark is ANSWER for what the
assistant itself generates, else CONTEXT. Text never becomes a control token, whatever it spells.

plan.py      a rendered conversation: items and their marks
template.py  any target's format, read off its chat template
kimi.py      Kimi-K2.5's format, written out
text.py      plain text → token ids; which ids are control tokens
gguf.py      the tokenizer inside a GGUF file
chat.py      all of it together, loaded and checked; marks become the loss mask in `Chat.encode`

What the target answers here is no text that was rendered: its loss mask is made in `eyas.generate._record`.
"""

from eyas.chat.chat import Chat, chat_of, keep_torch_out, load_chat
from eyas.chat.plan import ANSWER, CONTEXT, NotRenderable, Plan

__all__ = ["ANSWER", "CONTEXT", "Chat", "NotRenderable", "Plan", "chat_of", "keep_torch_out", "load_chat"]
