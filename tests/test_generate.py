"""The target answers, and nothing is lost: each prompt has one record or one counted reason, whatever fails."""

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from conftest import ROOT
from eyas.config import Generation, Target, load
from eyas.errors import EyasError
from eyas.generate import generate_responses
from eyas.records import content_id, fault_in_tokenized
from eyas.target import sglang
from eyas.target.engine import identity_of
from eyas.target.launch import arguments, check_flags
from eyas.target.sglang import RunningServer, SglangEngine
from fake_server import EOS, answer, ask

CONFIG = load([ROOT / "config/demo.yaml"])
FAKE_SGLANG = str(ROOT / "tests/fake_sglang")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(sglang, "FIRST_PAUSE_S", 0.01)


@contextmanager
def fake_server(*options, port=None):
    if port is None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
    process = subprocess.Popen([sys.executable, ROOT / "tests/fake_server.py", "--port", str(port), *map(str, options)],
                               stdout=subprocess.DEVNULL)  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 20
    while True:
        try:
            ask(url, "/health")
            break
        except OSError:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
    try:
        yield url
    finally:
        process.kill()
        process.wait()


def write_prompts(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for text in texts:
        messages = [{"role": "user", "content": text}]
        lines.append(json.dumps({"id": content_id(messages), "dataset": "B", "messages": messages, "meta": {}}))
    path.write_text("\n".join(lines) + "\n")


class Stage:
    """The stage on one dataset of `n` prompts, against a server at `url`."""

    def __init__(self, folder, chat, n=60):
        self.folder, self.chat = folder, chat
        self.texts = [f"question {k} " + "word " * (k % 40) for k in range(n)]
        self.prompts = folder / "prepared/B/prompts.jsonl"
        write_prompts(self.prompts, self.texts)
        self.out = folder / "responses/B"
        self.journals = folder / "state/generate_responses/B"

    def run(self, url, model="fake", **sampling):
        sampling = Generation(**{"temperature": 0, "max_new_tokens": 100, "concurrency": 8, **sampling})
        target = Target.model_validate({**CONFIG.target.model_dump(), "engine": "sglang", "model": model})
        settings = {"dataset": "B", "sampling": sampling.model_dump(), "target": target.model_dump(mode="json")}

        @contextmanager
        def engine():
            with RunningServer(url, model, patience_s=3) as server:
                yield SglangEngine(server)

        return generate_responses(settings, self.prompts, self.chat, engine, self.journals, self.out)

    def records(self):
        lines = (self.out / "tokenized_data.jsonl").read_bytes().splitlines()
        assert [f for line in lines if (f := fault_in_tokenized(line, "B", self.chat.vocabulary))] == []
        return [json.loads(line) for line in lines]

    def rejects(self):
        return [json.loads(line) for line in (self.out / "rejects.jsonl").read_text().splitlines()]

    def check_complete(self, max_new_tokens=100):
        """Every prompt has exactly one record, in order, with the very answer to the very prompt."""
        records = self.records()
        assert len(records) == len(self.texts)
        for text, record in zip(self.texts, records, strict=True):
            messages = [{"role": "user", "content": text}]
            asked = self.chat.encode([self.chat.format.prompt(messages, thinking=True)])[0][0]
            said, kind = answer(asked, max_new_tokens)
            assert record["id"] == content_id(messages)
            assert record["input_ids"] == asked + said
            assert record["loss_mask"] == [0] * len(asked) + [1] * len(said)
            assert record["meta"]["finish_reason"] == kind
            assert record["meta"]["prompt_tokens"] == len(asked) and record["meta"]["answer_tokens"] == len(said)


@pytest.fixture
def stage(tmp_path, smollm2):
    return Stage(tmp_path, smollm2)


def answers(url):
    return ask(url, "/stats")["answers"]


def test_every_prompt_is_answered_token_for_token(stage):
    with fake_server() as url:
        stats = stage.run(url)
        stage.check_complete()
        assert ask(url, "/stats")["most_in_flight"] <= 9
    assert stats["rows_read"] == stats["kept"] == stats["finished"]["stop"] == 60
    assert stats["trainable_tokens"] == sum(r["meta"]["answer_tokens"] for r in stage.records())
    counters = json.loads((stage.journals / "progress.json").read_text())
    assert (counters["done"], counters["left"], counters["failed"]) == (60, 0, 0)
    assert (
        stats["settings"]["sampling"]["temperature"] == 0 and stats["fingerprint"]["sampling"]["max_new_tokens"] == 100
    )


def test_a_rerun_asks_nothing_and_publishes_the_same(stage):
    with fake_server() as url:
        stage.run(url)
        before, asked = (stage.out / "tokenized_data.jsonl").read_bytes(), answers(url)
        (stage.out / "tokenized_data.jsonl").unlink()
        stage.run(url, concurrency=3, tries=2, max_failed=0.5)  # these decide nothing
        assert answers(url) == asked
    assert (stage.out / "tokenized_data.jsonl").read_bytes() == before


def test_what_the_journal_holds_is_published_without_a_server(stage):
    with fake_server() as url:
        stage.run(url)
    (stage.out / "stats.json").unlink()
    stage.run("http://127.0.0.1:9")
    stage.check_complete()


def test_a_mended_prompt_is_asked_again_and_the_others_are_not(stage):
    with fake_server() as url:
        stage.run(url)
        asked = answers(url)
        stage.texts[7] = "mended"
        del stage.texts[3]
        write_prompts(stage.prompts, stage.texts)
        stage.run(url)
        assert answers(url) == asked + 1
        stage.check_complete()


def test_other_sampling_asks_all_again_into_a_new_journal(stage):
    with fake_server() as url:
        stage.run(url)
        old = {p: p.read_bytes() for p in stage.journals.glob("*.jsonl")}
        stage.run(url, max_new_tokens=5)
        assert answers(url) == 120
        stage.check_complete(max_new_tokens=5)
    assert len(list(stage.journals.glob("*.jsonl"))) == 2 and all(p.read_bytes() == b for p, b in old.items())


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500, "times": 7},
        {"status": 429, "times": 20},
        {"garbage": 1},
        {"drop": 3},
        {"status": 503, "times": 12},
    ],
)
def test_faults_that_pass_cost_nothing(stage, fault):
    with fake_server() as url:
        ask(url, "/fault", fault)
        stats = stage.run(url, tries=6)
        stage.check_complete()
        assert answers(url) == 60
    assert stats["rejected"] == 0


