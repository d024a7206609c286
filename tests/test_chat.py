"""Chat → ids → mask: equal to slow, literal references; text never becomes a control token."""

import json
import shutil
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import tiny_kimi
from eyas.chat import NotRenderable, load_chat
from eyas.chat.gguf import tokenizer_from_gguf
from eyas.errors import EyasError

HOSTILE = [
    "<|im_end|>",
    "<|im_user|>",
    "<|im_start|>assistant\n",
    "[EOS]",
    "[BOS]",
    "<think>",
    "</think>",
    "<|im_middle|>",
]
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [*HOSTILE, "\n", "\n\n", " ", "  ", "\t", "the answer", "def f(x):\n    return 1", "é", "🙂", "数", "\0"]
        ),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    ),
    max_size=6,
).map("".join)
SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def conversations(draw, reasoning=False):
    messages = [{"role": "system", "content": draw(TEXTS)}] if draw(st.booleans()) else []
    for k in range(draw(st.integers(1, 5))):
        message = {"role": "user" if k % 2 == 0 else "assistant", "content": draw(TEXTS)}
        if reasoning and k % 2 and draw(st.booleans()):
            message["reasoning_content"] = draw(TEXTS)
        messages.append(message)
    return messages


# A literal reference for Kimi: one message after the other, one token list after the other.


def kimi_reference(hf, messages, rule):
    def special(token):
        return [hf.special_tokens[token]]

    def plain(text):
        return hf.encode(text, allow_special_tokens=False) if text else []

    ids, mask, seen_user = [], [], False
    last = len(messages) - 1
    finals = [k for k, m in enumerate(messages) if m["role"] == "assistant" and k != last]
    for k, m in enumerate(messages):
        parts = [(special(f"<|im_{m['role']}|>"), 0), (plain(m["role"]), 0), (special("<|im_middle|>"), 0)]
        if m["role"] == "assistant":
            reasoning = m.get("reasoning_content") if not finals or k > finals[-1] else None
            parts.append((special("<think>"), 0))
            if reasoning:
                parts += [(plain(reasoning), 1), (special("</think>"), 1)]
            else:
                parts.append((special("</think>"), 0))
        answer = int(m["role"] == "assistant")
        parts += [(plain(m["content"]), answer), (special("<|im_end|>"), answer)]
        for tokens, trained in parts:
            ids += tokens
            mask += [int(seen_user) if rule == "after_first_user" else trained] * len(tokens)
        seen_user |= m["role"] == "user"
    return ids, mask


@SLOW
@given(messages=conversations(reasoning=True), rule=st.sampled_from(["assistant", "after_first_user"]))
def test_kimi_equals_the_literal_reference(kimi, messages, rule):
    plan = kimi.format.conversation(messages)
    if rule == "after_first_user":
        plan = plan.train_after_first_user()
    assert kimi.encode([plan])[0] == kimi_reference(kimi.text.hf, messages, rule)


@SLOW
@given(messages=conversations(reasoning=True))
def test_kimi_ids_decode_to_the_rendered_text(kimi, messages):
    plan = kimi.format.conversation(messages)
    assert kimi.text.hf.decode(kimi.encode([plan])[0][0]) == kimi.rendered(plan)


@SLOW
@given(messages=conversations(), thinking=st.booleans())
def test_kimi_prompts_equal_the_template(kimi, messages, thinking):
    """Text for text, also for hostile contents (ids are compared by the literal reference)."""
    ours = kimi.rendered(kimi.format.prompt(messages, thinking=thinking))
    theirs = kimi.text.hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, thinking=thinking)
    assert ours == theirs


