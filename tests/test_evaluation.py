"""Figures of an evaluation: counts to lengths, costs to speedups, and what is said when they do not fit together."""

import json
import shutil
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from eyas.config import Evaluation  # noqa: E402
from eyas.describe_evaluation import describe_evaluation, describe_scaling, describe_sweep  # noqa: E402
from eyas.eagle3.export import export  # noqa: E402
from eyas.errors import EyasError  # noqa: E402
from eyas.evaluation.acceptance import Acceptance  # noqa: E402
from eyas.evaluation.prompts import Asked, choose_prompts, first_of_each, heldout_prompts, read_prompts, write_prompts  # noqa: E402
from eyas.evaluation.scaling import fit_scaling  # noqa: E402
from eyas.evaluation.summary import summarize  # noqa: E402
from eyas.evaluation.sweep import sweep_summary, swept  # noqa: E402
from eyas.evaluation.trials import run_trials  # noqa: E402
from eyas.records import content_id  # noqa: E402
from test_eagle3_ttt import config, make_draft  # noqa: E402

PLAIN_S, CHAIN_S, VERIFY_S = 0.02, 0.004, 0.024  # seconds of a step; for a chain of two


def trial(name, accepted, dataset="B1", parted=None, scale=1.0):
    """A line whose answer is as long as its counts say; chains of len(accepted) − 1."""
    steps = sum(accepted)
    tokens = sum(n * (k + 1) for k, n in enumerate(accepted))
    ids = list(range(tokens + 1))
    alone = ids if parted is None else [*ids[:parted], *(-1 for _ in ids[parted:])]
    return {
        **{"id": name, "dataset": dataset, "output_ids": ids, "alone_ids": alone, "accepted": accepted},
        **{"seconds": scale * steps * (CHAIN_S + VERIFY_S), "chain_seconds": steps * CHAIN_S},
        "alone_seconds": tokens * PLAIN_S,
    }


