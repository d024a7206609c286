"""From a row's turns to messages: roles, contents, tool calls, reasoning. One rule for each oddity.

A message that leaves this module is {"role", "content": str, "reasoning_content"?: str,
"tool_calls"?: [{"id", "type": "function", "function": {"name", "arguments": dict}}],
"tool_call_id"?, "name"?} with a role of `system`, `user`, `assistant` or `tool`, and every string is
valid Unicode. A turn that fits no rule raises Rejected: the row is counted, never repaired by a guess.
"""

import json
from typing import Any

import orjson

from eyas.adapters.base import Rejected

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "ai": "assistant",
    "tool": "tool",
}
BETWEEN_JOINED_TURNS = "\n\n"


def clean(text: str) -> str:
    """`text` as valid Unicode: surrogate pairs are joined, lone surrogates become U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_all(value: Any) -> Any:
    """`clean` for every string inside a JSON value, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_all(v) for v in value]
    if isinstance(value, dict):
        return {clean(k): clean_all(v) for k, v in value.items()}
    return value


def text_of(content: Any, where: str) -> str:
    """The text of a content field: a string, None (empty), or a list of text parts (joined as they stand)."""
    if isinstance(content, str):
        return clean(content)
    if content is None:
        return ""
    if isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, dict) and part.get("type", "text") == "text":
                part = part.get("text")
            if not isinstance(part, str):
                raise Rejected("content_not_text", f"{where}: a part is {_short(part)}, expected text")
            parts.append(part)
        return clean("".join(parts))
    raise Rejected("content_not_text", f"{where}: content is {_short(content)}, expected text")


def needed(row: dict, key: str) -> Any:
    """`row[key]`, which must be there (it may be null)."""
    if key not in row:
        raise Rejected("missing_field", f"{key} is missing; fields: {', '.join(map(str, row))}")
    return row[key]


def needed_text(row: dict, key: str) -> str:
    """The text in `row[key]`, which must be there and not null; "" is for the caller to judge."""
    value = needed(row, key)
    if value is None:
        raise Rejected("missing_field", f"{key} is null")
    return text_of(value, key)


def parse_turns(turns: Any, *, field: str = "messages", role: str = "role", content: str = "content") -> list[dict]:
    """Messages from a list of turns (or its JSON text), each a dict with `role` and `content` keys."""
    turns = _parsed_if_text(turns, field, "bad_messages")
    if turns is None or turns == []:
        raise Rejected("no_messages", f"{field} is {'null or missing' if turns is None else 'empty'}")
    if not isinstance(turns, list):
        raise Rejected("bad_messages", f"{field} is {_short(turns)}, expected a list")
    messages = []
    for k, turn in enumerate(turns):
        where = f"{field}[{k}]"
        if not isinstance(turn, dict):
            raise Rejected("bad_messages", f"{where} is {_short(turn)}, expected an object")
        name = turn.get(role)
        known = ROLES.get(name.strip().lower()) if isinstance(name, str) else None
        if known is None:
            raise Rejected("unknown_role", f"{where}.{role} is {_short(name)}; known: {', '.join(ROLES)}")
        message = {"role": known, "content": text_of(turn.get(content), where)}
        if known == "assistant":
            reasoning = turn.get("reasoning_content")
            if reasoning is not None:
                message["reasoning_content"] = text_of(reasoning, f"{where}.reasoning_content")
            calls = parse_tool_calls(turn.get("tool_calls"), where)
            if calls:
                message["tool_calls"] = calls
        elif known == "tool":
            for key in ("tool_call_id", "name"):
                if isinstance(turn.get(key), str):
                    message[key] = clean(turn[key])
        messages.append(message)
    return messages


def parse_tool_calls(calls: Any, where: str) -> list[dict]:
    """OpenAI-style tool calls with arguments as dicts; None, "" and [] mean that there are none."""
    calls = _parsed_if_text(calls, f"{where}.tool_calls", "bad_tool_call")
    if not calls:
        return []
    if not isinstance(calls, list):
        raise Rejected("bad_tool_call", f"{where}.tool_calls is {_short(calls)}, expected a list")
    parsed = []
    for k, call in enumerate(calls):
        function = call.get("function", call) if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise Rejected("bad_tool_call", f"{where}.tool_calls[{k}] names no function: {_short(call)}")
        parsed.append(tool_call(name, function.get("arguments"), f"{where}.tool_calls[{k}]", call.get("id")))
    return parsed


