"""Real Snakemake runs: what is rebuilt, what is not, and the commands exactly as users type them."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing

import pytest
import yaml

from conftest import ROOT, SNAKEMAKE
from eyas.config import load
from eyas.status import status
from workflow_copy import DATASETS, make_workflow

PROMPTS = "prepared/B5_openthoughts/prompts.jsonl"


def test_a_finished_run_has_every_file_log_and_benchmark_and_nothing_to_do(workflow):
    for name in DATASETS:
        kind = "tokenized" if name.startswith("A") else "prompts"
        records = "tokenized_data" if name.startswith("A") else "prompts"
        for path in (
            f"prepared/{name}/{records}.jsonl",
            f"prepared/{name}/stats.json",
            f"prepared/{name}/rejects.jsonl",
            f"logs/prepare_{kind}/{name}.log",
            f"benchmarks/prepare_{kind}/{name}.tsv",
            f"reports/prepared/{name}.html",
        ):
            assert (workflow.work / path).is_file(), path
        for stats in workflow.work.glob(f"*/{name}/stats.json"):
            stats = json.loads(stats.read_bytes())
            assert stats["rows_read"] == stats["kept"] + stats["rejected"] + stats["duplicates"] + stats["beyond_cap"]
    assert "Nothing to be done" in workflow.run("all")


def test_of_a_finished_run_nothing_is_left_and_looking_changes_nothing(workflow):
    config, before = load([workflow.root / "test.yaml"]), workflow.snapshot()
    result = status(config, workflow.work)
    assert {row["name"]: row["left"] for row in result["stages"]} == dict.fromkeys(
        ("prepared", "generated", "corpus", "captured", "trained", "evaluated", "deployed"), 0
    )
    assert [row["rate"] or row["seconds_left"] or row["parts"] for row in result["stages"]] == [[]] * 7
    assert result["problems"] == [] and result["jobs"] == [] and result["snakemake"]["state"] == "none"
    corpus, draft = (json.loads((workflow.work / f).read_bytes()) for f in ("corpus/stats.json", "draft/training.json"))
    tokens = corpus["train"]["tokens"] + corpus["heldout"]["tokens"]
    notes = {row["name"]: row["note"] for row in result["stages"]}
    assert notes["corpus"] == f"{tokens:,} tokens"
    assert notes["trained"].endswith(f"held out {draft['heldout']['acceptance_length']:.2f}")
    assert result["servers"] and not any(server["alive"] for server in result["servers"])
    assert result["disk"] | {"free_bytes": 0, "needed_bytes": 0} == {
        **{"free_bytes": 0, "needed_bytes": 0, "bound": "", "fits": True, "why_unknown": None},
    }
    assert workflow.snapshot() == before


def test_a_benchmark_set_judges_and_never_trains(workflow):
    assert not (workflow.work / "responses/E3_humaneval").exists()
    corpus = json.loads((workflow.work / "corpus/stats.json").read_bytes())
    assert "E3_humaneval" not in corpus["by_dataset"]
    summary = json.loads((workflow.work / "evaluation/summary.json").read_bytes())
    assert summary["by_benchmark"]["sglang"]["E3_humaneval"]["answers"] == 3
    assert "E3_humaneval" not in summary["by_dataset"]["sglang"]
    assert "| E3_humaneval | 3 |" in (workflow.work / "deploy/draft/README.md").read_text()
    assert set(summary["speed"]["1"]["with"]) >= {"tokens_per_s", "tokens_per_s_of_a_request", "first_token_s"}


def test_other_chains_and_more_data_are_tried_when_asked(workflow):
    """A sweep over chains and trees, and drafts on parts of the corpus, each a target of its own."""
    sweep = {"chains": [1, 2], "topk": [1, 2], "prompts": 2}
    workflow.config(lambda c: (c["evaluate"].update(sweep=sweep), c.update(scaling={"parts": [4, 2]})))
    workflow.run("sweep", "scaling")
    told = json.loads((workflow.work / "evaluation/sweep.json").read_bytes())
    assert [(row["chain"], row["topk"], row["draft_tokens"]) for row in told["tried"]] == [
        *((1, 1, 2), (2, 1, 3), (1, 2, 3), (2, 2, 5)),
    ]
    assert told["best"] in told["tried"] and told["left_out"] == []
    log = (workflow.work / "logs/sweep_evaluation.log").read_text()
    assert log.count("without the draft, 1 at once: asked before") == 3, "the plain server is asked once for all"
    scaling = json.loads((workflow.work / "scaling/summary.json").read_bytes())
    samples = [draft["samples"] for draft in scaling["drafts"]]
    whole = json.loads((workflow.work / "draft/training.json").read_bytes())["samples"]
    assert samples == [-(-whole // 4), -(-whole // 2), whole] and scaling["prompts"] >= 1
    for page in ("sweep", "scaling"):
        assert "<svg" in (workflow.work / f"reports/{page}.html").read_text()
    assert "Nothing to be done" in workflow.run("all", "sweep", "scaling")


def test_edited_code_and_config_rebuild_nothing_by_themselves(workflow):
    for path in (workflow.root / "scripts").rglob("*.py"):
        path.write_text(path.read_text() + "\n# edited\n")
    workflow.config(lambda c: c["prepare"].update(max_rejected=0.3))
    assert workflow.planned("prepared") == {}


@pytest.mark.parametrize("how", ["deleted", "emptied", "blank lines"])
def test_one_lost_output_rebuilds_that_dataset_and_no_other(workflow, how):
    for path in (workflow.root / "scripts/eyas/adapters").glob("*.py"):
        path.write_text(path.read_text() + "\n# every adapter's code has changed\n")
    prompts = workflow.work / PROMPTS
    whole = prompts.read_bytes()
    if how == "deleted":
        prompts.unlink()
    else:
        prompts.write_bytes(b"" if how == "emptied" else b"\n \r\n\n")
    before = workflow.snapshot()
    rules = ("prepare_prompts", "generate_responses", "describe_prepared", "describe_responses")
    plan = {**{rule: ["B5_openthoughts"] for rule in rules}, "capture_states": [""] * 3}
    once = ("build_corpus", "build_vocabulary", "describe_corpus", "train_draft", "describe_training", "tally_records")
    judged = ("choose_prompts", "evaluate_sglang", "summarize_evaluation", "describe_evaluation", "deploy_draft")
    judged += ("describe_run",)
    plan |= {rule: [""] for rule in (*once, *judged)}
    assert workflow.planned("all") == plan
    if how != "deleted":
        assert "holds-no-record" in workflow.run("-n", "all")
    assert workflow.snapshot() == before, "a dry run touches nothing"
    target = "all" if how == "deleted" else "generated"  # what follows is the same, and takes a while
    workflow.run(target)
    assert prompts.read_bytes() == whole
    changed = {p for p, state in workflow.snapshot().items() if before.get(p) != state}
    of_others = [p for p in changed for dataset in DATASETS if dataset in p and dataset != "B5_openthoughts"]
    assert of_others == []
    assert "answered.txt" not in changed, "the journal had every answer"
    assert "Nothing to be done" in workflow.run(target)


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("corpus/heldout.parquet", "build_corpus"),
        ("draft_vocab/coverage.json", "build_vocabulary"),
        ("target/head.safetensors", "fetch_head"),
        ("draft/training.json", "train_draft"),
        ("evaluation/speed.json", "evaluate_sglang"),
        ("evaluation/summary.json", "summarize_evaluation"),
        ("deploy/launch_server.sh", "deploy_draft"),
    ],
)
def test_an_emptied_file_of_a_later_stage_is_rebuilt(finished, path, rule):
    """Of the session's run itself, which a dry run leaves as it is."""
    whole, times = (finished.work / path).read_bytes(), (finished.work / path).stat()
    try:
        (finished.work / path).write_bytes(b"")
        assert rule in finished.planned("all")
    finally:
        (finished.work / path).write_bytes(whole)
        os.utime(finished.work / path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "path",
    [
        "sources/B5_openthoughts/manifest.json",
        "prepared/B5_openthoughts/stats.json",
        "prepared/B5_openthoughts/rejects.jsonl",
    ],
)
def test_a_missing_file_in_the_middle_is_rebuilt_though_the_final_files_exist(workflow, path):
    (workflow.work / path).unlink()
    jobs = workflow.planned("all")
    assert {d for datasets in jobs.values() for d in datasets} == {"B5_openthoughts", ""}
    until = ("all", "--until", "prepare_prompts")  # what follows takes a while
    assert "rule prepare_prompts:" in workflow.run("-n", *until)
    workflow.run(*until)
    assert (workflow.work / path).is_file()
    assert "rule prepare_prompts:" not in workflow.run("-n", *until)