@pytest.fixture
def folder(tmp_path):
    """A draft's folder; the training simulated 1 + 0.5 + 0.25."""
    draft, _ = make_draft(config(max_position_embeddings=2048))
    export(draft, tmp_path / "draft")
    own = {"joint": [0.5, 0.25, 0.05], "supervised": 100}
    of_others = {"A1": {"joint": [0.9, 0.8, 0.7], "supervised": 900}, "B3": {"joint": [], "supervised": 0}}
    judged = {"kind": "heldout", "step": 10, "acceptance_length": 1.8, "datasets": {"B1": own, **of_others}}
    older = {"kind": "heldout", "step": 5, "acceptance_length": 1.2, "datasets": {}}
    (tmp_path / "draft/metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in (judged, older)))
    return tmp_path / "draft"


def summary_of(folder, *lines, engine="walk", **changes):
    return summarize(Evaluation(chain=2, **changes), {engine: list(lines)}, folder)


def test_lengths_and_rates_by_position():
    found = Acceptance.of([trial("a", [6, 3, 1]), trial("b", [4, 4, 2])])
    assert found.accepted == (10, 7, 3) and found.verifications == 20
    assert found.length == (10 + 14 + 9) / 20 and found.rates == [0.5, 0.15]
    assert found.of_chain(1) == 1.5 and found.of_chain(2) == found.length
    assert Acceptance.of([]).length is None


def test_an_answer_that_was_cut_counts_what_it_has():
    line = trial("a", [0, 0, 4])
    line["output_ids"] = line["output_ids"][:11]  # the last verification gave two tokens too many
    assert Acceptance.of([line]).length == 10 / 4


def test_speedup_is_acceptance_over_cost_and_the_break_even_is_the_cost(folder):
    summary = summary_of(folder, trial("a", [10, 6, 4]), trial("b", [5, 3, 2], "B2"))
    assert summary["acceptance_length"]["walk"] == pytest.approx(1.7)
    assert summary["cost_ratio"]["walk"]["1"] == summary["break_even_acceptance_length"]["walk"]["1"] == 1.4
    assert summary["speedup"]["walk"]["1"] == pytest.approx(1.7 / 1.4, abs=1e-4)
    # One draft: 1.5 tokens for 1.3 plain steps; two: 1.7 for 1.4.
    assert summary["best_chain"]["walk"]["1"] == {"drafts": 2, "speedup": pytest.approx(1.7 / 1.4, abs=1e-4)}
    assert summary["simulation"]["walk"] == {"simulated": 1.75, "measured": 1.7, "error": None}, (
        "of B1, which both know"
    )
    assert set(summary["by_dataset"]["walk"]) == {"B1", "B2"} and summary["findings"] == []
    assert summary["verdict"]["faster"] and "1.21 times the speed" in summary["verdict"]["sentence"]


def test_a_shorter_chain_that_would_be_faster_is_named(folder):
    """The second draft costs 0.1 of a plain step and is accepted in 5 % of the steps."""
    summary = summary_of(folder, trial("a", [50, 45, 5]), max_gap=0.9)
    assert summary["best_chain"]["walk"]["1"]["drafts"] == 1
    assert "Chains of 1 would give 1.15 times" in summary["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("accepted", "scale", "said"),
    [
        ([80, 15, 5], 1.0, "The cost of verifying is in the way: 1.20 times a plain step, the chain of drafts 0.20"),
        ([88, 10, 2], 1.0, "The draft's acceptance is in the way"),
        ([80, 15, 5], 3.0, "Even a draft that is always right would not pay"),
    ],
)
def test_what_is_in_the_way_is_said(folder, accepted, scale, said):
    summary = summary_of(folder, trial("a", accepted, scale=scale), max_gap=0.9)
    assert not summary["verdict"]["faster"] and said in summary["verdict"]["sentence"]


def test_a_gap_to_what_the_training_simulated_is_a_finding(folder):
    (finding,) = summary_of(folder, trial("a", [80, 15, 5]), trial("b", [79, 16, 5]))["findings"]
    assert finding["kind"] == "gap" and "the training simulated 1.75" in finding["text"]
    # Samples that are not this target's words: no simulation tells of its answers.
    texts = [trial("b", [80, 15, 5], "A1"), trial("c", [79, 16, 5], "A1")]
    assert "simulated 2.70" in summary_of(folder, *texts)["findings"][0]["text"]
    told = summarize(Evaluation(chain=2), {"walk": texts}, folder, tokenized=["A1"])
    assert told["findings"] == [] and told["simulation"]["walk"] is None


def test_witnesses_are_asked_a_few_prompts_of_each_dataset():
    prompts = [Asked(f"{name}{k}", name, [k]) for k in range(4) for name in ("B1", "B2")]
    assert [p.id for p in first_of_each(prompts, 2)] == ["B10", "B20", "B11", "B21"]
    assert first_of_each(prompts, 9) == prompts


def test_a_gap_that_a_few_prompts_cannot_tell_from_chance_is_none(folder):
    """1.40 on average, but from 1.1 to 1.7 by prompt: ± 0.35."""
    few = summary_of(folder, trial("a", [90, 10, 0]), trial("b", [50, 30, 20]), trial("c", [70, 20, 10]))
    assert few["findings"] == [] and few["simulation"]["walk"]["error"] == pytest.approx(0.17, abs=0.01)
    many = [trial(str(k), x) for k in range(10) for x in ([90, 10, 0], [50, 30, 20], [70, 20, 10])]
    assert [f["kind"] for f in summary_of(folder, *many)["findings"]] == ["gap"]
    assert summary_of(folder, trial("a", [80, 15, 5]))["findings"] == [], "one prompt has no spread"


def test_engines_that_accept_differently_on_equal_answers_are_a_finding(folder):
    """The reference needs 20 verifications for 35 tokens; the same answers in 22 are another draft's."""
    walked = [trial("a", [10, 5, 5]), trial("b", [10, 5, 5]), trial("c", [1, 1, 1])]
    ids = walked[0]["output_ids"]
    alike = [{**trial(name, [10, 5, 5]), "concurrency": 2} for name in "ab"]
    other = {**trial("c", [2, 2, 2]), "concurrency": 2}
    found = summarize(Evaluation(chain=2), {"sglang": [*alike, other], "walk": walked}, folder)
    assert found["agreement"] == {"sglang": {"answers": 2, "walk": 1.75, "it": 1.75}} and not found["findings"]
    worse = [{**line, "accepted": [13, 5, 4], "output_ids": ids} for line in alike]
    found = summarize(Evaluation(chain=2), {"sglang": worse, "walk": walked}, folder)
    assert [f["kind"] for f in found["findings"]] == ["engines"]
    assert "SGLang accepts 1.59 tokens a step, the reference 1.75, over 2 prompts" in found["findings"][0]["text"]


def test_each_dataset_counts_as_it_does_among_the_held_out_samples(folder):
    """Ten samples of B1, of which one was asked, and thirty of B2, of which two were: 1.7 and 1.3 tokens a step."""
    lines = [trial("a", [10, 6, 4]), trial("b", [75, 20, 5], "B2"), trial("c", [75, 20, 5], "B2")]
    lines.append({**trial("e", [100, 0, 0], "E1"), "benchmark": True})
    found = summarize(Evaluation(chain=2, max_gap=0.9), {"walk": lines}, folder, population={"B1": 10, "B2": 30})
    tokens, steps = 10 * 34 + 15 * (130 + 130), 10 * 20 + 15 * (100 + 100)
    assert found["acceptance_length"]["walk"] == pytest.approx(tokens / steps, abs=1e-4)
    assert found["speedup"]["walk"]["1"] == pytest.approx(tokens / steps / 1.4, abs=1e-4)
    assert found["verdict"]["acceptance_length"] == found["acceptance_length"]["walk"]
    assert f"it is {tokens / steps:.2f}" in found["verdict"]["sentence"]


def test_benchmark_sets_stand_by_themselves(folder):
    lines = [trial("a", [10, 6, 4]), {**trial("b", [20, 0, 0], "E1"), "benchmark": True}]
    found = summarize(Evaluation(chain=2), {"walk": lines}, folder)
    assert found["acceptance_length"]["walk"] == pytest.approx(1.7), "of what was held out"
    assert set(found["by_dataset"]["walk"]) == {"B1"} and found["by_benchmark"]["walk"]["E1"]["acceptance_length"] == 1


def test_the_verdict_is_for_the_concurrency_that_the_server_will_have(folder):
    """A step with the draft costs more the more answers there are: 1.4 times one without, then 1.64, 2.0, 2.6."""
    lines = [{**trial(str(c), [10, 6, 4], scale=1 + 0.2 * k), "concurrency": c} for k, c in enumerate((1, 2, 4, 8))]
    asked = {"concurrency": (1, 2, 4, 8)}
    few = summarize(Evaluation(chain=2, serving_concurrency=2, **asked), {"sglang": lines}, folder)["verdict"]
    assert few["faster"] and few["concurrency"] == 2
    assert few["sentence"].endswith("It is slower at 4 (0.87 times) and 8 (0.76 times).")
    many = summarize(Evaluation(chain=2, serving_concurrency=8, **asked), {"sglang": lines}, folder)["verdict"]
    assert not many["faster"] and many["sentence"].endswith("It is faster at 1 (1.21 times) and 2 (1.01 times).")
    with pytest.raises(ValueError, match="serving_concurrency is 3, which `concurrency`"):
        Evaluation(serving_concurrency=3, **asked)


def test_answers_that_part_are_counted_and_too_many_are_a_finding(folder):
    some = summary_of(folder, trial("a", [10, 6, 4], parted=3), trial("b", [10, 6, 4]))
    assert some["lossless"]["walk"] == {
        **{"answers": 2, "same": 1},
        "parted": [{"id": "a", "dataset": "B1", "after": 3, "of": 35}],
    }
    assert some["findings"] == []
    (finding,) = summary_of(folder, trial("a", [10, 6, 4], parted=3))["findings"]
    assert finding["kind"] == "lossy"


def test_a_draft_that_gains_nothing_fails_with_the_causes_that_were_checked(folder):
    with pytest.raises(
        EyasError, match=r"(?s)acceptance length 1\.00.*the training simulated 1\.75.*all names and"
    ) as caught:
        summary_of(folder, trial("a", [20, 0, 0]))
    assert "another algorithm" not in str(caught.value), "no server was involved"
    for accepted in ([20, 0, 0], [10, 6, 4]):  # what it accepts by luck makes it no better
        lines = [{**trial("a", accepted), "algorithm": "EAGLE"}]
        with pytest.raises(EyasError, match=r"(?s)1\. another algorithm than EAGLE3 .* EAGLE: WRONG"):
            summarize(Evaluation(chain=2), {"sglang": lines}, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head"] = tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(EyasError, match=r"lm_head\.weight"):
        summary_of(folder, trial("a", [20, 0, 0]))
    summary_of(folder, trial("a", [20, 0, 0]), min_acceptance=1.0)


def test_trials_go_on_where_they_stopped(tmp_path):
    asked, tried = heldout_prompts(corpus(tmp_path), 2, 100), []

    def opened():
        def one(prompt):
            if len(tried) == 2:
                raise KeyboardInterrupt
            tried.append(prompt.id)
            return {"output_ids": [1, 2], "accepted": [1, 0], "alone_ids": [1, 2]}

        return nullcontext(one)

    run = ("walk", asked, tmp_path / "journal.jsonl", opened)
    with pytest.raises(KeyboardInterrupt):
        run_trials(*run)
    assert len(tried) == 2
    first, tried[:] = list(tried), []
    assert [line["id"] for line in run_trials(*run)] == [p.id for p in asked] == [*first, *tried]
    assert not run_trials(*run)[0]["benchmark"] and len(tried) == 2, "nothing is tried twice"


def corpus(folder):
    rows = [
        {"id": f"{name}{k}", "dataset": name, "input_ids": [5] * (k + 2) + [9, 9], "loss_mask": [0] * (k + 2) + [1, 1]}
        for k in range(3)
        for name in ("B2", "A1")
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "heldout.parquet")
    return folder / "heldout.parquet"


def test_prompts_are_held_out_samples_up_to_their_first_trained_token(tmp_path):
    asked = heldout_prompts(corpus(tmp_path), 2, 100)
    assert [(p.id, p.dataset, p.input_ids) for p in asked] == [
        *(("A10", "A1", [5, 5]), ("A11", "A1", [5, 5, 5]), ("B20", "B2", [5, 5]), ("B21", "B2", [5, 5, 5])),
    ]
    assert [p.id for p in heldout_prompts(tmp_path / "heldout.parquet", 9, 3)] == ["A10", "A11", "B20", "B21"]
    with pytest.raises(EyasError, match=r"no held-out prompt of at most 1 tokens: raise corpus\.heldout"):
        heldout_prompts(tmp_path / "heldout.parquet", 9, 1)


def test_the_page_tells_the_verdict_and_the_findings(folder, tmp_path):
    summary = summary_of(folder, trial("a", [80, 15, 5], "B<1>"), trial("b", [80, 15, 5]), trial("c", [79, 16, 5]))
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({**summary, "settings": {"evaluate": {"chain": 2}}}))
    page = describe_evaluation(path).html()
    assert summary["verdict"]["sentence"].split(":")[0] in page and "the training simulated 1.75" in page
    assert "B&lt;1&gt;" in page and "<svg" in page and "break-even" not in page
    lines = [{**trial(str(c), [10, 6, 4], scale=1 + c / 10), "concurrency": c} for c in (1, 4)]
    several = summarize(Evaluation(chain=2), {"sglang": lines}, folder)
    path.write_text(json.dumps({**several, "settings": {"evaluate": {"chain": 2}}}))
    assert "break-even" in describe_evaluation(path).html() and set(several["cost_ratio"]["sglang"]) == {"1", "4"}
    judged = [{**line, "id": f"e{k}", "dataset": "E2_gsm8k", "benchmark": True} for k, line in enumerate(lines)]
    beside = summarize(Evaluation(chain=2), {"sglang": [*lines, *judged]}, folder)
    for target, shown in (("Kimi-K2.5", True), ("another", False)):
        path.write_text(json.dumps({**beside, "settings": {"evaluate": {"chain": 2}, "target": {"name": target}}}))
        assert ("lightseekorg/kimi-k2.5-eagle3" in describe_evaluation(path).html()) == shown
    speed = {"requests": 8, "tokens_per_s": 1234.5, "tokens_per_s_of_a_request": 99.25, "first_token_s": 0.0312}
    served = summarize(Evaluation(chain=2), {"sglang": lines}, folder, {"4": {"with": speed, "without": speed}})
    path.write_text(json.dumps({**served, "settings": {"evaluate": {"chain": 2}}}))
    assert "1,234.5" in describe_evaluation(path).html() and "0.031" in describe_evaluation(path).html()
    shutil.copyfile(folder / "config.json", path)
    with pytest.raises(EyasError, match="summary.json: cannot be read"):
        describe_evaluation(path)


# Benchmark sets


def test_a_benchmark_s_prompt_that_is_trained_on_is_passed_over(tmp_path, smollm2, caplog):
    """Trained on: the same prompt in the target's tokens. The others come by their ids, which are hashes."""
    texts = [f"Question {k}" for k in range(6)]
    prompts = [[{"role": "user", "content": text}] for text in texts]
    encoded = [ids for ids, _ in smollm2.encode([smollm2.format.prompt(messages) for messages in prompts])]
    trained = {"id": "t", "dataset": "A1", "input_ids": [*encoded[2], 9], "loss_mask": [0] * len(encoded[2]) + [1]}
    pq.write_table(pa.Table.from_pylist([trained]), tmp_path / "train.parquet")
    corpus(tmp_path)
    lines = [{"id": content_id(m), "dataset": "E1", "messages": m, "meta": {}} for m in prompts]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    caplog.set_level("INFO")
    benchmarks = {"E1": (tmp_path / "prompts.jsonl", False)}
    asked = choose_prompts(Evaluation(prompts=4), tmp_path, benchmarks, smollm2)
    judged = [p for p in asked if p.benchmark]
    expected = sorted((line["id"], ids) for k, (line, ids) in enumerate(zip(lines, encoded, strict=True)) if k != 2)
    assert [(p.id, p.input_ids) for p in judged] == expected[:4] and {p.dataset for p in judged} == {"E1"}
    assert "4 prompts asked of 6; passed over: 1 are trained on, 0 are longer" in caplog.text
    write_prompts(tmp_path / "asked.jsonl", asked)
    assert read_prompts(tmp_path / "asked.jsonl") == asked and len(asked) == 6 + 4
    (tmp_path / "prompts.jsonl").write_text(json.dumps(lines[2]) + "\n")
    with pytest.raises(EyasError, match=r"none of its prompts can be asked: 1 are trained on"):
        choose_prompts(Evaluation(), tmp_path, benchmarks, smollm2)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({**lines[2], "id": "x"}) + "\n")
    with pytest.raises(EyasError, match=r"prompts\.jsonl, line 1: id is not the hash of messages"):
        choose_prompts(Evaluation(), tmp_path, benchmarks, smollm2)


