"""What each oddity of a row gets: one named rule, or one counted reason."""

import pytest

from eyas.adapters.base import Rejected
from eyas.adapters.turns import (
    check_answered,
    clean,
    link_calls,
    needed_text,
    parse_turns,
    prompt_context,
    split_thinking,
    tidy,
)


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def reason(call, *args, **kwargs):
    with pytest.raises(Rejected) as caught:
        call(*args, **kwargs)
    assert caught.value.detail, "a reject says what was found"
    return caught.value.reason


def roles(messages):
    return [m["role"] for m in messages]


def test_a_list_of_text_parts_is_joined_as_it_stands():
    parts = [{"type": "text", "text": "one "}, "two", {"text": " three"}]
    assert parse_turns([turn("user", parts)])[0]["content"] == "one two three"


@pytest.mark.parametrize(
    "content", [7, 1.5, {"text": "x"}, [{"type": "image_url", "image_url": "x"}], [{"type": "text"}], [3]]
)
def test_content_that_is_not_text_rejects_the_row(content):
    assert reason(parse_turns, [turn("user", content)]) == "content_not_text"


def test_null_content_is_an_empty_turn():
    assert parse_turns([turn("user", None)])[0]["content"] == ""


def test_messages_as_json_text_are_parsed():
    assert parse_turns('[{"role": "user", "content": "hi \\ud83d"}]') == [turn("user", "hi �")]


@pytest.mark.parametrize("messages", ["[{", "hello", {"role": "user"}, 5, ["text"], [None]])
def test_messages_of_another_shape_reject_the_row(messages):
    assert reason(parse_turns, messages) == "bad_messages"


@pytest.mark.parametrize("messages", [None, [], "", "null", "[]"])
def test_no_messages(messages):
    assert reason(parse_turns, messages) == "no_messages"


@pytest.mark.parametrize(
    ("name", "role"),
    [("user", "user"), ("human", "user"), ("Human ", "user"), ("assistant", "assistant"), ("gpt", "assistant"),
     ("chatgpt", "assistant"), ("bing", "assistant"), ("bard", "assistant"), ("ai", "assistant"), ("system", "system")],
)  # fmt: skip
def test_known_roles(name, role):
    assert parse_turns([{"from": name, "value": "x"}], role="from", content="value")[0]["role"] == role


@pytest.mark.parametrize("name", ["function", "critic", "developer", "", None, 3])
def test_an_unknown_role_rejects_the_row(name):
    assert reason(parse_turns, [turn(name, "x")]) == "unknown_role"


def test_leading_assistant_turns_are_dropped_and_system_turns_stay():
    messages = [turn("system", "s"), turn("assistant", "a"), turn("user", "u"), turn("assistant", "b")]
    assert tidy(messages) == [turn("system", "s"), turn("user", "u"), turn("assistant", "b")]


def test_nothing_left_after_leading_assistant_turns():
    assert reason(tidy, [turn("system", "s"), turn("assistant", "a")]) == "no_user_turn"


def test_turns_of_one_role_are_joined_by_a_blank_line():
    messages = [turn("user", "a"), turn("user", ""), turn("user", "b"), turn("assistant", "c"), turn("assistant", "d")]
    assert tidy(messages) == [turn("user", "a\n\nb"), turn("assistant", "c\n\nd")]


def test_tool_results_and_calls_are_not_joined():
    calls = parse_turns(
        [
            turn("user", "u"),
            turn("assistant", None, tool_calls=[{"id": "x", "function": {"name": "f", "arguments": "{}"}}]),
            turn("tool", "1", tool_call_id="x"),
            turn("tool", "2", tool_call_id="x"),
            turn("assistant", "done"),
        ]
    )
    assert roles(tidy(calls)) == ["user", "assistant", "tool", "tool", "assistant"]


def test_arguments_may_be_an_object_or_its_json_and_both_become_one():
    def call(arguments):
        tool_calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        return parse_turns([turn("assistant", "", tool_calls=tool_calls)])[0]["tool_calls"]

    assert call({"q": 1}) == call('{"q": 1}')
    assert call(None)[0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ["{q: 1}", "", "not json", "[1]", [1], 4])
def test_arguments_that_are_not_a_json_object_reject_the_row(arguments):
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    assert reason(parse_turns, [turn("assistant", "", tool_calls=calls)]) == "arguments_not_json"