def test_a_source_file_that_is_gone_is_fetched_again(workflow):
    source = next(workflow.root.glob("hub/B5_openthoughts-0/data/*.parquet"))
    copy = source.read_bytes()
    source.unlink()
    assert workflow.planned("all")["fetch_source"] == ["B5_openthoughts"]
    assert "no file matches" in workflow.run("prepared", expect=1)
    source.write_bytes(copy)
    workflow.run("prepared")


def test_a_dataset_that_fails_leaves_the_others_and_is_the_only_one_to_rerun(workflow):
    shutil.rmtree(workflow.work)
    workflow.work.mkdir()
    source = next(workflow.root.glob("hub/B5_openthoughts-0/data/*.parquet"))
    whole = source.read_bytes()
    source.write_bytes(whole[:-100])
    output = workflow.run("prepared", "generated", expect=1)
    assert re.search(r"error: \S*train-00000-of-00001\.parquet: not a whole Parquet file", output), output
    assert list(workflow.work.glob("prepared/B5_openthoughts/*")) == []
    for name, records in (("A2_kimik25", "tokenized_data"), ("B3_magicoder", "prompts")):
        assert (workflow.work / f"prepared/{name}/{records}.jsonl").is_file()
    assert (workflow.work / "responses/B3_magicoder/tokenized_data.jsonl").is_file()
    source.write_bytes(whole)
    jobs = workflow.planned("prepared")
    assert {d for datasets in jobs.values() for d in datasets} == {"B5_openthoughts", ""}
    assert "prepare_prompts" in jobs and "prepare_tokenized" not in jobs
    workflow.run("prepared")