# A literal reference for ChatML: the text between two control tokens is one text to the tokenizer; a token is
# trained when it begins inside an assistant's content.

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module")
def plain_tokenizer(smollm2_folder):
    """SmolLM2's tokenizer, blind to control tokens."""
    spec = json.loads((smollm2_folder / "tokenizer.json").read_text())
    spec["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(spec))


@pytest.fixture(scope="module")
def own_tokenizer(smollm2_folder):
    """SmolLM2's tokenizer as it is."""
    return Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


def chatml_reference(tokenizer, messages, rule):
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": SYSTEM}, *messages]
    ids, mask, seen_user = [], [], False
    for m in messages:
        header = f"{m['role']}\n"
        body = tokenizer.encode(header + m["content"], add_special_tokens=False)
        end = tokenizer.encode("\n", add_special_tokens=False).ids
        answer = m["role"] == "assistant"
        trained = (
            [0] + [int(answer and start >= len(header)) for start, _ in body.offsets] + [int(answer)] + [0] * len(end)
        )
        tokens = [1, *body.ids, 2, *end]
        ids += tokens
        mask += [int(seen_user)] * len(tokens) if rule == "after_first_user" else trained
        seen_user |= m["role"] == "user"
    return ids, mask


@SLOW
@given(messages=conversations(), rule=st.sampled_from(["assistant", "after_first_user"]))
def test_the_template_format_equals_the_literal_reference(smollm2, plain_tokenizer, messages, rule):
    plan = smollm2.format.conversation(messages)
    if rule == "after_first_user":
        plan = plan.train_after_first_user()
    assert smollm2.encode([plan])[0] == chatml_reference(plain_tokenizer, messages, rule)


@SLOW
@given(messages=conversations())
def test_the_template_format_decodes_to_the_rendered_text(smollm2, own_tokenizer, messages):
    tokenizer = own_tokenizer
    for m in messages:  # SmolLM2 itself drops the bytes that its vocabulary lacks (some control characters, F1 to FF)
        m["content"] = "".join(c for c in m["content"] if encodable(tokenizer, c))
    plan = smollm2.format.conversation(messages)
    assert tokenizer.decode(smollm2.encode([plan])[0][0], skip_special_tokens=False) == smollm2.rendered(plan)


def encodable(tokenizer, character):
    return tokenizer.decode(tokenizer.encode(character, add_special_tokens=False).ids) == character


@pytest.mark.parametrize("chat", ["kimi", "smollm2"])
def test_text_that_spells_control_tokens_stays_text(chat, request):
    chat = request.getfixturevalue(chat)
    said = [{"role": "user", "content": " ".join(HOSTILE)}, {"role": "assistant", "content": "".join(HOSTILE)}]
    quiet = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    control = set(chat.text.control.values())

    def controls(messages):
        return [i for i in chat.encode([chat.format.conversation(messages)])[0][0] if i in control]

    assert controls(said) == controls(quiet)


def test_many_plans_at_once_are_encoded_as_one_by_one(smollm2):
    plans = [
        smollm2.format.conversation([{"role": "user", "content": "a" * k}, {"role": "assistant", "content": "\n" * k}])
        for k in range(30)
    ]
    assert smollm2.encode(plans) == [smollm2.encode([p])[0] for p in plans]


@pytest.mark.parametrize("chat", ["kimi", "smollm2"])
def test_a_million_characters_without_a_space_take_bounded_time(chat, request):
    chat = request.getfixturevalue(chat)
    started = time.monotonic()
    ids = chat.encode([chat.format.prompt([{"role": "user", "content": "ab" * 500_000}])])[0][0]
    assert len(ids) > 1000
    assert time.monotonic() - started < 20


# Tools, for Kimi

TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
]


def test_kimi_tools_come_first_in_the_tokenizers_own_words_as_plain_text(kimi):
    hostile = [{"type": "function", "function": {"name": "<|im_end|>", "parameters": {}}}]
    for tools in (TOOLS, hostile):
        plan = kimi.format.prompt([{"role": "user", "content": "q"}], tools)
        assert kimi.rendered(plan).startswith("<|im_system|>tool_declare<|im_middle|># Tools\n")
        ids = kimi.encode([plan])[0][0]
        assert ids.count(kimi.text.control["<|im_end|>"]) == 2


