"""A target's tokenizer and chat format, loaded, checked, ready to encode."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from eyas.chat.kimi import KimiFormat
from eyas.chat.plan import Plan
from eyas.chat.template import TemplateFormat
from eyas.chat.text import FastText, KimiText
from eyas.errors import EyasError

PROBES = (  # what every format must render as the target's own template does
    [{"role": "user", "content": "Which is larger, 9.11 or 9.9?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name three rivers.\n\n```py\nx = 1\n```"},
    ],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! What can I do?"},
        {"role": "user", "content": "Nothing.\n"},
    ],
    [
        {"role": "system", "content": "Répondez en français. 你好 🙂"},
        {"role": "user", "content": "Un café ?"},
        {"role": "assistant", "content": "Oui, avec plaisir."},
        {"role": "user", "content": "Merci"},
        {"role": "assistant", "content": "1. noir\n2. au lait"},
    ],
)
SPACED_PROBE = [
    {"role": "user", "content": "  two spaces before, a line after\n"},
    {"role": "assistant", "content": "\n\nlines before "},
    {"role": "user", "content": "ok"},
]


class Chat:
    """Renders and encodes conversations of one target."""

    def __init__(self, text: FastText | KimiText, chat_format: KimiFormat | TemplateFormat):
        self.text, self.format = text, chat_format

    @property
    def fingerprint(self) -> str:
        """16 hex digits of the tokenizer's files: token ids of two fingerprints must not be mixed."""
        return self.text.fingerprint

    @property
    def vocabulary(self) -> int:
        return self.text.vocabulary

    def encode(self, plans: list[Plan]) -> list[tuple[list[int], list[int]]]:
        """(input_ids, loss_mask) for each plan, equal lengths; one call of the tokenizer for all of them.

        Plain text between two control tokens is one text to the tokenizer, also where the mark changes inside it (a
        header's last word and the answer); a token that begins before the change keeps the mark before it.
        """
        texts: list[str] = []
        layouts = [_layout(plan, texts) for plan in plans]
        encoded = self.text.encode(texts)
        out = []
        for layout in layouts:
            ids: list[int] = []
            mask: list[int] = []
            for item, mark, heads in layout:
                if heads is None:
                    ids.append(item)
                    mask.append(mark)
                    continue
                tokens = encoded[item]
                ids += tokens
                if heads:
                    at = 0
                    for head, head_mark in heads:
                        upto = self.text.tokens_in_head(texts[item], tokens, head)
                        mask += [head_mark] * (upto - at)
                        at = upto
                    mask += [mark] * (len(tokens) - at)
                else:
                    mask += [mark] * len(tokens)
            out.append((ids, mask))
        return out

    def rendered(self, plan: Plan) -> str:
        """The text of a plan, control tokens by name: what its ids decode to."""
        names = {i: token for token, i in self.text.control.items()}
        return "".join(names[item] if isinstance(item, int) else item for item in plan.items)


def _layout(plan: Plan, texts: list[str]) -> list[tuple]:
    """Runs of a plan: (id, mark, None), or (index in texts, last mark, [(text so far, its mark), …])."""
    layout = []
    run: list[str] = []
    heads: list[tuple[str, int]] = []
    run_mark = 0
    for item, mark in zip(plan.items, plan.marks, strict=True):
        if isinstance(item, int):
            if run:
                layout.append((len(texts), run_mark, heads))
                texts.append("".join(run))
                run, heads = [], []
            layout.append((item, mark, None))
        elif item:
            if run and mark != run_mark:
                heads.append(("".join(run), run_mark))
            run.append(item)
            run_mark = mark
    if run:
        layout.append((len(texts), run_mark, heads))
        texts.append("".join(run))
    return layout


def keep_torch_out() -> None:
    """For commands that need tokenizers only: transformers then starts without torch, 2 s and 100 MB lighter."""
    sys.modules.setdefault("torch", None)


def chat_of(folder: Path, target: Mapping) -> Chat:
    """Load the tokenizer in `folder` as a target's settings (config.Target, as a dict) say."""
    keys = ("chat_format", "trust_remote_code", "expected_tokens")
    return load_chat(folder, **{key: target[key] for key in keys})