def test_too_many_rejects_fail_with_the_reasons_and_no_output(workflow):
    workflow.config(lambda c: c["prepare"].update(max_rejected=0.01))
    (workflow.work / PROMPTS).unlink()
    output = workflow.run(PROMPTS, expect=1)
    assert "rows are rejected" in output and "the limit is 1.0%" in output and "that row:" in output
    assert list(workflow.work.glob("prepared/B5_openthoughts/*")) == []


def test_a_run_killed_in_the_middle_is_finished_by_the_next(workflow):
    shutil.rmtree(workflow.work)
    workflow.work.mkdir()
    run = subprocess.Popen(
        workflow.command("all"),
        cwd=workflow.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(workflow.work.glob("prepared/*/.*.partial")) and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.005)
    assert run.poll() is None, "it ended before it could be killed"
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    workflow.run("--unlock")
    workflow.run("prepared")
    for name in DATASETS:
        stats = json.loads((workflow.work / f"prepared/{name}/stats.json").read_bytes())
        records = workflow.work / f"prepared/{name}/{stats['produces']}.jsonl"
        assert records.read_bytes().count(b"\n") == stats["kept"]
    assert "Nothing to be done" in workflow.run("prepared")


def test_a_dataset_in_shards_is_what_one_job_makes_of_it_and_a_failing_shard_is_its_own_loss(tmp_path, smollm2_folder):
    name, other = "B2_opencodeinstruct", "B5_openthoughts"
    workflow = make_workflow(tmp_path, (name, other), smollm2_folder)
    workflow.config(lambda c: c["datasets"][name]["prepare"].update(shards=2))
    folder, second = workflow.work / "prepared" / name, tmp_path / f"hub/{name}-0/data/train-00001-of-00002.parquet"
    whole = second.read_bytes()
    second.write_bytes(whole[:-3000])
    assert "train-00001-of-00002.parquet: not a whole Parquet file" in workflow.run("prepared", expect=1)
    assert (workflow.work / f"prepared/{other}/prompts.jsonl").is_file()
    assert [p.name for p in folder.iterdir()] == ["shards"]
    assert [p.name for p in (folder / "shards").iterdir()] == ["00000-of-00002"]
    assert "read-under-other-settings" not in workflow.run("-n", "prepared")
    workflow.config(lambda c: c["datasets"][name]["prepare"].update(cap=20))
    assert "read-under-other-settings" in workflow.run("-n", "prepared")
    second.write_bytes(whole)

    def published():
        """All but how long it took."""
        stats = json.loads((folder / "stats.json").read_bytes())
        del stats["seconds"]
        return stats, (folder / "prompts.jsonl").read_bytes(), (folder / "rejects.jsonl").read_bytes()

    prompts = f"prepared/{name}/prompts.jsonl"
    assert workflow.planned(prompts)["prepare_shard"] == [name, name]
    workflow.run("prepared")
    in_shards = published()
    assert in_shards[0]["kept"] == 20 and not list(folder.glob("shards/*"))
    workflow.config(lambda c: c["datasets"][name]["prepare"].update(shards=1))
    assert "Nothing to be done" in workflow.run("prepared")
    (folder / "prompts.jsonl").unlink()
    assert workflow.planned(prompts) == {"prepare_prompts": [name]}
    workflow.run("prepared")
    assert published() == in_shards