# Sweeps, and more data


def test_a_sweep_names_the_fastest(folder, tmp_path):
    wanted = Evaluation(chain=2, sweep={"chains": [1, 2], "topk": [1, 4]})
    tried, left_out = swept(wanted, "walk")
    assert [(d.chain, d.topk, d.verified) for d in tried] == [(1, 1, 2), (2, 1, 3)]
    assert [str(d) for d in left_out] == ["trees of 1 × 4", "trees of 2 × 4"] and not swept(wanted, "sglang")[1]
    one = {**trial("a", [50, 50]), "seconds": 100 * 1.3 * PLAIN_S}
    trials = [(tried[0], [one]), (tried[1], [trial("a", [50, 45, 5])])]
    found = sweep_summary(wanted, "walk", 1, trials)
    assert found["best"]["chain"] == 1 and [round(row["speedup"], 2) for row in found["tried"]] == [1.15, 1.11]
    assert "evaluate.chain: 1 and topk" in found["sentence"].replace("evaluate.topk", "topk")
    assert "Those of the configuration make 1.11 times" in found["sentence"]
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(found))
    assert "trees of 2 × 4" in describe_sweep(path).html() and "<svg" in describe_sweep(path).html()
    with pytest.raises(EyasError, match=r"evaluate\.sweep\.topk: the reference drafts chains alone"):
        swept(Evaluation(sweep={"topk": [4]}), "walk")


