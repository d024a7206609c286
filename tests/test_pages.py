"""Pages for people: nothing from the data is markup, and the highlighted tokens are the trained ones."""

import re

import numpy as np
import orjson
import pytest

from eyas import charts, pages
from eyas.config import parse
from eyas.describe_records import describe, windows
from eyas.errors import EyasError
from eyas.records import content_id
from eyas.theme import DARK, LIGHT, POLICY, SCRIPT, SERIES

HOSTILE = "<script>alert('x')</script> & <img src=x onerror=alert(1)>"
TEXTS = ["plain words", "naïve café ☕", "你好，世界 🙂🙃 👩‍👩‍👧", "a\n\n\tb  c", "<|im_start|> is text here", ""]


def marked(html: str) -> list[tuple[int, str]]:
    """(id, text) of the tokens in <mark>, in order."""
    found = re.findall(r'<mark title="(\d+)">(.*?)</mark>', html, re.S)
    return [(int(i), re.sub(r"<[^>]+>", "", text)) for i, text in found]


def stats_of(name: str, produces: str, records: list[dict], chat=None, **other) -> dict:
    raw = {
        "target": {"model": "m", "name": "t", "tokenizer": {"folder": "tok", "files": ["*"]}},
        "datasets": {name: {"adapter": "a", "produces": produces, "sources": [{"folder": "x", "files": ["*"]}]}},
    }
    return {
        "dataset": name,
        "produces": produces,
        "rows_read": 1_234 + len(records),
        "kept": len(records),
        "rejected": 1_200,
        "duplicates": 30,
        "beyond_cap": 4,
        "reasons": {"not_json": 1_199, HOSTILE: 1},
        "filters": [],
        "tokens": 99,
        "trainable_tokens": 9,
        "length_quantiles": {"50": 12, "100": 77},
        "length_histogram": {"edges": [16, 32, 64], "counts": [1, 0, 2, 0]},
        "files": ["f.jsonl"],
        "tokenizer": chat.fingerprint if chat else "-",
        "vocabulary": chat.vocabulary if chat else 100,
        "settings": parse(raw).prepare_settings(name),
        **other,
    }


def write(folder, stats: dict, records: list[dict]):
    (folder / "stats.json").write_bytes(orjson.dumps(stats))
    lines = b"".join(orjson.dumps(r) + b"\n" for r in records)
    (folder / {"prompts": "prompts.jsonl"}.get(stats["produces"], "tokenized_data.jsonl")).write_bytes(lines)
    reject = {"file": HOSTILE, "row": 7, "reason": HOSTILE, "detail": HOSTILE}
    (folder / "rejects.jsonl").write_bytes(orjson.dumps(reject) + b"\n")


def test_hostile_text_is_only_text(tmp_path):
    messages = [{"role": HOSTILE, "content": HOSTILE, "tool_calls": [{"x": HOSTILE}]}]
    tools = [{"type": "function", "function": {"name": HOSTILE}}, HOSTILE]
    record = {"id": content_id(messages, tools), "dataset": "B1", "messages": messages, "tools": tools}
    record["meta"] = {"file": HOSTILE, "row": HOSTILE}
    stats = stats_of("B1", "prompts", [record], files=[HOSTILE])
    write(tmp_path, stats, [record])
    html = describe(tmp_path, None, {"cap": HOSTILE}).html()
    assert html.count("<script") == 1 and f"<script>{SCRIPT}</script>" in html and "<img" not in html
    assert html.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp;") >= 8
    assert f'content="{POLICY}"' in html, "which lets that script run and no other"
    assert re.findall(r"(?:src|href)=", html.replace("&lt;img src=x", "")) == []


def test_page_of_prompts_needs_no_tokenizer_and_accounts_for_each_row(tmp_path):
    records = []
    for k in range(30):
        messages = [{"role": "user", "content": f"{k} " + "word " * 900}]
        records.append(
            {"id": content_id(messages), "dataset": "B1", "messages": messages, "meta": {"file": "f", "row": k}}
        )
    write(tmp_path, stats_of("B1", "prompts", records), records)
    html = describe(tmp_path, None).html()
    assert "1,264 rows read = 30 kept + 1,200 rejected + 30 duplicates + 4 beyond the cap" in html
    assert [int(r) for r in re.findall(r"<h3>f row (\d+)", html)] == [0, 8, 16, 23, 29]
    assert "characters left out" in html


def test_a_damaged_line_is_shown_as_such(tmp_path):
    write(tmp_path, stats_of("B1", "prompts", []), [{"id": "x", "dataset": "B1", "messages": []}])
    assert "A damaged line: messages is not a list with messages" in describe(tmp_path, None).html()


def test_what_cannot_be_described_is_one_clear_error(tmp_path):
    with pytest.raises(EyasError, match=r"stats\.json: no such file"):
        describe(tmp_path, None)
    (tmp_path / "stats.json").write_text('{"dataset": "B1"}')
    with pytest.raises(EyasError, match="lacks produces, rows_read"):
        describe(tmp_path, None)


