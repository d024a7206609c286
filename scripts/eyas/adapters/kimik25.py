"""KimiK2.5-2000x: prompts with Kimi-K2.5's reasoning and answers. The columns are detected.

No schema is published. Known shapes of such sets: a prompt, an answer and perhaps a reasoning column
under one of the names below; `messages` or `conversations`; or one `row_json` column that holds any
of these as text. An answer that starts with `<think>…</think>` is split later, once.
"""

import logging
from functools import lru_cache

import orjson

from eyas.adapters.base import Conversation, Rejected
from eyas.adapters.turns import parse_turns, text_of
from eyas.errors import EyasError

COLUMNS = None  # whole rows: which columns matter is only known then

TURNS = ("messages", "conversations")
SYSTEM = ("system", "system_prompt")
PROMPT = ("prompt", "instruction", "problem", "question", "input")
ANSWER = ("response", "solution", "output", "answer", "completion")
REASONING = ("reasoning_content", "thinking", "thinking_content", "thought", "reasoning")


@lru_cache(maxsize=64)
def shape_of(columns: tuple[str, ...]) -> dict[str, str] | None:
    """Which column plays which part, e.g. {"prompt": "problem", "answer": "solution"}; None if none fits."""
    if "row_json" in columns:
        shape = {"json": "row_json"}
    elif turns := next((c for c in TURNS if c in columns), None):
        shape = {"turns": turns}
    else:
        parts = {"system": SYSTEM, "prompt": PROMPT, "answer": ANSWER, "reasoning": REASONING}
        found = {part: next((c for c in names if c in columns), None) for part, names in parts.items()}
        shape = {part: column for part, column in found.items() if column}
        if not {"prompt", "answer"} <= shape.keys():
            return None
    logging.info("kimik25: columns %s are read as %s", list(columns), shape)
    return shape


def check_columns(columns: list[str], file: str) -> None:
    if shape_of(tuple(columns)) is None:
        raise EyasError(f"{file}: {_expected(columns)}")


def conversation(row: dict, options) -> Conversation:
    shape = shape_of(tuple(row))
    if shape is None:
        known = any(c in row for c in (*PROMPT, *ANSWER))
        raise Rejected("missing_field" if known else "unknown_columns", _expected(row))
    if "json" in shape:
        try:
            inner = orjson.loads(row["row_json"])
        except (TypeError, ValueError) as error:
            raise Rejected("bad_messages", f"row_json is not JSON: {error}") from None
        if not isinstance(inner, dict) or "row_json" in inner:
            raise Rejected("not_an_object", "row_json does not hold one row")
        return conversation(inner, options)
    if "turns" in shape:
        turns = row[shape["turns"]]
        shared_gpt = isinstance(turns, list) and turns and isinstance(turns[0], dict) and "from" in turns[0]
        keys = {"role": "from", "content": "value"} if shared_gpt else {}
        return Conversation(parse_turns(turns, field=shape["turns"], **keys))
    for part in ("prompt", "answer"):
        if row[shape[part]] is None:
            raise Rejected("missing_field", f"{shape[part]} is null")
    answer = {"role": "assistant", "content": text_of(row[shape["answer"]], shape["answer"])}
    if "reasoning" in shape and row[shape["reasoning"]] is not None:
        answer["reasoning_content"] = text_of(row[shape["reasoning"]], shape["reasoning"])
    messages = [{"role": "user", "content": text_of(row[shape["prompt"]], shape["prompt"])}, answer]
    if "system" in shape and (system := text_of(row[shape["system"]], shape["system"])):
        messages.insert(0, {"role": "system", "content": system})
    return Conversation(messages)


def _expected(columns) -> str:
    return (
        f"no known shape in the columns found: {', '.join(map(str, columns))}; expected one of {'/'.join(TURNS)}, "
        f"row_json, or a prompt ({'/'.join(PROMPT)}) with an answer ({'/'.join(ANSWER)}); "
        "add the name to eyas/adapters/kimik25.py"
    )