def test_probe_prints_yields_and_fails_when_a_dataset_yields_too_little(workflow):
    output = workflow.run("probe")
    assert re.search(r"B5_openthoughts +\d+ +\d+ +\d+%", output), output
    workflow.config(lambda c: c["prepare"].update(min_yield=0.99))
    output = workflow.run("probe", expect=1)
    assert "yields 9" in output and "expected at least 99%" in output and "that row:" in output


def test_tally_counts_lists_damage_and_names_commands_that_mend_it(workflow):
    kept = json.loads((workflow.work / "prepared/B5_openthoughts/stats.json").read_bytes())["kept"]
    prompts = workflow.work / PROMPTS
    lines = prompts.read_bytes().splitlines(keepends=True)
    prompts.write_bytes(b"".join([lines[0][:-20] + b"\n", *lines[1:]]))
    workflow.config(lambda c: c["datasets"]["B3_magicoder"].update(prepare={"cap": 10}))
    output = workflow.run("tally")
    assert re.search(rf"B5_openthoughts +damaged +{kept - 1}\b", output), output
    assert re.search(r"B3_magicoder +stale", output) and "cap" in output
    commands = re.findall(r"snakemake (--force \S+)", output)
    assert commands == ["--force prepared/B3_magicoder/prompts.jsonl", f"--force {PROMPTS}"]
    for command in commands:
        workflow.run(*command.split())
    output = workflow.run("tally")
    assert "damaged" not in output and "stale" not in output
    assert re.search(r"B3_magicoder +ok +10\b", output)


def test_the_inventory_page_is_remade_when_settings_change(workflow):
    workflow.config(lambda c: c["datasets"]["B3_magicoder"].update(prepare={"cap": 10}))
    assert workflow.planned("all") == {"tally_records": [""]}
    workflow.run("all")
    assert "stale" in (workflow.work / "reports/tally.html").read_text()
    assert "Nothing to be done" in workflow.run("all")


