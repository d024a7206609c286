"""Any target's chat format, read off its chat template.

The template is rendered once for each sequence of roles, with marks in place of the contents. What it
puts between the marks is the skeleton: control tokens and fixed words, kept for the next
conversation with the same roles. Contents then fill the skeleton as plain text.

A template without a place for reasoning leaves it out, as it does when the target is served; each is counted.

An assistant's ANSWER is its content and what follows up to the first control token, that one included (the end of
the turn); the words before it are what a generation prompt would give, so CONTEXT.
"""

import json
import re

from eyas.chat.plan import ANSWER, CONTEXT, NotRenderable, Plan

MARK = re.compile("\U000f0000([0-9]+)\U000f0001")


class TemplateFormat:
    """Plans for conversations and prompts. `hf`: the transformers tokenizer; `text`: its plain encoder.

    strips: whether the template strips white space around contents, so that the same must be done here.
    """

    probes = ()

    def __init__(self, hf, text, strips: bool = False):
        self.hf, self.text, self.strips = hf, text, strips
        tokens = sorted(text.control, key=len, reverse=True)
        self.control = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self.skeletons: dict = {}

    def conversation(self, messages: list[dict], tools: list | None = None) -> Plan:
        """A whole conversation."""
        return self._plan(messages, tools, opened=False, thinking=True)

    def prompt(self, messages: list[dict], tools: list | None = None, thinking: bool = True) -> Plan:
        """What the target is given to answer: the messages and the opening of the assistant's turn."""
        return self._plan(messages, tools, opened=True, thinking=thinking)

    def reference_kwargs(self, thinking: bool = True) -> dict:
        return {} if thinking else {"enable_thinking": False, "thinking": False}

    def _plan(self, messages, tools, opened: bool, thinking: bool) -> Plan:
        contents = []  # what fills the marks
        shape = []
        for k, message in enumerate(messages):
            if message.get("tool_calls"):
                raise NotRenderable(
                    "tool_calls_in_template", f"messages[{k}] calls a tool: chat_format template has no form for it"
                )
            fields = ["content"]
            if message["role"] == "assistant" and message.get("reasoning_content"):
                fields.insert(0, "reasoning_content")
            shape.append((message["role"], *fields))
            contents += [message[f].strip() if self.strips else message[f] for f in fields]
        key = (tuple(shape), opened, thinking, json.dumps(tools, sort_keys=True) if tools else "")
        if key not in self.skeletons:
            if len(self.skeletons) >= 4096:
                self.skeletons.clear()
            self.skeletons[key] = self._skeleton(shape, tools, opened, thinking)
        skeleton, after_first_user = self.skeletons[key]
        plan = Plan(after_first_user=after_first_user)
        plan.left_out = len(contents) - sum(isinstance(item, tuple) for _, item in skeleton)
        for mark, item in skeleton:
            plan.items.append(contents[item[0]] if isinstance(item, tuple) else item)
            plan.marks.append(mark)
        return plan

    def _skeleton(self, shape: list[tuple], tools, opened: bool, thinking: bool) -> tuple[list, int | None]:
        """[(mark, item)], an item being an id, fixed words, or (k,) for the k-th content."""
        if tools and (spelled := self.control.search(json.dumps(tools, ensure_ascii=False))):
            raise NotRenderable("control_token_in_tools", f"a tool's declaration spells {spelled.group()}")
        pieces = MARK.split(self._render(shape, tools, opened, thinking))  # words, mark, words, mark, …, words
        slots = [(role, field) for role, *fields in shape for field in fields]
        marks = [int(k) for k in pieces[1::2]]
        placed = set(marks)
        if marks != sorted(placed) or any(k not in placed and field == "content" for k, (_, field) in enumerate(slots)):
            raise NotRenderable(
                "template_drops_content", f"the chat template leaves out or moves a content; roles: {_roles(shape)}"
            )
        user = next((k for k, (role, _) in enumerate(slots) if role == "user"), None)
        skeleton = [(CONTEXT, item) for item in self._items(pieces[0])]
        after_first_user = None
        for k, words in zip(marks, pieces[2::2], strict=True):
            role, field = slots[k]
            items = self._items(words)
            skeleton.append((ANSWER if role == "assistant" else CONTEXT, (k,)))
            if k == user:
                after_first_user = len(skeleton) + self._user_end(items, words, shape, tools, thinking)
            if role == "assistant" and field == "reasoning_content":
                generated = len(items)  # the words between reasoning and content are the assistant's too
            else:
                generated = _through_first_token(items) if role == "assistant" else 0
            skeleton += [(ANSWER if n < generated else CONTEXT, item) for n, item in enumerate(items)]
        return skeleton, after_first_user

    def _user_end(self, items: list, words: str, shape: list[tuple], tools, thinking: bool) -> int:
        """How many items of `words`, which follow the first user content, still belong to that message."""
        upto = next(k for k, s in enumerate(shape) if s[0] == "user") + 1
        tail = MARK.split(self._render(shape[:upto], tools, False, thinking))[-1]
        if words.startswith(tail):
            own = self._items(tail)
            if items[: len(own)] == own:
                return len(own)
        return _through_first_token(items)

    def _render(self, shape: list[tuple], tools, opened: bool, thinking: bool) -> str:
        messages, k = [], 0
        for role, *fields in shape:
            message = {"role": role}
            for name in fields:
                message[name] = f"\U000f0000{k}\U000f0001"
                k += 1
            messages.append(message)
        try:
            return self.hf.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=opened, **self.reference_kwargs(thinking)
            )
        except Exception as error:  # jinja's, or what a template raises on a sequence of roles
            raise NotRenderable("template_refuses", f"{error}; roles: {_roles(shape)}") from None

    def _items(self, words: str) -> list:
        items, at = [], 0
        for token in self.control.finditer(words):
            if token.start() > at:
                items.append(words[at : token.start()])
            items.append(self.text.control[token.group()])
            at = token.end()
        return [*items, words[at:]] if at < len(words) else items


def _through_first_token(items: list) -> int:
    """How many items there are up to the first control token, that one included; 0 when there is none."""
    return next((n + 1 for n, item in enumerate(items) if isinstance(item, int)), 0)


def _roles(shape: list[tuple]) -> str:
    return ", ".join(s[0] for s in shape[:8])