def test_prompts_that_fail_for_good_are_set_aside_and_too_many_of_them_fail_the_dataset(stage):
    with fake_server() as url:
        ask(url, "/fault", {"status": 500, "times": 2})
        stats = stage.run(url, tries=1, max_failed=0.1)
        assert stats["reasons"] == {"failed": 2} and stats["kept"] == 58
        assert "HTTP 500" in stage.rejects()[0]["detail"]
        ask(url, "/fault", {"status": 500, "times": 10**6})
        stage.texts += [f"new {k}" for k in range(5)]
        write_prompts(stage.prompts, stage.texts)
        with pytest.raises(EyasError, match="7 of 65 prompts failed, the limit is 2.0%"):
            stage.run(url, tries=2)
        asked = answers(url)
        ask(url, "/fault", {"times": 0})
        stage.run(url)
        assert answers(url) == asked + 7, "only what had failed is asked again"
        stage.check_complete()


def test_refusals_empty_answers_and_cuts_are_counted(stage):
    stage.texts[0] = "long " * 300
    write_prompts(stage.prompts, stage.texts)
    with fake_server("--context", 200) as url:
        stats = stage.run(url, max_new_tokens=6)
        cut = stats["finished"]["length"]
        assert stats["reasons"] == {"prompt_too_long": 1} and 0 < cut < 59 and stats["kept"] == 59
        stats = stage.run(url, max_new_tokens=6, keep_cut=False)
        assert stats["reasons"] == {"prompt_too_long": 1, "cut_by_length": cut} and stats["filters"] == [
            "cut_by_length"
        ]
        assert stats["rows_read"] == stats["kept"] + stats["rejected"]
    with fake_server("--ends-at-once") as url, pytest.raises(EyasError, match="empty_answer"):
        stage.run(url, max_new_tokens=50)


def test_a_server_that_is_gone_for_good_ends_the_run_and_the_next_goes_on(stage):
    with (
        fake_server("--exit-after", 25, "--answer-s", 0.01) as url,
        pytest.raises(EyasError, match="no answer for 3"),
    ):
        stage.run(url)
    assert not (stage.out / "tokenized_data.jsonl").exists()
    journal = next(stage.journals.glob("*.jsonl"))
    kept = journal.read_bytes().count(b"\n")
    assert kept == 25
    with fake_server() as url:
        stage.run(url)
        assert answers(url) == 60 - kept
        stage.check_complete()


def test_a_torn_journal_costs_one_answer(stage):
    with fake_server() as url:
        stage.run(url)
        journal = next(stage.journals.glob("*.jsonl"))
        journal.write_bytes(journal.read_bytes()[:-30])
        stage.run(url)
        assert answers(url) == 61
        stage.check_complete()


def test_a_damaged_prompt_ends_in_an_error_before_anything_is_asked(stage):
    lines = stage.prompts.read_text().splitlines()
    stage.prompts.write_text("\n".join([lines[0], lines[1][:-9], *lines[2:]]))
    with fake_server() as url:
        with pytest.raises(EyasError, match=r"prompts\.jsonl, line 2: not JSON.*snakemake --force"):
            stage.run(url)
        assert answers(url) == 0


def test_another_model_and_a_speculating_server_are_refused(stage):
    with (
        fake_server("--model", "other/model") as url,
        pytest.raises(EyasError, match="serves 'other/model'"),
    ):
        stage.run(url)
    with fake_server("--speculates", "EAGLE3") as url, pytest.raises(EyasError, match=r"speculates \(EAGLE3\)"):
        stage.run(url)
    with pytest.raises(EyasError, match="no server answers there"):
        stage.run("http://127.0.0.1:9")


