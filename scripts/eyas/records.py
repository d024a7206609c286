"""The record formats, and files that are whole or absent.

prompts.jsonl, a line:         {"id", "dataset", "messages", "tools"?, "meta"}
tokenized_data.jsonl, a line:  {"id", "dataset", "input_ids": [int], "loss_mask": [0|1]}
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson

from eyas.errors import EyasError

RECORD_FILES = {"prompts": "prompts.jsonl", "tokenized_data": "tokenized_data.jsonl"}
TRAINS_NOTHING = "loss_mask trains no token"  # the one fault that a record may have in a file that is sound


def content_id(messages: list[dict], tools: list | None = None) -> str:
    """32 hex digits that name a conversation by its content: the same on every run and machine."""
    content = orjson.dumps({"messages": messages, "tools": tools or []}, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@contextmanager
def whole_file(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears under its name only when the block ends well.

    The bytes go to a hidden neighbour, reach the disk, and are renamed: a job that is killed at any
    moment leaves either the former file or the whole new one. durable: false spares the wait for the
    disk, for what may be lost with the machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
        if durable:
            sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk: a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value, *, durable: bool = True) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    with whole_file(path, durable=durable) as file:
        file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def write_text(path: Path, text: str) -> None:
    """Write `text`, whole or not at all."""
    with whole_file(path) as file:
        file.write(text.encode())


def read_json(path: Path, remedy: str | None = None):
    """What a file of the workflow holds; EyasError when it cannot be read. remedy: default, to make it again."""
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise EyasError(f"{path}: cannot be read ({error}): {remedy or f'run `snakemake --force {path}`'}") from None


def is_blank(path: Path) -> bool:
    """Whether a file holds nothing but white space (a missing file is not blank: it is missing)."""
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 16):
                if block.strip():
                    return False
    except FileNotFoundError:
        return False
    return True


def lines_of_part(path: Path, start: int, size: int) -> Iterator[bytes]:
    """The lines that begin within `size` bytes from byte `start`: of parts side by side, each line is in one."""
    with open(path, "rb", buffering=1 << 18) as file:
        at, end = start, start + size
        if start:
            file.seek(start - 1)
            at += len(file.readline()) - 1  # the rest of a line that began before; just its end when none did
        for line in file:
            if at >= end:
                break
            at += len(line)
            yield line


def lines_before(path: Path, start: int) -> int:
    """How many lines begin before byte `start`."""
    count, left = min(start, 1), start - 1  # the first line, and one after each end of a line
    with open(path, "rb", buffering=0) as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            count += block.count(b"\n")
            left -= len(block)
    return count


def fault_in_prompt(line: bytes, dataset: str) -> str | None:
    """What is wrong with one line of prompts.jsonl; None when it is a valid prompt."""
    record = _record_of(line, dataset)
    if isinstance(record, str):
        return record
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages is not a list with messages"
    for k, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"messages[{k}] has no role"
        if not isinstance(message.get("content"), str):
            return f"messages[{k}].content is not text"
    if messages[-1]["role"] == "assistant":
        return "the last message is the assistant's: nothing is left to answer"
    if record.get("id") != content_id(messages, record.get("tools")):
        return "id is not the hash of messages and tools: the line was altered"
    return None


def fault_in_tokenized(line: bytes, dataset: str, vocabulary: int | None = None) -> str | None:
    """What is wrong with one line of tokenized_data.jsonl; None when it is a valid record.

    `vocabulary`: number of token ids of the target, when known; ids must lie below it.
    """
    record = _record_of(line, dataset)
    if isinstance(record, str):
        return record
    if not isinstance(record.get("id"), str) or not record["id"]:
        return "id is missing"
    ids, mask = record.get("input_ids"), record.get("loss_mask")
    if not isinstance(ids, list) or not isinstance(mask, list):
        return "input_ids or loss_mask is not a list"
    if len(ids) != len(mask):
        return f"input_ids has {len(ids)} entries, loss_mask {len(mask)}"
    if not set(map(type, ids)) <= {int} or (ids and min(ids) < 0):
        return "input_ids holds something that is not a token id"
    if vocabulary is not None and ids and max(ids) >= vocabulary:
        return f"input_ids holds {max(ids)}, outside the vocabulary of {vocabulary}"
    if not set(map(type, mask)) <= {int} or not set(mask) <= {0, 1}:
        return "loss_mask holds something that is not 0 or 1"
    if 1 not in mask:
        return TRAINS_NOTHING
    return None


def _record_of(line: bytes, dataset: str) -> dict | str:
    """The record on a line, or what is wrong with it."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error}"
    if not isinstance(record, dict):
        return "not a JSON object"
    if record.get("dataset") != dataset:
        return f"dataset is {record.get('dataset')!r}, expected {dataset!r}"
    return record