def test_kimi_tool_calls_are_trained_and_results_are_not(kimi):
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": {"a": "<|im_end|>"}}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "r"},
        {"role": "assistant", "content": "done"},
    ]
    plan = kimi.format.conversation(messages, TOOLS)
    ids, mask = kimi.encode([plan])[0]
    trained = kimi.text.hf.decode([i for i, m in zip(ids, mask, strict=True) if m])
    assert trained == (
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "<|im_end|>"}'
        "<|tool_call_end|><|tool_calls_section_end|><|im_end|>done<|im_end|>"
    )


def test_the_template_format_refuses_what_it_has_no_form_for(smollm2):
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    with pytest.raises(NotRenderable) as caught:
        smollm2.format.conversation(
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        )
    assert caught.value.reason == "tool_calls_in_template"


def test_reasoning_without_a_place_is_counted(smollm2, kimi):
    first = {"role": "assistant", "content": "a", "reasoning_content": "r"}
    messages = [{"role": "user", "content": "q"}, first]
    assert smollm2.format.conversation(messages).left_out == 1
    assert kimi.format.conversation(messages).left_out == 0
    later = [*messages, {"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]
    assert kimi.format.conversation(later).left_out == 1


# Loading


def edited(folder, tmp_path, change):
    copy = tmp_path / "edited"
    shutil.copytree(folder, copy)
    template = copy / "chat_template.jinja"
    template.write_text(change(template.read_text()))
    return copy


def test_a_template_that_strips_contents_is_followed(smollm2_folder, tmp_path):
    folder = edited(smollm2_folder, tmp_path, lambda t: t.replace("message['content']", "message['content'] | trim"))
    chat = load_chat(folder, chat_format="template", trust_remote_code=False, expected_tokens={})
    assert "user\nx<|im_end|>" in chat.rendered(chat.format.prompt([{"role": "user", "content": " x \n"}]))


def test_a_template_that_changes_contents_is_refused(smollm2_folder, tmp_path):
    folder = edited(
        smollm2_folder, tmp_path, lambda t: t.replace("message['content']", "message['content'] | replace('a', 'A')")
    )
    with pytest.raises(EyasError, match="does not render as this target's own chat template: at character"):
        load_chat(folder, chat_format="template", trust_remote_code=False, expected_tokens={})


def test_a_kimi_with_another_template_is_refused(kimi_folder, tmp_path):
    default_system = "<|im_system|>system<|im_middle|>You are a helpful assistant.<|im_end|>"
    folder = edited(kimi_folder, tmp_path, lambda t: t + default_system)
    with pytest.raises(EyasError, match="chat_format kimi does not render"):
        load_chat(folder, chat_format="kimi", trust_remote_code=True, expected_tokens={})


def test_the_wrong_tokenizer_is_refused(smollm2_folder, kimi_folder):
    with pytest.raises(EyasError, match=r"<\|im_end\|> should be token 163586, found 2"):
        load_chat(
            smollm2_folder, chat_format="template", trust_remote_code=False, expected_tokens={"<|im_end|>": 163586}
        )
    with pytest.raises(EyasError, match=r"has no <\|im_system\|>"):
        load_chat(smollm2_folder, chat_format="kimi", trust_remote_code=False, expected_tokens={})
    with pytest.raises(EyasError, match="trust_remote_code"):
        load_chat(kimi_folder, chat_format="kimi", trust_remote_code=False, expected_tokens={})


def test_a_missing_folder_says_how_to_get_it(tmp_path):
    with pytest.raises(EyasError, match="snakemake target/tokenizer/manifest.json"):
        load_chat(tmp_path / "none", chat_format="kimi", trust_remote_code=True, expected_tokens={})


def test_a_damaged_gguf_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EyasError, match="x.gguf: not a whole GGUF file"):
        tokenizer_from_gguf(tmp_path / "x.gguf", tmp_path)


def test_the_tiny_kimi_has_kimis_layout(kimi):
    base = len(tiny_kimi.ranks())
    assert kimi.vocabulary == base + 256
    assert kimi.text.control["<|im_middle|>"] == base + 17
