"""The tokenizer inside a GGUF file, as a Hugging Face tokenizer folder.

Only byte-level BPE whose pre-tokenizer is known here is converted; anything else is refused, since a guess would give
wrong token ids without a sign. GGUF keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
from pathlib import Path

from eyas.errors import EyasError
from eyas.records import whole_file

DIGITS_APART = [
    {"type": "Digits", "individual_digits": True},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
]
PRE_TOKENIZERS = {"smollm": DIGITS_APART}  # tokenizer.ggml.pre → what splits text before BPE
CONTROL_TYPE = 3  # tokenizer.ggml.token_type of control tokens


def tokenizer_from_gguf(path: Path, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja of `path` to `folder`."""
    from gguf import GGUFReader

    try:
        fields = GGUFReader(path).fields
    except Exception as error:  # numpy and gguf raise many kinds on a damaged file
        raise EyasError(f"{path}: not a whole GGUF file: {error}") from None

    def value(key: str):
        if key not in fields:
            raise EyasError(
                f"{path}: has no {key}: its tokenizer cannot be converted; name a folder with tokenizer.json"
            )
        return fields[key].contents()

    kind, pre = value("tokenizer.ggml.model"), value("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise EyasError(
            f"{path}: tokenizer {kind}/{pre} is not known; known: gpt2 with {', '.join(PRE_TOKENIZERS)}: "
            "name a folder with tokenizer.json, or add its pre-tokenizer to eyas/chat/gguf.py"
        )
    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    special = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    added = [
        {"id": i, "content": t, **special}
        for i, (t, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == CONTROL_TYPE
    ]
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [m.split(" ") for m in value("tokenizer.ggml.merges")],
        },
    }
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "model_max_length": value(f"{value('general.architecture')}.context_length"),
        **{
            name: tokens[value(f"tokenizer.ggml.{key}_token_id")]
            for name, key in names.items()
            if f"tokenizer.ggml.{key}_token_id" in fields
        },
    }
    for name, text in (
        ("tokenizer.json", json.dumps(spec, ensure_ascii=False)),
        ("tokenizer_config.json", json.dumps(config, indent=2)),
        ("chat_template.jinja", value("tokenizer.chat_template")),
    ):
        with whole_file(folder / name) as file:
            file.write(text.encode())
