"""Plain text → token ids, and the ids of control tokens. No text ever becomes a control token.

Two kinds of tokenizer are known: one with a tokenizer.json (the Rust library `tokenizers`), and
Kimi's (tiktoken ranks behind remote code, no tokenizer.json).
"""

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path

from eyas.errors import EyasError

LOOKS_LIKE_CONTROL = re.compile(r"<[^\s<>]+>|\[[A-Z_]+\]")


class FastText:
    """Plain text through `tokenizers`, with the control tokens taken out of the tokenizer.

    Taken out: every added token that is special or looks like one (`<think>`, `[EOS]`). Added tokens that
    stand for ordinary text (runs of spaces in some vocabularies) stay: the target knows them so.
    """

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        self.path = folder / "tokenizer.json"
        text = self.path.read_text(encoding="utf-8")
        try:
            spec = json.loads(text)
            added = spec["added_tokens"]
            self.control = {
                t["content"]: t["id"] for t in added if t["special"] or LOOKS_LIKE_CONTROL.fullmatch(t["content"])
            }
            spec["added_tokens"] = [t for t in added if t["content"] not in self.control]
            spec.update(post_processor=None, truncation=None, padding=None)
            self.tokenizer = Tokenizer.from_str(json.dumps(spec))
            self.vocabulary = Tokenizer.from_str(text).get_vocab_size(with_added_tokens=True)
        except Exception as error:  # `tokenizers` raises bare Exception
            raise EyasError(f"{self.path}: not a tokenizer: {error}") from None
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
        steps = json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
        self.is_byte_level = '"ByteLevel"' in steps

    def encode(self, texts: list[str]) -> list[list[int]]:
        """ids of each text. [n] → n lists"""
        return [e.ids for e in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def tokens_in_head(self, text: str, ids: list[int], head: str) -> int:
        """How many of `ids` (those of `text`) begin inside its first part, `head`."""
        if self.is_byte_level:  # each character of a token stands for one byte
            return _count_to(len(head.encode()), (self._byte_length[i] for i in ids))
        offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets
        return sum(start < len(head) for start, _ in offsets)

    @staticmethod
    def reference_ids(hf, rendered: str) -> list[int]:
        """ids of a rendered text by the tokenizer itself, control tokens included."""
        return list(hf(rendered, add_special_tokens=False)["input_ids"])

    @cached_property
    def _byte_length(self) -> list[int]:
        lengths = [0] * self.vocabulary
        for token, i in self.tokenizer.get_vocab().items():
            lengths[i] = len(token)
        return lengths


class KimiText:
    """Plain text through the tokenizer class that Kimi's repository carries (tokenization_kimi.py).

    Its `encode` cuts text at 400,000 characters and runs (of space, or of anything else) at 25,000, one character
    at a time in Python; a text of at most 25,000 characters meets neither and goes to tiktoken directly.
    """

    SHORTEST_CUT_CHARS = 25_000

    def __init__(self, hf, folder: Path):
        self.hf, self.model = hf, hf.model
        self.control = {token: i for token, i in self.model._special_tokens.items()}
        self.vocabulary = self.model.n_vocab
        digest = hashlib.sha256()
        for name in ("tiktoken.model", "tokenizer_config.json"):
            if (folder / name).exists():
                digest.update((folder / name).read_bytes())
        self.fingerprint = digest.hexdigest()[:16]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """ids of each text. [n] → n lists"""
        return [
            self.model.encode_ordinary(t)
            if len(t) <= self.SHORTEST_CUT_CHARS
            else self.hf.encode(t, allow_special_tokens=False)
            for t in texts
        ]

    def tokens_in_head(self, text: str, ids: list[int], head: str) -> int:
        """How many of `ids` (those of `text`) begin inside its first part, `head`."""
        return _count_to(len(head.encode()), (len(self.model.decode_single_token_bytes(i)) for i in ids))

    @staticmethod
    def reference_ids(hf, rendered: str) -> list[int]:
        """ids of a rendered text by the tokenizer itself, control tokens included."""
        return list(hf.encode(rendered))


def _count_to(total: int, lengths) -> int:
    """How many of `lengths` it takes to reach `total`."""
    reached = count = 0
    for n in lengths:
        if reached >= total:
            break
        reached += n
        count += 1
    return count