def tool_call(name: str, arguments: Any, where: str, call_id: Any = None) -> dict:
    """One tool call. Arguments: an object, its JSON text, or None for a call without any."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError) as error:
            raise Rejected("arguments_not_json", f"{where}: {error}: {_short(arguments)}") from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Rejected("arguments_not_json", f"{where}: arguments are {_short(arguments)}, expected an object")
    call = {"type": "function", "function": {"name": clean(name), "arguments": clean_all(arguments)}}
    return {"id": clean(call_id), **call} if isinstance(call_id, str) and call_id else call


def tidy(messages: list[dict]) -> list[dict]:
    """Drop what stands before the first user turn (system turns stay), join turns of one role.

    Joined: neighbours that are both user, both system, or both assistant without tool calls; the
    non-empty contents stand one blank line apart. Raises Rejected(no_user_turn) when nothing is left.
    """
    first_user = next((k for k, m in enumerate(messages) if m["role"] == "user"), None)
    if first_user is None:
        raise Rejected("no_user_turn", f"roles: {', '.join(m['role'] for m in messages[:8])}")
    kept = [m for m in messages[:first_user] if m["role"] == "system"] + messages[first_user:]
    joined = [dict(kept[0])]
    for message in kept[1:]:
        last = joined[-1]
        same = message["role"] == last["role"] != "tool"
        if same and "tool_calls" not in last and "tool_calls" not in message:
            for key in ("content", "reasoning_content"):
                if texts := [m[key] for m in (last, message) if m.get(key)]:
                    last[key] = BETWEEN_JOINED_TURNS.join(texts)
        else:
            joined.append(dict(message))
    return joined


def link_calls(messages: list[dict]) -> list[dict]:
    """Number tool calls `functions.NAME:IDX` through the conversation, and tie each result to its call.

    A result names its call by id, or follows the calls in their order. One that answers no call: Rejected.
    """
    if not any("tool_calls" in m or m["role"] == "tool" for m in messages):
        return messages
    out, count, waiting = [], 0, []  # waiting: (id in the row, new id) of calls without a result
    for k, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            linked = []
            for call in calls:
                new = f"functions.{call['function']['name']}:{count}"
                waiting.append((call.get("id"), new))
                linked.append({**call, "id": new})
                count += 1
            message = {**message, "tool_calls": linked}
        elif message["role"] == "tool":
            asked = message.get("tool_call_id")
            at = next((n for n, (old, _) in enumerate(waiting) if asked is None or old == asked), None)
            if at is None:
                raise Rejected("orphan_tool_result", f"messages[{k}] answers no tool call (tool_call_id {asked!r})")
            message = {**message, "tool_call_id": waiting.pop(at)[1]}
        out.append(message)
    return out


def prompt_context(messages: list[dict], turns: str) -> list[dict]:
    """What the target must answer: up to the first user turn with text, or up to the last user turn.

    `turns`: first_user or last_user. Empty user turns before the first one with text are left out.
    """
    users = [k for k, m in enumerate(messages) if m["role"] == "user" and m["content"].strip()]
    if not users:
        raise Rejected("empty_prompt", "no user turn has text")
    if turns == "last_user":
        return messages[: users[-1] + 1]
    return [m for m in messages[: users[0]] if m["role"] == "system"] + [messages[users[0]]]


def split_thinking(messages: list[dict]) -> list[dict]:
    """Move a leading `<think>…</think>` of an assistant's content to its reasoning_content, once."""
    out = []
    for k, message in enumerate(messages):
        content = message["content"]
        if message["role"] == "assistant" and "<think>" in content:
            if content.count("<think>") > content.count("</think>"):
                raise Rejected("unclosed_think", f"messages[{k}]: <think> without </think>: {_short(content)}")
            head, _, rest = content.partition("</think>")
            before, _, reasoning = head.partition("<think>")
            if not before.strip():
                known = message.get("reasoning_content")
                if known and known.strip() != reasoning.strip():
                    raise Rejected("two_reasonings", f"messages[{k}]: reasoning_content and <think> differ")
                message = {**message, "content": rest, "reasoning_content": reasoning}
        out.append(message)
    return out


def check_answered(messages: list[dict]) -> None:
    """A tokenized set needs a user turn with text, and an assistant turn that says something."""
    if not any(m["role"] == "user" and m["content"].strip() for m in messages):
        raise Rejected("empty_prompt", "no user turn has text")
    answers = [m for m in messages if m["role"] == "assistant"]
    if not answers:
        raise Rejected("no_assistant_turn", f"roles: {', '.join(m['role'] for m in messages[:8])}")
    if not any(m["content"].strip() or m.get("tool_calls") for m in answers):
        raise Rejected("empty_answer", "no assistant turn has text or a tool call")


def _parsed_if_text(value: Any, where: str, reason: str) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return orjson.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(value, strict=False)  # lone surrogates and control characters, which orjson refuses
    except (ValueError, RecursionError) as error:
        raise Rejected(reason, f"{where} is text that is not JSON: {error}: {_short(value)}") from None


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
