r"""glaive-function-calling-v2: dialogues with function calls, as two strings a row.

A row: {"system": "SYSTEM: … {tool JSON} {tool JSON} …",
        "chat": "USER: …\n\n\nASSISTANT: … <|endoftext|>\n\n\nFUNCTION RESPONSE: …"}.
A marker counts only at the start of a line. The tools stand one after another, without an array
around them. A call is `<functioncall> {"name": "f", "arguments": '{"q": "x"}'}`: the arguments are JSON between
single quotes, or a plain object, or absent.
"""

import json
import re

from eyas.adapters.base import Conversation, Rejected
from eyas.adapters.turns import clean, clean_all, needed_text, tool_call

COLUMNS = ("system", "chat")

MARKER = re.compile(r"^(USER|ASSISTANT|FUNCTION RESPONSE): ?", re.MULTILINE)
CALL = "<functioncall>"
END = "<|endoftext|>"
QUOTED_ARGUMENTS = re.compile(
    r'^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*\'(.*)\'\s*\}\s*$', re.DOTALL
)


def conversation(row: dict, options) -> Conversation:
    system, tools = split_tools(needed_text(row, "system"))
    chat = needed_text(row, "chat")
    messages = [{"role": "system", "content": system}] if system else []
    markers = list(MARKER.finditer(chat))
    if not markers:
        raise Rejected("no_messages", f"chat has no USER:, ASSISTANT: or FUNCTION RESPONSE: {chat[:80]!r}")
    if chat[: markers[0].start()].strip():
        raise Rejected("bad_messages", f"chat begins with text of no speaker: {chat[:80]!r}")
    for marker, following in zip(markers, [*markers[1:], None], strict=True):
        body = chat[marker.end() : following.start() if following else len(chat)]
        speaker = marker.group(1)
        if speaker == "USER":
            messages.append({"role": "user", "content": body.strip()})
        elif speaker == "ASSISTANT":
            messages.append(assistant(body))
        else:
            messages.append({"role": "tool", "content": body.strip()})
    return Conversation(messages, tools or None)


def assistant(body: str) -> dict:
    """One assistant turn: its words, and its call when it makes one."""
    words, called, call = body.replace(END, "").partition(CALL)
    message = {"role": "assistant", "content": words.strip()}
    if called:
        message["tool_calls"] = [parse_call(call.strip())]
    return message


def parse_call(text: str) -> dict:
    """`{"name": …, "arguments": …}` with the arguments between single quotes, as an object, or absent."""
    if quoted := QUOTED_ARGUMENTS.match(text):
        return tool_call(json.loads(quoted.group(1)), quoted.group(2).replace("\\'", "'"), CALL)
    try:
        call = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise Rejected("arguments_not_json", f"{CALL}: {error}: {text[:80]!r}") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise Rejected("bad_tool_call", f"{CALL} names no function: {text[:80]!r}")
    return tool_call(call["name"], call.get("arguments"), CALL)


def split_tools(system: str) -> tuple[str, list[dict]]:
    """The words of a system text, and the JSON objects that follow one another in it, as tools."""
    system = system.removeprefix("SYSTEM:").strip()
    start = system.find("{")
    if start < 0:
        return system, []
    decoder, tools, at = json.JSONDecoder(strict=False), [], start
    while at < len(system):
        try:
            tool, at = decoder.raw_decode(system, at)
        except (ValueError, RecursionError) as error:
            raise Rejected("bad_tools", f"system: tool {len(tools) + 1} is not JSON: {error}") from None
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise Rejected("bad_tools", f"system: tool {len(tools) + 1} has no name: {str(tool)[:80]}")
        tools.append({"type": "function", "function": clean_all(tool)})
        while at < len(system) and system[at] in " \t\r\n,":
            at += 1
    return clean(system[:start].strip().removesuffix("-").strip()), tools
