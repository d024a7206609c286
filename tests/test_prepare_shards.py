"""A dataset read by several jobs becomes the very files that one job makes of it."""

import json
import random

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eyas import ledger, prepare_lines
from eyas.errors import EyasError
from eyas.prepare import prepare_dataset
from eyas.prepare_rows import Settings
from eyas.prepare_shards import Shard, prepare_shard
from test_adapters import CONFIG, EXPECTED, source_files
from test_prepare import chats, opencode_rows, settings_of, write_lines


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch, smollm2):
    """Of a hundred jobs each would load the tokenizer."""
    monkeypatch.setattr(Settings, "load_chat", lambda self, folder: smollm2)


def in_shards(settings, files, tokenizer, out, shards, threads=1):
    for k in range(shards):
        prepare_shard(settings, files, tokenizer, Shard(k, shards, out), threads=threads)
    return prepare_dataset(settings, files, tokenizer, out, shards=shards, threads=threads)


def published(folder):
    """name → bytes of what was published; of the statistics, all but how long it took."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    stats = json.loads(found["stats.json"])
    del stats["seconds"]
    return {**found, "stats.json": json.dumps(stats)}


def assert_shards_change_nothing(settings, files, tokenizer, out, counts):
    stats = prepare_dataset(settings, files, tokenizer, out / "whole")
    whole = published(out / "whole")
    for count in counts:
        in_shards(settings, files, tokenizer, out / str(count), count)
        assert published(out / str(count)) == whole, f"{count} shards"
    return stats


@pytest.mark.parametrize("cap", [None, 7])
@pytest.mark.parametrize("name", EXPECTED)
def test_shards_change_nothing_of_the_ten_datasets(name, cap, tmp_path, smollm2_folder):
    settings = {**CONFIG.prepare_settings(name), "cap": cap}
    stats = assert_shards_change_nothing(settings, source_files(name), smollm2_folder, tmp_path, (2, 3, 7))
    assert stats["rejected"] and (stats["beyond_cap"] > 0) == (cap is not None)


def repeated(rows, seed):
    """The rows with a third of them again, all over the place, and rows that are turned down early and late."""
    rng = random.Random(seed)
    rows = rows + rng.sample(rows, len(rows) // 3) + [{"messages": None}] * 20 + [{"messages": [{"role": "x"}]}] * 20
    rng.shuffle(rows)
    return rows


@pytest.mark.parametrize("cap", [None, 30])
@pytest.mark.parametrize("threads", [1, 2])
def test_repeats_over_many_files_are_told_as_by_one_job(cap, threads, tmp_path, smollm2_folder, monkeypatch):
    """Of copies in several shards the first counts; rejects are listed up to the limit for all shards together."""
    monkeypatch.setattr(ledger, "REJECTS_LISTED", 8)
    monkeypatch.setattr(prepare_lines, "CHUNK_BYTES", 4096)
    rows = repeated(chats(150), 1)
    files = [write_lines(tmp_path / f"{k}.jsonl", rows[k::4]) for k in range(4)]
    (tmp_path / "empty.jsonl").touch()
    files.insert(2, tmp_path / "empty.jsonl")
    settings = settings_of("A1_deepswekimi", cap=cap, max_tokens=130, max_rejected=1.0)
    stats = prepare_dataset(settings, files, smollm2_folder, tmp_path / "whole")
    assert stats["duplicates"] and set(stats["reasons"]) == {"no_messages", "unknown_role", "too_long"}
    assert stats["rejects_listed"] >= 16
    for count in (2, 5, 13):
        in_shards(settings, files, smollm2_folder, tmp_path / str(count), count, threads)
        assert published(tmp_path / str(count)) == published(tmp_path / "whole")


@pytest.mark.parametrize("cap", [None, 50])
def test_one_table_is_split_by_its_row_groups(cap, tmp_path, smollm2_folder):
    """Copies far apart in one file, most rows decided on whole batches."""
    rows = opencode_rows(3000)
    random.Random(3).shuffle(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=250)
    settings = settings_of("B2_opencodeinstruct", cap=cap)
    stats = assert_shards_change_nothing(settings, [tmp_path / "x.parquet"], smollm2_folder, tmp_path, (2, 5, 20))
    assert stats["duplicates"] and set(stats["reasons"]) == {"below_min_score", "no_score", "empty_prompt"}
    rows_read = [orjson.loads(path.read_bytes())["rows_read"] for path in tmp_path.glob("5/shards/*/counts.json")]
    assert len(rows_read) == 5 and min(rows_read) >= 500, "each shard has a share of the one file"


def test_the_whole_dataset_is_judged_and_not_a_shard(tmp_path, smollm2_folder):
    """Rejects that stand together are too many of a shard's rows, and not of all; the error is that of one job."""
    source = write_lines(tmp_path / "x.jsonl", [{"messages": [{"role": "critic"}]}] * 20 + chats(80))
    settings = settings_of("A1_deepswekimi", max_rejected=0.2)
    assert_shards_change_nothing(settings, [source], smollm2_folder, tmp_path, (4,))
    settings["max_rejected"], errors = 0.1, []
    for shards in (1, 4):
        with pytest.raises(EyasError, match="20 of 100 rows are rejected") as caught:
            prepare_dataset(settings, [source], smollm2_folder, tmp_path / str(shards), shards=shards)
        errors.append(str(caught.value))
    assert errors[0] == errors[1] and "that row: " in errors[0]
    assert [path.name for path in (tmp_path / "4").iterdir() if path.is_file()] == sorted(published(tmp_path / "4"))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder, settings, source: settings.update(max_tokens=99), "under other settings (max_tokens: "),
        (lambda folder, settings, source: write_lines(source, chats(39)), "made of other files"),
        (lambda folder, settings, source: (folder / "counts.json").unlink(), "cannot be read"),
        (lambda folder, settings, source: cut(folder / "rows.jsonl"), "rows.jsonl: expected "),
        (lambda folder, settings, source: cut(folder / "rejects.jsonl"), "rejects.jsonl: expected "),
    ],
)
def test_shards_that_do_not_fit_are_refused(harm, said, tmp_path, smollm2_folder):
    source = write_lines(tmp_path / "x.jsonl", [*chats(40), {"messages": None}])
    settings, out = settings_of("A1_deepswekimi", max_rejected=0.5), tmp_path / "out"
    shard = Shard(1, 2, out)
    for k in range(2):
        prepare_shard(settings, [source], smollm2_folder, Shard(k, 2, out))
    harm(shard.folder, settings, source)
    with pytest.raises(EyasError) as caught:
        prepare_dataset(settings, [source], smollm2_folder, out, shards=2)
    assert said in str(caught.value) and f"delete {shards_named(caught.value, out)} and run again" in str(caught.value)
    assert [path.name for path in out.iterdir()] == ["shards"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def shards_named(error, out):
    return next(Shard(k, 2, out).folder for k in range(2) if str(Shard(k, 2, out).folder) in str(error))


def test_a_shard_of_a_damaged_file_hands_over_nothing(tmp_path, smollm2_folder):
    good = write_lines(tmp_path / "a.jsonl", chats(50))
    (tmp_path / "b.json").write_text('[{"messages": [')
    settings = settings_of("A1_deepswekimi")
    shards = [Shard(k, 2, tmp_path / "out") for k in range(2)]
    prepare_shard(settings, [good, tmp_path / "b.json"], smollm2_folder, shards[0])
    with pytest.raises(EyasError, match=r"b\.json: damaged at item 1"):
        prepare_shard(settings, [good, tmp_path / "b.json"], smollm2_folder, shards[1])
    assert list(shards[1].folder.iterdir()) == []
