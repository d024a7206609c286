"""Plain text → token ids, and the ids of control tokens. No text ever becomes a control token.

Two kinds of tokenizer are known: one with a tokenizer.json (the Rust library `tokenizers`), and
Kimi's (tiktoken ranks behind remote code, no tokenizer.json).
"""

import codecs
import hashlib
import json
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from eyas.errors import EyasError

LOOKS_LIKE_CONTROL = re.compile(r"<[^\s<>]+>|\[[A-Z_]+\]")
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


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

    def decode_each(self, ids: list[int]) -> list[str]:
        """The text of each of `ids` [n], for people: n strings (see `_decode_each`)."""
        return _decode_each(ids, self.control, self._token_bytes)

    @staticmethod
    def reference_ids(hf, rendered: str) -> list[int]:
        """ids of a rendered text by the tokenizer itself, control tokens included."""
        return list(hf(rendered, add_special_tokens=False)["input_ids"])

    def _token_bytes(self, i: int) -> bytes | None:
        """The bytes of a token that is not a control token; None when there is no such token."""
        if i in self._added:
            return self._added[i].encode()
        token = self.tokenizer.id_to_token(i)
        if token is None:
            return None
        if self.is_byte_level and all(
            c in self._byte_of for c in token
        ):  # else: a token written plainly into the vocabulary
            return bytes(self._byte_of[c] for c in token)
        if BYTE_TOKEN.fullmatch(token):  # SentencePiece's way to spell a byte
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    @cached_property
    def _added(self) -> dict[int, str]:
        """Added tokens that stand for ordinary text: spelled plainly, also in a byte-level vocabulary."""
        return {i: t.content for i, t in self.tokenizer.get_added_tokens_decoder().items()}

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        """GPT-2's alphabet: printable bytes stand for themselves, the others follow from U+0100 on."""
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [b for b in range(256) if b not in plain]
        return {chr(b): b for b in plain} | {chr(0x100 + k): b for k, b in enumerate(others)}

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
        self.control = {token: self.model.encode_single_token(token) for token in self.model.special_tokens_set}
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

    def decode_each(self, ids: list[int]) -> list[str]:
        """The text of each of `ids` [n], for people: n strings (see `_decode_each`)."""
        return _decode_each(ids, self.control, self._token_bytes)

    @staticmethod
    def reference_ids(hf, rendered: str) -> list[int]:
        """ids of a rendered text by the tokenizer itself, control tokens included."""
        return list(hf.encode(rendered))

    def _token_bytes(self, i: int) -> bytes | None:
        """The bytes of a token; None when there is no such token."""
        try:
            return self.model.decode_single_token_bytes(i)
        except (KeyError, OverflowError):
            return None


def _decode_each(ids: list[int], control: dict[str, int], token_bytes: Callable[[int], bytes | None]) -> list[str]:
    """The text of each of `ids` [n]: n strings.

    A control token is its name. A character that several tokens spell stands with the last of them, and the
    others have what they complete (often nothing); bytes that spell no character, and ids of no token, are �.
    """
    names = {i: name for name, i in control.items()}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts: list[str] = []
    for i in ids:
        if i in names or (spelled := token_bytes(i)) is None:
            if rest := decoder.decode(b"", final=True):  # no character goes on beyond it
                texts[-1] += rest
            texts.append(names.get(i, "\ufffd"))
        else:
            texts.append(decoder.decode(spelled))
    if rest := decoder.decode(b"", final=True):
        texts[-1] += rest
    return texts


def _count_to(total: int, lengths) -> int:
    """How many of `lengths` it takes to reach `total`."""
    reached = count = 0
    for n in lengths:
        if reached >= total:
            break
        reached += n
        count += 1
    return count