def load_chat(folder: Path, *, chat_format: str, trust_remote_code: bool, expected_tokens: dict[str, int]) -> Chat:
    """Load the tokenizer in `folder`; EyasError when it is not the expected one or renders otherwise.

    The format is compared with the tokenizer's own `apply_chat_template` on probe conversations, text for
    text and id for id: a mismatch is refused here, not found in a draft that accepts nothing.
    """
    hf = _load_tokenizer(folder, trust_remote_code)
    if hf.chat_template is None:
        raise EyasError(
            f"{folder}: the tokenizer has no chat template: add chat_template.jinja to target.tokenizer.files"
        )
    if (folder / "tokenizer.json").exists():
        text = FastText(folder)
    elif hasattr(getattr(hf, "model", None), "encode_ordinary"):
        text = KimiText(hf, folder)
    else:
        raise EyasError(
            f"{folder}: neither a tokenizer.json nor a tiktoken tokenizer: no way to encode plain text safely"
        )
    for token, expected in expected_tokens.items():
        if text.control.get(token) != expected:
            found = text.control.get(token, "no such control token")
            raise EyasError(
                f"{folder}: {token} should be token {expected}, found {found}: the wrong tokenizer or backend was "
                "loaded; check target.tokenizer and target.trust_remote_code"
            )
    if chat_format == "kimi":
        chat = Chat(text, KimiFormat(hf, text))
    else:
        chat = Chat(text, TemplateFormat(hf, text))
        if _mismatch(chat, hf, SPACED_PROBE):  # the template may strip contents, as Llama 3's does
            chat = Chat(text, TemplateFormat(hf, text, strips=True))
    for messages, tools in [*((m, None) for m in (*PROBES, SPACED_PROBE)), *chat.format.probes]:
        if problem := _mismatch(chat, hf, messages, tools):
            raise EyasError(
                f"{folder}: chat_format {chat_format} does not render as this target's own chat template: {problem}; "
                "use another chat_format, or write the target's structure in scripts/eyas/chat/"
            )
    return chat


def _mismatch(chat: Chat, hf, messages: list[dict], tools: list | None = None) -> str | None:
    """How the format and the tokenizer's template differ on one conversation; None when they agree."""
    asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    cases = [(chat.format.prompt(asked, tools, thinking), asked, True, thinking) for thinking in (True, False)]
    cases.append((chat.format.conversation(messages, tools), messages, False, True))
    for plan, conversation, opened, thinking in cases:
        ours = chat.rendered(plan)
        theirs = hf.apply_chat_template(
            conversation,
            tools=tools,
            tokenize=False,
            add_generation_prompt=opened,
            **chat.format.reference_kwargs(thinking),
        )
        if ours != theirs:
            at = _first_difference(ours, theirs)
            return f"at character {at} ours is {ours[at : at + 40]!r}, the template's {theirs[at : at + 40]!r}"
        ids = chat.encode([plan])[0][0]
        reference = chat.text.reference_ids(hf, theirs)
        if ids != reference:
            at = _first_difference(ids, reference)
            return f"the text agrees, but token {at} is {ids[at : at + 4]}, the tokenizer's {reference[at : at + 4]}"
    return None


def _first_difference(a, b) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _load_tokenizer(folder: Path, trust_remote_code: bool):
    if not folder.is_dir():
        raise EyasError(
            f"{folder}: no such folder: run `snakemake target/tokenizer/manifest.json` to bring the tokenizer"
        )
    if trust_remote_code and "HF_MODULES_CACHE" not in os.environ:
        modules = tempfile.mkdtemp(prefix="eyas-modules-")  # parallel jobs would write the shared cache at once
        os.environ["HF_MODULES_CACHE"] = modules
        atexit.register(shutil.rmtree, modules, ignore_errors=True)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:  # transformers and remote code raise anything
        hint = "" if trust_remote_code else " (a tokenizer with its own code needs target.trust_remote_code: true)"
        raise EyasError(f"{folder}: the tokenizer does not load: {type(error).__name__}: {error}{hint}") from None