@pytest.mark.parametrize("which", ["smollm2", "kimi"])
def test_marks_are_exactly_the_trained_tokens(tmp_path, request, which):
    chat, folder = request.getfixturevalue(which), request.getfixturevalue(f"{which}_folder")
    dialogue = [
        {"role": "user", "content": "Say <mark> & more."},
        {"role": "assistant", "content": "你好 🙂, <b>bold</b>\n\nend"},
    ]
    ids, mask = chat.encode([chat.format.conversation(dialogue, None)])[0]
    record = {"id": "a" * 32, "dataset": "A1", "input_ids": ids, "loss_mask": mask}
    stats = stats_of("A1", "tokenized_data", [record], chat)
    stats["settings"]["target"] |= {
        "chat_format": "kimi" if which == "kimi" else "template",
        "trust_remote_code": which == "kimi",
    }
    write(tmp_path, stats, [record])
    html = describe(tmp_path, folder).html()
    found = marked(html)
    trained = [i for i, m in zip(ids, mask, strict=True) if m]
    assert [i for i, _ in found] == trained
    text = "".join(t for _, t in found)
    assert "你好 🙂, &lt;b&gt;bold&lt;/b&gt;↵\n↵\nend" in text and "Say" not in text
    ends = re.search(r'<mark title="\d+"><span class="control">([^<]*im_end[^<]*)</span></mark>', html)
    assert ends, "the token that ends the answer is trained, and shown as a control token"


def test_long_records_show_where_training_begins():
    n = 5000
    assert windows([0] * 100 + [1] * 50) == [(0, 150)]
    assert windows([0] * 3000 + [1] * (n - 3000)) == [(0, 120), (2976, 3024), (4940, 5000)]
    assert windows([0] * 110 + [1] * (n - 110)) == [(0, 134), (4940, 5000)]
    assert windows([0] * 4930 + [1] * (n - 4930)) == [(0, 120), (4906, 5000)]


@pytest.mark.parametrize("which", ["smollm2", "kimi"])
def test_decoding_each_token_loses_nothing(request, which):
    chat = request.getfixturevalue(which)
    for text, ids in zip(TEXTS, chat.text.encode(TEXTS), strict=True):
        pieces = chat.text.decode_each(ids)
        assert len(pieces) == len(ids) and "".join(pieces) == text
    end = chat.text.control["<|im_end|>"]
    (smile,) = chat.text.encode(["🙂"])
    assert len(smile) > 1
    assert chat.text.decode_each([*smile[:-1], end]) == [*[""] * (len(smile) - 2), "�", "<|im_end|>"]
    assert chat.text.decode_each([end, 10_000_000, *smile[:-1]])[:2] == ["<|im_end|>", "�"]
    assert chat.text.decode_each([]) == []


def test_table_aligns_numbers_and_separates_thousands():
    html = pages.table(["name", "count"], [["a", 1234567], pages.Row(["total", None], "total")])
    assert '<td class="n">1,234,567</td>' in html and '<td class="n">–</td>' in html
    assert "<td>a</td>" in html and '<tr class="total">' in html


def test_histogram_labels_its_bounds():
    svg = charts.length_histogram_svg([512, 1024, 2048], [0, 3, 1200, 7], limit=1448)
    assert re.findall(r'<text x="[\d.]+" y="173.0" text-anchor="middle" >([^<]*)', svg) == ["0", "512", "1k", "2k", "∞"]
    assert "1,200</text>" in svg and "limit 1,448" in svg
    assert "no record" in charts.length_histogram_svg([16], [0, 0])


def test_control_characters_are_made_visible():
    assert pages.escape("a\x00\x1b[31m\x7f\tb\n") == "a␀␛[31m␡\tb\n"


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    return float(np.dot([0.2126, 0.7152, 0.0722], linear(colour)))


def linear(colour: str) -> np.ndarray:
    """#rrggbb → [3] of linear sRGB."""
    value = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_what_they_lie_on(theme):
    """WCAG 2.2: 4.5 to 1 for text (1.4.3), 3 to 1 for marks (1.4.11)."""
    of = (LIGHT, DARK)[theme]
    for text, on in (
        *((text, on) for text in ("ink", "soft") for on in ("paper", "ground", "sum")),
        *(("trained-ink", on) for on in ("trained", "trained-control")),
        *((f"{kind}-ink", kind) for kind in ("ok", "warn", "bad", "none")),
        *(("none-ink", "control"), ("ink", "chip")),
    ):
        assert contrast(of[text], of[on]) >= 4.5, (text, on)
    for mark in ("kept", "rejected", "duplicates"):
        assert contrast(of[mark], of["paper"]) >= 3, mark
    for pair in SERIES:
        assert contrast(pair[theme], of["paper"]) >= 3, pair[theme]


# Linear sRGB as the colour-blind see it: Machado, Oliveira and Fernandes 2009, severity 1.0.
BLINDNESS = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


def lab(rgb: np.ndarray) -> np.ndarray:
    """Linear sRGB → CIE L*a*b* (D65)."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_the_first_lines_of_a_picture_are_told_apart_by_the_colour_blind(theme, blindness):
    seen = [lab(np.array(BLINDNESS[blindness]) @ linear(pair[theme])) for pair in SERIES[:4]]
    apart = [float(np.linalg.norm(a - b)) for k, a in enumerate(seen) for b in seen[:k]]
    assert min(apart) > 12, "a difference of some 2 is just seen"
