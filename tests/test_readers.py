"""Files as they come: BOMs, cut lines, broken arrays, missing columns. Good rows are kept, damage is named."""

import gzip
import json
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas import readers
from eyas.errors import EyasError
from eyas.readers import BadRow, FilePart, open_rows


def rows(path, columns=None):
    return [row for batch in open_rows(FilePart(path), columns).batches() for row in batch]


def test_jsonl_with_bom_crlf_blank_lines_a_bad_line_and_a_cut_last_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}\r\nnot json\n[1]\n{"a": "\\ud83d"}\n{"a": 3')
    found = rows(path)
    assert [n for n, _ in found] == [1, 4, 5, 6, 7, 8]
    assert [v for _, v in found][:2] == [{"a": 1}, {"a": 2}]
    assert [v.reason for _, v in found if isinstance(v, BadRow)] == ["not_json", "not_json"]
    assert found[4][1] == {"a": "\ud83d"}


def test_a_json_array_is_read_item_by_item(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "READ_BYTES", 7)
    items = [{"a": "x" * n, "é": [1.5, None, {"b": "🙂\ud83d"}]} for n in range(20)] + [3, "s", [], {}]
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf \n" + json.dumps(items, indent=1).encode() + b"\n")
    assert [v for _, v in rows(path)] == items


def test_a_json_object_is_read_value_by_value(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"k1": {"a": 1}, "k2": {"a": 2}, "k3": 5}, indent=2))
    assert [v for _, v in rows(path)] == [{"_key": "k1", "a": 1}, {"_key": "k2", "a": 2}, 5]


def test_lines_in_a_json_file_are_recognized(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert [v for _, v in rows(path)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("text", ["[]", "{}", " [ ] "])
def test_an_empty_array_has_no_rows(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    assert rows(tmp_path / "x.json") == []


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 200))
def test_a_cut_array_fails_with_file_and_place(tmp_path_factory, cut):
    whole = json.dumps([{"id": n, "text": f'say "{n}" \\ é'} for n in range(8)])
    cut = min(cut, len(whole) - 1)
    path = tmp_path_factory.mktemp("cut") / "x.json"
    path.write_text(whole[:cut])
    with pytest.raises(EyasError, match=r"x\.json: damaged at item [1-9]"):
        rows(path)


@pytest.mark.parametrize(
    "text", ['[{"a": 1} {"a": 2}]', '[{"a": 1}, oops, {"a": 2}]', '[{"a": 1}] trailing', "hello", "", '{"a" 1}']
)
def test_a_broken_array_fails_with_its_file(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(EyasError, match=r"x\.json"):
        rows(tmp_path / "x.json")


def test_damage_in_the_middle_is_found_without_reading_on(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "READ_BYTES", 1000)
    path = tmp_path / "x.json"
    path.write_text('[{"a": 1}, {"a": nope}, ' + ", ".join(['{"a": 1}'] * 100_000) + "]")
    reader = open_rows(FilePart(path), None)
    with pytest.raises(EyasError, match="item 2, before byte"):
        list(reader.batches())
    assert reader.done < 10_000


def write_parquet(path, n=1000):
    pq.write_table(
        pa.table({"a": [f"text {k}" for k in range(n)], "b": list(range(n)), "c": ["x" * 50] * n}),
        path,
        row_group_size=100,
    )


def test_parquet_reads_only_the_needed_columns(tmp_path):
    write_parquet(tmp_path / "x.parquet")
    found = rows(tmp_path / "x.parquet", ("a",))
    assert found[0] == (1, {"a": "text 0"}) and found[-1] == (1000, {"a": "text 999"})


def test_a_missing_column_fails_at_once_with_the_columns_found(tmp_path):
    write_parquet(tmp_path / "x.parquet")
    with pytest.raises(EyasError, match=r"x\.parquet: column messages is missing; columns found: a, b, c"):
        open_rows(FilePart(tmp_path / "x.parquet"), ("a", "messages"))


@pytest.mark.parametrize("keep", [0, 3, 200, 2000, -8, -1])
def test_a_truncated_parquet_file_fails_with_its_name(tmp_path, keep):
    path = tmp_path / "x.parquet"
    write_parquet(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EyasError, match=r"x\.parquet: not a whole Parquet file"):
        rows(path)


def test_damaged_pages_fail_with_the_row_reached(tmp_path):
    path = tmp_path / "x.parquet"
    write_parquet(path)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(400)
    path.write_bytes(data)
    with pytest.raises(EyasError, match=r"x\.parquet: damaged after row"):
        rows(path)


def test_batches_are_small_when_rows_are_large(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_BYTES", 20_000)
    pq.write_table(pa.table({"a": [str(k) * 3000 for k in range(300)]}), tmp_path / "x.parquet")
    assert max(len(b) for b in open_rows(FilePart(tmp_path / "x.parquet"), ("a",)).batches()) == 16


def test_an_unknown_ending_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(EyasError, match=r"expected \.parquet"):
        open_rows(FilePart(tmp_path / "x.csv"), None)


def test_gzipped_lines_are_read_and_a_cut_file_is_named(tmp_path):
    path, lines = tmp_path / "x.jsonl.gz", [json.dumps({"a": k, "b": str(k) * 50}) for k in range(3000)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    reader = open_rows(FilePart(path), None)
    found = [value for batch in reader.batches() for _, value in batch]
    assert [row["a"] for row in found] == list(range(3000)) and reader.fraction_done == 1.0
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(EyasError, match=r"x\.jsonl\.gz: damaged after line [\d,]+: .*: fetch it again"):
        rows(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(EyasError, match="damaged after line 0"):
        rows(path)


def parts_of(path, *cuts):
    """The rows of the parts between the cuts, part by part."""
    size = path.stat().st_size
    cuts = [0, *sorted(c % size for c in cuts), size]
    parts = [FilePart(path, start, end - start) for start, end in pairwise(cuts)]
    return [[row for batch in open_rows(part, None).batches() for row in batch] for part in parts]


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=4))
def test_each_line_is_in_one_part_under_its_own_number(cuts, tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "x.jsonl"
    lines = [b'\xef\xbb\xbf{"a": 0}\r', b"", b"not json", b'{"a": "' + b"x" * 40 + b'"}', b" ", b'{"b": 1}']
    path.write_bytes(b"\n".join(lines))
    assert [row for part in parts_of(path, *cuts) for row in part] == rows(path)


def test_a_table_is_split_by_its_row_groups(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": list(range(100))}), path, row_group_size=15)
    third = path.stat().st_size // 3
    parts = parts_of(path, third, 2 * third)
    assert [len(part) for part in parts] == [30, 30, 40]
    assert [row for part in parts for row in part] == rows(path)


@pytest.mark.parametrize("name", ["x.json", "x.jsonl.gz"])
def test_what_can_only_be_read_from_the_start_is_in_the_part_of_its_middle(tmp_path, name):
    items = [{"a": k} for k in range(50)]
    text = json.dumps(items) if name == "x.json" else "\n".join(map(json.dumps, items))
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    first, second, third = parts_of(tmp_path / name, 20, (tmp_path / name).stat().st_size - 20)
    assert [value for _, value in second] == items and first == third == []