def part(tokens, accepted, prompts=30, seed=0):
    """A draft on so many tokens, whose verifications accept `accepted` of one draft, give or take."""
    generator = np.random.default_rng(seed)
    hits = generator.binomial(100, accepted, prompts)
    lines = [trial(f"p{k}", [100 - int(n), int(n)]) for k, n in enumerate(hits)]
    return {"samples": tokens // 100, "corpus_tokens": tokens, "steps": 7}, lines


def test_what_more_data_would_bring(tmp_path):
    growing = [part(1000 * 2**k, 0.3 + 0.05 * k, seed=k) for k in range(4)]
    found = fit_scaling(growing)
    assert found["by_doubling"] == pytest.approx(0.05, abs=0.01)
    low, high = found["interval"]
    assert 0 < low < 0.05 < high and "More data helps." in found["sentence"]
    assert low == min(found["interval_of_prompts"][0], found["interval_of_line"][0])
    assert found["next"] == {"tokens": 16000, "acceptance_length": pytest.approx(1.5, abs=0.03)}
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(found))
    assert "More data helps." in describe_scaling(path).html() and "<svg" in describe_scaling(path).html()
    flat = fit_scaling([part(1000 * 2**k, 0.4, seed=k) for k in range(4)])
    assert flat["interval"][0] < 0 < flat["interval"][1] and "cannot be told" in flat["sentence"]


def test_a_fit_uses_the_prompts_that_all_drafts_answered():
    one, two = part(1000, 0.3), part(2000, 0.4, prompts=20)
    assert fit_scaling([one, two])["prompts"] == 20
    strangers = (two[0], [{**line, "id": "x" + line["id"]} for line in two[1]])
    with pytest.raises(EyasError, match="no held-out prompt was answered with all drafts"):
        fit_scaling([one, strangers])
    with pytest.raises(EyasError, match="does not tell how many tokens"):
        fit_scaling([({"steps": 1}, one[1]), two])
