"""A tiny tokenizer of Kimi's shape: tiktoken ranks, 256 control tokens at the end, Python code, no tokenizer.json.

`build(folder)` writes tiktoken.model, tokenization_kimi.py, tokenizer_config.json and chat_template.jinja. The
control tokens stand at the offsets that they have in Kimi-K2.5, behind a vocabulary of a few hundred pieces; with
`vocabulary=KIMI_RANKS`, filled up by pieces that no text spells, they have the very ids.
"""

import base64
import json
from collections import Counter
from pathlib import Path

TEXT = """the quick answer to the question is that a function returns the value of the list and prints the result
def main(args): return [x for x in range(10) if x > 2]  # the first and the last of them are the same
please write a program that reads a file, counts the words in it and shows the most frequent ones
Let me think about the weather in Oslo and in Rome: it is cold there and warm here. The tool returned an error.
"""
MERGES = 300
KIMI_RANKS = 163584
OFFSETS = {
    "[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|im_user|>": 3, "<|im_assistant|>": 4, "[EOT]": 9, "<|im_system|>": 10,
    "<|tool_calls_section_begin|>": 11, "<|tool_calls_section_end|>": 12, "<|tool_call_begin|>": 13,
    "<|tool_call_argument_begin|>": 14, "<|tool_call_end|>": 15, "<|im_middle|>": 17, "<think>": 22, "</think>": 23,
    "[UNK]": 254, "[PAD]": 255,
}  # fmt: skip

CODE = '''
"""A tokenizer over tiktoken ranks, in the shape that Kimi's repositories carry."""

import json
from pathlib import Path

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from transformers import PreTrainedTokenizer

PATTERN = r"""\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"""
RESERVED = 256


class TikTokenTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file, added_tokens_decoder=None, **kwargs):
        ranks = load_tiktoken_bpe(str(vocab_file))
        named = {int(i): t["content"] if isinstance(t, dict) else str(t) for i, t in (added_tokens_decoder or {}).items()}
        base = len(ranks)
        self.special_tokens = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(base, base + RESERVED)}
        self.model = tiktoken.Encoding(
            name=Path(vocab_file).name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.special_tokens
        )
        self.n_words = self.model.n_vocab
        self.decoder = {i: self.model.decode_single_token_bytes(i).decode("latin-1") for i in range(self.n_words)}
        self.encoder = {t: i for i, t in self.decoder.items()}
        super().__init__(**kwargs)

    def encode(self, text, allow_special_tokens=True, **kwargs):
        if kwargs:
            return super().encode(text, **kwargs)
        ids = []
        for start in range(0, len(text), 400_000):
            for piece in self._pieces(text[start : start + 400_000], 25_000):
                special = {"allowed_special": "all"} if allow_special_tokens else {"disallowed_special": ()}
                ids.extend(self.model.encode(piece, **special))
        return ids

    @staticmethod
    def _pieces(text, longest):
        start = run = 0
        space = None
        for i, c in enumerate(text):
            run = run + 1 if c.isspace() == space else 1
            space = c.isspace()
            if run > longest:
                yield text[start:i]
                start, run = i, 1
        yield text[start:]

    def decode(self, token_ids, **kwargs):
        return self.model.decode([token_ids] if isinstance(token_ids, int) else list(token_ids))

    @property
    def vocab_size(self):
        return self.n_words

    def get_vocab(self):
        return dict(self.encoder)

    def _tokenize(self, text, **kwargs):
        return [self.decoder[i] for i in self.encode(text)]

    def _convert_token_to_id(self, token):
        return self.encoder.get(token, self.special_tokens["[UNK]"])

    def _convert_id_to_token(self, index):
        return self.decoder.get(index)

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens).encode("latin-1").decode("utf-8", "replace")

    def apply_chat_template(self, conversation, tools=None, tokenize=False, add_generation_prompt=True, **kwargs):
        if tools:
            kwargs["tools_ts_str"] = "# Tools\\n" + "\\n".join(
                f"type {t['function']['name']} = (_: {json.dumps(t['function'].get('parameters', {}), sort_keys=True)}) => any;"
                for t in tools
            )
        return super().apply_chat_template(
            conversation, tools=tools, tokenize=tokenize, add_generation_prompt=add_generation_prompt, **kwargs
        )
'''

TEMPLATE = """
{%- macro body(message) -%}
  {%- if message.content is string -%}{{ message.content }}
  {%- elif message.content is not none -%}
    {%- for part in message.content -%}{{ part.text if part is mapping else part }}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- macro calls(message) -%}
  {%- if message.tool_calls -%}
    <|tool_calls_section_begin|>
    {%- for call in message.tool_calls -%}
      <|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
      {%- if call.function.arguments is string -%}{{ call.function.arguments }}
      {%- else -%}{{ call.function.arguments | tojson }}
      {%- endif -%}<|tool_call_end|>
    {%- endfor -%}
    <|tool_calls_section_end|>
  {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(settled=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'assistant' and not message.tool_calls -%}{%- set ns.settled = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}
  <|im_system|>tool_declare<|im_middle|>{{ tools_ts_str if tools_ts_str else tools | tojson }}<|im_end|>
{%- endif -%}
{%- for message in messages -%}
  {%- set name = message.name or message.role -%}
  {%- if message.role == 'user' -%}<|im_user|>{{ name }}<|im_middle|>{{ body(message) }}
  {%- elif message.role == 'assistant' -%}<|im_assistant|>{{ name }}<|im_middle|>
    {%- if loop.index0 <= ns.settled -%}<think></think>{{ body(message) }}{{ calls(message) }}
    {%- else -%}<think>{{ message.reasoning_content or '' }}</think>{{ body(message) }}{{ calls(message) }}
    {%- endif -%}
  {%- elif message.role == 'tool' -%}<|im_system|>{{ name }}<|im_middle|>{{ '## Return of ' + message.tool_call_id + '\\n' }}{{ body(message) }}
  {%- else -%}<|im_system|>{{ name }}<|im_middle|>{{ body(message) }}
  {%- endif -%}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
  <|im_assistant|>assistant<|im_middle|>{{ '<think></think>' if thinking is defined and not thinking else '<think>' }}
{%- endif -%}
"""


def ranks() -> list[bytes]:
    """256 single bytes, then pairs merged by frequency over TEXT."""
    pieces = [bytes([b]) for b in range(256)]
    words = [
        [bytes([b]) for b in word.encode()] for word in TEXT.replace("\n", " \n ").replace(" ", "  ").split(" ") if word
    ]
    while len(pieces) < 256 + MERGES:
        pairs = Counter(pair for word in words for pair in zip(word, word[1:], strict=False))
        if not pairs:
            break
        (a, b), _ = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if a + b not in pieces:
            pieces.append(a + b)
        for word in words:
            k = 0
            while k < len(word) - 1:
                if word[k] == a and word[k + 1] == b:
                    word[k : k + 2] = [a + b]
                k += 1
    return pieces


def build(folder: Path, vocabulary: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pieces = ranks()
    pieces += [b"\xff" + n.to_bytes(3, "big") for n in range(vocabulary - len(pieces))]
    lines = [f"{base64.b64encode(p).decode()} {k}" for k, p in enumerate(pieces)]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    (folder / "tokenization_kimi.py").write_text(CODE)
    (folder / "chat_template.jinja").write_text(TEMPLATE.lstrip("\n"))
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": {str(len(pieces) + at): {"content": token, **flags} for token, at in OFFSETS.items()},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "model_max_length": 262144,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    return folder