def job(stage, url):
    """The real script against a server that runs already."""
    target = {**CONFIG.target.model_dump(mode="json"), "engine": "sglang", "model": "fake", "sglang": {"url": url}}
    sampling = Generation(temperature=0, max_new_tokens=100, concurrency=8).model_dump()
    settings = json.dumps({"dataset": "B", "sampling": sampling, "target": target})
    return [sys.executable, ROOT / "scripts/generate_responses.py", "--dataset", "B", "--settings", settings]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_job_asks_at_most_twice_what_was_in_flight(stage, smollm2_folder, how):
    with fake_server("--answer-s", 0.2) as url:
        command = [*job(stage, url), "--tokenizer", smollm2_folder]
        process = subprocess.Popen(command, cwd=stage.folder, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while answers(url) < 10 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(how)
        process.wait(timeout=20)
        assert not (stage.out / "tokenized_data.jsonl").exists()
        subprocess.run(command, cwd=stage.folder, check=True, capture_output=True)
        assert answers(url) <= 60 + 8
        stage.check_complete()


def test_a_disk_that_fills_while_journaling_loses_no_answer(stage, smollm2_folder):
    disk = stage.folder / "state"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        with fake_server() as url:
            command = [*job(stage, url), "--tokenizer", smollm2_folder]
            done = subprocess.run(command, cwd=stage.folder, capture_output=True, text=True, check=False)
            assert done.returncode == 1 and "error: the disk is full" in done.stderr, done.stderr
            assert "make room and run again" in done.stderr and "Traceback" not in done.stderr
            assert 10 < answers(url) < 60 and not (stage.out / "tokenized_data.jsonl").exists()
            subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
            subprocess.run(command, cwd=stage.folder, check=True, capture_output=True)
            assert answers(url) <= 60 + 8
            stage.check_complete()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


# Flags


def target_with(flags, **more):
    env = {"PYTHONPATH": FAKE_SGLANG}
    own = {"python": sys.executable, "flags": flags, "env": env, "gpus": 0, **more}
    return Target.model_validate({**CONFIG.target.model_dump(), "engine": "sglang", "model": "fake", "sglang": own})


def test_flags_become_arguments():
    flags = {"tp": 8, "trust-remote-code": True, "enable_mixed_chunk": True, "off": False, "list": ["a", "b"]}
    found = arguments(target_with(flags).sglang)
    assert found == ["--tp", "8", "--trust-remote-code", "--enable-mixed-chunk", "--list", "a", "b"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"trust-remote-cod": True}, "trust-remote-cod: no such flag (did you mean 'trust-remote-code'?)"),
        ({"tp": "eight"}, "invalid int value: 'eight'"),
        ({"kv-cache-dtype": "fp7"}, "invalid choice: 'fp7'"),
        ({"speculative-algorithm": "EAGLE3"}, "answers and states come from the plain target"),
        ({"port": 3000}, "eyas sets this itself"),
    ],
)
def test_flags_are_checked_by_the_servers_own_parser_before_anything_starts(tmp_path, flags, said):
    with pytest.raises(EyasError) as caught:
        check_flags(target_with(flags), tmp_path)
    assert "target.sglang.flags" in str(caught.value) and said in str(caught.value)


def test_the_environment_is_checked(tmp_path):
    check_flags(target_with({"tp": 2}), tmp_path)
    with pytest.raises(EyasError, match=r"has SGLang 0\.5\.23, expected 0\.5\.22"):
        check_flags(target_with({"tp": 2}, version="0.5.22"), tmp_path)
    with pytest.raises(EyasError, match=r"does not run.*make sglang"):
        check_flags(target_with({"tp": 2}, python=str(tmp_path / "none/python")), tmp_path)
    with pytest.raises(EyasError, match="SGLang cannot be imported"):
        check_flags(target_with({"tp": 2}, env={}), tmp_path)


def test_what_was_found_sound_is_not_asked_again(tmp_path, monkeypatch):
    check_flags(target_with({"tp": 2}), tmp_path)
    monkeypatch.setattr(subprocess, "run", None)
    check_flags(target_with({"tp": 2}), tmp_path)


def test_answers_do_not_depend_on_memory_flags(tmp_path):
    def identity(flags):
        return identity_of(target_with(flags))

    assert identity({"tp": 8, "mem-fraction-static": 0.9}) == identity({})
    assert identity({"kv_cache_dtype": "fp8_e4m3"}) != identity({})


def test_the_stop_token_belongs_to_the_answer(smollm2):
    request = sglang.Request("x", [5, 6])
    said = {"output_ids": [7, 8], "meta_info": {"finish_reason": {"type": "stop", "matched": EOS}, "prompt_tokens": 2}}
    assert sglang.read_answer(request, json.dumps(said).encode(), 0.1, 9).output_ids == [7, 8, EOS]
    said["output_ids"].append(EOS)
    assert sglang.read_answer(request, json.dumps(said).encode(), 0.1, 9).output_ids == [7, 8, EOS]
    said["meta_info"]["prompt_tokens"] = 3
    assert "3 prompt tokens, 2 were sent" in sglang.read_answer(request, json.dumps(said).encode(), 0.1, 9)