def test_tool_calls_as_json_text_are_parsed_and_bad_ones_rejected():
    text = '[{"function": {"name": "f", "arguments": {}}}]'
    assert parse_turns([turn("assistant", "", tool_calls=text)])[0]["tool_calls"][0]["function"]["name"] == "f"
    for bad in ("[", [1], [{"function": {}}], {"a": 1}):
        assert reason(parse_turns, [turn("assistant", "", tool_calls=bad)]) == "bad_tool_call"


def test_calls_are_numbered_through_the_conversation_and_results_tied_to_them():
    def call(name, old):
        return {"id": old, "type": "function", "function": {"name": name, "arguments": {}}}

    messages = [
        turn("user", "u"),
        turn("assistant", "", tool_calls=[call("f", "p"), call("g", "q")]),
        turn("tool", "of g", tool_call_id="q"),
        turn("tool", "of f", tool_call_id="p"),
        turn("assistant", "", tool_calls=[call("f", "r")]),
        turn("tool", "again"),
    ]
    linked = link_calls(messages)
    assert [c["id"] for m in linked for c in m.get("tool_calls", [])] == [
        "functions.f:0",
        "functions.g:1",
        "functions.f:2",
    ]
    assert [m["tool_call_id"] for m in linked if m["role"] == "tool"] == [
        "functions.g:1",
        "functions.f:0",
        "functions.f:2",
    ]
    assert reason(link_calls, [turn("user", "u"), turn("tool", "x")]) == "orphan_tool_result"


def test_null_reasoning_is_as_if_absent():
    assert parse_turns([turn("assistant", "a", reasoning_content=None)]) == [turn("assistant", "a")]


def test_a_think_block_is_split_off_once():
    split = split_thinking([turn("assistant", "<think>why</think>\n\nso <think>x</think>")])
    assert split == [turn("assistant", "\n\nso <think>x</think>", reasoning_content="why")]
    doubled = turn("assistant", "<think>why</think>so", reasoning_content="why ")
    assert split_thinking([doubled]) == [turn("assistant", "so", reasoning_content="why")]
    inside = turn("assistant", "The tags <think> and </think> frame it.")
    assert split_thinking([inside]) == [inside]
    assert reason(split_thinking, [turn("assistant", "<think>a</think>b", reasoning_content="c")]) == "two_reasonings"


@pytest.mark.parametrize("content", ["<think>never closed", "<think>a</think> b <think>c", "  <think>"])
def test_an_unclosed_think_rejects_the_row(content):
    assert reason(split_thinking, [turn("assistant", content)]) == "unclosed_think"


def test_users_may_write_think_tags():
    assert split_thinking([turn("user", "<think>")]) == [turn("user", "<think>")]


def test_prompts_keep_the_context_that_the_target_needs():
    chat = [turn("system", "s"), turn("user", " "), turn("assistant", "?"), turn("user", "a"), turn("assistant", "b"),
            turn("user", "c"), turn("assistant", "d")]  # fmt: skip
    assert prompt_context(chat, "first_user") == [turn("system", "s"), turn("user", "a")]
    assert prompt_context(chat, "last_user") == chat[:-1]
    assert reason(prompt_context, [turn("user", " \n"), turn("assistant", "x")], "first_user") == "empty_prompt"


def test_a_tokenized_conversation_needs_a_question_and_an_answer():
    assert reason(check_answered, [turn("system", "s"), turn("user", "u")]) == "no_assistant_turn"
    assert reason(check_answered, [turn("user", "u"), turn("assistant", " ")]) == "empty_answer"
    assert reason(check_answered, [turn("user", ""), turn("assistant", "a")]) == "empty_prompt"
    check_answered([turn("user", "u"), turn("assistant", "a"), turn("user", "ends with a user turn")])


def test_lone_surrogates_become_replacement_characters_and_pairs_are_joined():
    assert clean("a\ud83d b\ude00") == "a� b�"
    assert clean("\ud83d\ude00") == "😀"
    clean("NUL \0 stays").encode()


def test_a_missing_field_is_named():
    assert reason(needed_text, {"other": 1}, "problem") == "missing_field"
    assert reason(needed_text, {"problem": None}, "problem") == "missing_field"