def test_an_eleventh_dataset_is_one_module_and_one_entry(workflow):
    (workflow.root / "scripts/eyas/adapters/riddles.py").write_text(
        '"""Riddles. A row: {"riddle": str}."""\n\n'
        "from eyas.adapters.base import Conversation\nfrom eyas.adapters.turns import needed_text\n\n"
        'COLUMNS = ("riddle",)\n\n\n'
        "def conversation(row, options):\n"
        '    return Conversation([{"role": "user", "content": needed_text(row, "riddle")}])\n'
    )
    folder = workflow.root / "riddles"
    folder.mkdir()
    (folder / "r.jsonl").write_text(
        '{"riddle": "What has keys but no locks?"}\n{"riddle": "What runs but never walks?"}\n'
    )
    entry = {"adapter": "riddles", "produces": "prompts", "sources": [{"folder": str(folder), "files": ["*.jsonl"]}]}
    workflow.config(lambda c: c["datasets"].update(C1_riddles=entry))
    workflow.run("generated")
    for path in ("prepared/C1_riddles/prompts.jsonl", "responses/C1_riddles/tokenized_data.jsonl"):
        assert (workflow.work / path).read_bytes().count(b"\n") == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["prepare"].update(max_token=5), "prepare.max_token: no such key (did you mean 'max_tokens'?)"),
        (lambda c: c["datasets"]["B5_openthoughts"].update(adaptr="x"), "did you mean 'adapter'?"),
        (
            lambda c: c["datasets"]["B5_openthoughts"].update(adapter="opnthoughts"),
            "there is no scripts/eyas/adapters/opnthoughts.py",
        ),
        (lambda c: c["datasets"]["B5_openthoughts"].update(prepare={"capp": 5}), "did you mean 'cap'?"),
        (lambda c: c["datasets"]["B5_openthoughts"].update(options={"x": 5}), "datasets.B5_openthoughts.options.x"),
        (lambda c: c["datasets"]["B5_openthoughts"]["sources"][0].update(repo="a/b"), "found repo and folder"),
    ],
)
def test_a_mistake_in_the_config_ends_in_a_line_that_says_what_to_do(workflow, change, said):
    workflow.config(change)
    output = workflow.run("-n", expect=1)
    assert said in output and "Traceback" not in output


def bare(*args, expect=0):
    done = subprocess.run([SNAKEMAKE, *args], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def test_commands_exactly_as_users_type_them():
    assert "prepared/B5_openthoughts/prompts.jsonl" in bare("-n")
    assert "prepared/A1_deepswekimi/tokenized_data.jsonl" in bare("--profile", "profiles/blackwell", "all", "-n")
    assert "prepare_prompts" in bare("prepared/B5_openthoughts/prompts.jsonl", "-n")
    for picture in ("--dag", "--rulegraph", "--filegraph"):
        assert bare(picture).startswith("digraph snakemake_dag {")
    for question in ("probe", "tally", "prepared"):
        bare(question, "-n")


def test_both_loggers_load_and_one_keeps_its_database(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # a plugin makes its folder there
    command = [SNAKEMAKE, "all", "-n", "--logger", "rich", "snkmt", "--logger-snkmt-db", tmp_path / "runs.db"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Workflow start" in done.stderr and "prepare prompts" in done.stderr, done.stderr
    with closing(sqlite3.connect(tmp_path / "runs.db")) as runs:
        assert runs.execute("select count(*) from workflows").fetchone() == (1,)


def test_profiles_keep_their_own_keys_beside_the_default_profile():
    """profiles/default is stronger than --profile, key by key: it must set no key of theirs."""
    default = yaml.safe_load((ROOT / "profiles/default/config.yaml").read_text())
    for profile in ("demo", "blackwell", "slurm"):
        own = yaml.safe_load((ROOT / f"profiles/{profile}/config.yaml").read_text())
        assert not set(own) & set(default), profile
    assert yaml.safe_load((ROOT / "profiles/blackwell/config.yaml").read_text())["resources"]["gpu"] == 8
