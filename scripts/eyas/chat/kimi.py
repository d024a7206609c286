"""Kimi-K2.5's chat format, written out.

A message is <|im_ROLE|>name<|im_middle|>body<|im_end|>, with nothing between messages, no BOS and no default
system prompt. ROLE is user, assistant or system (for every other role). The name is the role, unless the
message has a `name`. Tool declarations come first, in the words that the tokenizer itself gives them.

An assistant's body is <think>reasoning</think>content, then its tool calls. The target is asked with a prompt that ends
in <think> (or <think></think> to answer at once), so these tokens are CONTEXT and what follows is the
ANSWER, <|im_end|> included. Reasoning of earlier turns is dropped, as the template does: turns up to the
last assistant turn without tool calls have an empty <think></think>. A final assistant turn is rendered as
it was generated, on top of the prompt that asked for it: with its reasoning (the template, made for
prompts, would drop it).
"""

import json
from functools import lru_cache

from eyas.chat.plan import ANSWER, CONTEXT, NotRenderable, Plan
from eyas.errors import EyasError

CONTROL = (
    "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<think>", "</think>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)  # fmt: skip
TOOL_PROBE = (
    [
        {"role": "user", "content": "Weather in Oslo and Rome?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Two cities, two calls.",
            "tool_calls": [
                {
                    "id": "functions.weather:0",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Oslo"}},
                },
                {
                    "id": "functions.weather:1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Rom\u00e4"}},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "functions.weather:0", "content": '{"c": 4}'},
        {"role": "tool", "tool_call_id": "functions.weather:1", "content": '{"c": 19}'},
    ],
    [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Weather of a city",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ],
)


class KimiFormat:
    """Plans for conversations and prompts. `hf`: the transformers tokenizer; `text`: its plain encoder."""

    probes = (TOOL_PROBE,)

    def __init__(self, hf, text):
        self.hf, self.text = hf, text
        if missing := [t for t in CONTROL if t not in text.control]:
            raise EyasError(f"chat_format kimi: the tokenizer has no {', '.join(missing)}: is it Kimi-K2.5's?")
        ids = [text.control[t] for t in CONTROL]
        (self.system, self.user, self.assistant, self.middle, self.end, self.think, self.unthink,
         self.calls, self.calls_end, self.call, self.arguments, self.call_end) = ids  # fmt: skip
        self.declared = lru_cache(maxsize=256)(self._declared)

    def conversation(self, messages: list[dict], tools: list | None = None) -> Plan:
        """A whole conversation, each message closed by <|im_end|>."""
        final = len(messages) - 1 if messages[-1]["role"] == "assistant" else len(messages)
        plan = self._history(messages[:final], tools)
        for message in messages[final:]:
            reasoning = message.get("reasoning_content")
            self._assistant(plan, message, reasoning)
        return plan

    def prompt(self, messages: list[dict], tools: list | None = None, thinking: bool = True) -> Plan:
        """What the target is given to answer: the history and the opening of the assistant's turn."""
        plan = self._history(messages, tools)
        plan.add(CONTEXT, self.assistant, "assistant", self.middle, self.think)
        if not thinking:
            plan.add(CONTEXT, self.unthink)
        return plan

    def reference_kwargs(self, thinking: bool = True) -> dict:
        return {"thinking": thinking}

    def _history(self, messages: list[dict], tools: list | None) -> Plan:
        plan = Plan()
        if tools:
            words = self.declared(json.dumps(tools, sort_keys=True))
            plan.add(CONTEXT, self.system, "tool_declare", self.middle, words, self.end)
        settled = max(
            (k for k, m in enumerate(messages) if m["role"] == "assistant" and not m.get("tool_calls")), default=-1
        )
        for k, message in enumerate(messages):
            role, name = message["role"], message.get("name") or message["role"]
            if role == "assistant":
                reasoning = message.get("reasoning_content")
                plan.left_out += bool(reasoning) and k <= settled
                self._assistant(plan, message, reasoning if k > settled else None)
            elif role == "user":
                plan.add(CONTEXT, self.user, name, self.middle, message["content"], self.end)
                if plan.after_first_user is None:
                    plan.after_first_user = len(plan.items)
            elif role == "tool":
                if not message.get("tool_call_id"):
                    raise NotRenderable("orphan_tool_result", f"messages[{k}] is a tool result without tool_call_id")
                words = f"## Return of {message['tool_call_id']}\n{message['content']}"
                plan.add(CONTEXT, self.system, name, self.middle, words, self.end)
            else:
                plan.add(CONTEXT, self.system, name, self.middle, message["content"], self.end)
        return plan

    def _assistant(self, plan: Plan, message: dict, reasoning: str | None) -> None:
        plan.add(CONTEXT, self.assistant, message.get("name") or "assistant", self.middle, self.think)
        if reasoning:
            plan.add(ANSWER, reasoning, self.unthink)
        else:
            plan.add(CONTEXT, self.unthink)
        plan.add(ANSWER, message["content"])
        if calls := message.get("tool_calls"):
            plan.add(ANSWER, self.calls)
            for call in calls:
                arguments = call["function"]["arguments"]
                words = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                plan.add(ANSWER, self.call, call["id"], self.arguments, words, self.call_end)
            plan.add(ANSWER, self.calls_end)
        plan.add(ANSWER, self.end)

    def _declared(self, tools_json: str) -> str:
        """The body of the tool declaration, as the tokenizer's own template words it."""
        asked = [{"role": "user", "content": "?"}]
        render = {"tokenize": False, "add_generation_prompt": False}
        bare = self.hf.apply_chat_template(asked, **render)
        try:
            full = self.hf.apply_chat_template(asked, tools=json.loads(tools_json), **render)
        except Exception as error:  # whatever the tokenizer's own code raises on an odd schema
            raise NotRenderable("bad_tools", f"the target's template refuses the tools: {error}") from None
        head, tail = "<|im_system|>tool_declare<|im_middle|>", f"<|im_end|>{bare}"
        if not full.startswith(head) or not full.endswith(tail):
            raise EyasError(f"chat_format kimi: tool declarations do not begin with {head!r}: {full[:120]!r}")
        return full[len(head) : len(full) - len(tail)]
