"""The report as its readers meet it: in a real browser, by mouse and by keyboard, light and dark, large and narrow."""

import os
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT
from workflow_copy import DATASETS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 320, "height": 640}  # 1280 pixels at 400 % zoom

# Elements beyond the right edge of the window that no scrolling container holds, as text.
OVERFLOWING = """() => [...document.querySelectorAll("body *")].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && box.right > document.documentElement.clientWidth + 1 && !e.closest(".wide");
}).map((e) => e.tagName + " " + e.textContent.slice(0, 40))"""
# Pictures without a size, a label, or with a text beyond their edge.
POOR_PICTURES = """() => [...document.querySelectorAll("svg:not(.strip)")].filter((svg) => {
  const frame = svg.getBoundingClientRect();
  const inside = [...svg.querySelectorAll("text, rect, circle")].every((mark) => {
    const box = mark.getBoundingClientRect();
    return box.left >= frame.left - 1 && box.right <= frame.right + 1 && box.bottom <= frame.bottom + 1;
  });
  return frame.width < 50 || frame.height < 30 || !svg.getAttribute("aria-label") || !inside;
}).map((svg) => svg.getAttribute("aria-label") || svg.outerHTML.slice(0, 80))"""
# Marks whose colour the theme does not know.
UNCOLOURED = """() => [...document.querySelectorAll("svg rect, svg circle, svg polyline")].filter((mark) => {
  const style = getComputedStyle(mark);
  return style.fill === "none" ? style.stroke === "none" : style.fill === "rgb(0, 0, 0)";
}).length"""


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        if os.environ.get("EYAS_REQUIRE_BROWSER"):
            pytest.fail("EYAS_REQUIRE_BROWSER is set, and there is no chromium")
        pytest.skip("no chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def look(browser):
    """look(path, viewport, theme) → an open page; what it said to the console is in page.said."""
    contexts = []

    def look(path, viewport=WIDE, theme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=theme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.said.append(f"error: {error}"))
        page.goto(f"file://{path}")
        return page

    yield look
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def whole(finished, tmp_path_factory):
    """The whole report of a finished run, as `make report` makes it."""
    return made(finished, tmp_path_factory.mktemp("report") / "report.html")


def made(workflow, out):
    command = [sys.executable, ROOT / "scripts/describe_run.py", "--whole", "--configfile", workflow.root / "test.yaml"]
    done = subprocess.run([*command, "--root", workflow.work, "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_snakemakes_report_shows_every_page_without_a_network(workflow, look):
    workflow.run("--report", "report.html")  # as typed
    page = look(workflow.work / "report.html")
    categories = ["1 The run", "2 Inventory", "3 Prepared", "4 Answers", "5 Corpus", "6 Training", "7 Evaluation"]
    seen = set()
    for category in categories:
        page.goto(f"file://{workflow.work / 'report.html'}")
        page.get_by_text(category, exact=True).click()
        for row in page.locator("table tbody tr").all():
            row.locator("a").first.click()  # the eye
            frame = page.frame_locator("iframe")
            frame.locator("h1").wait_for()
            heading = frame.locator("h1").inner_text()
            seen.add(heading)
            assert frame.locator("section").count() >= 1, heading
            if tables := frame.locator("table.sortable").count():
                assert frame.locator("table.sortable th button").count() >= tables, "the script runs in the frame, too"
    assert seen >= {*DATASETS, "Inventory of the records", "Training of the draft"} and len(seen) == len(DATASETS) + 5
    assert any(heading.startswith("A draft for") for heading in seen)
    assert not [said for said in page.said if said.startswith("error")]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "at 400 %"])
def test_every_picture_and_text_is_readable(whole, look, viewport, theme):
    page = look(whole, viewport, theme)
    assert page.said == []
    assert page.evaluate(OVERFLOWING) == []
    assert page.evaluate(POOR_PICTURES) == [] and page.locator("svg:not(.strip)").count() > 10
    assert page.evaluate(UNCOLOURED) == 0
    paper = page.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(27, 33, 40)"}[theme]


def test_tables_are_sorted_by_mouse_and_by_keyboard_and_totals_stay_below(whole, look):
    page = look(whole)
    table = page.locator("section", has_text="What the target answered").locator("table.sortable").first
    answers = "tbody tr:not(.total) td:nth-child(6)"

    def shown():
        return [int(cell.replace(",", "")) for cell in table.locator(answers).all_inner_texts()]

    head = table.locator("th", has_text="tokens").first
    head.locator("button").click()
    assert shown() == sorted(shown()) and head.get_attribute("aria-sort") == "ascending" and len(shown()) == 2
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert shown() == sorted(shown(), reverse=True) and head.get_attribute("aria-sort") == "descending"
    assert table.locator("tbody tr").last.inner_text().startswith("together")
    sizes = page.locator("section", has_text="Disk").locator("table.sortable").first
    sizes.locator("th button", has_text="size").click()
    kinds = [text.split()[-1] for text in sizes.locator("tbody tr:not(.total) td:nth-child(3)").all_inner_texts()]
    assert kinds == sorted(kinds, key=["bytes", "MB", "GB"].index), "1.2 MB is more than 900 bytes"


def test_the_keyboard_goes_down_the_page(whole, look):
    page = look(whole)
    at = "[...document.querySelectorAll('*')].indexOf(document.activeElement)"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    places = []
    for _ in range(60):
        page.keyboard.press("Tab")
        places.append(page.evaluate(at))
        assert page.evaluate(outline) != "none", "where the focus is can be seen"
    assert places == sorted(set(places)), "from one to the next as they are read, and each once"
    assert page.evaluate("getComputedStyle(document.activeElement).position") == "static"


def test_links_of_the_contents_lead_to_their_chapters(whole, look):
    page = look(whole)
    links = page.locator("nav a").all()
    assert len(links) >= len(DATASETS) + 4
    for link in links:
        target = page.locator(link.get_attribute("href"))
        assert target.locator("h1").inner_text() == link.inner_text()


def test_a_dataset_has_one_colour_on_the_page(whole, look):
    page = look(whole)
    for name in DATASETS:
        swatches = page.evaluate(
            """(name) => [...document.querySelectorAll(".swatch")].filter((s) => s.nextSibling?.textContent === name)
              .map((s) => getComputedStyle(s).backgroundColor)""",
            name,
        )
        bars = page.evaluate(
            """(name) => [...document.querySelectorAll("svg rect")].filter((r) => r.textContent.startsWith(name + ":"))
              .map((r) => getComputedStyle(r).fill)""",
            name,
        )
        assert len({*swatches, *bars}) == 1 and swatches, name


def test_half_way_the_report_says_what_is_there_and_what_is_not(workflow, look, tmp_path):
    for gone in ("evaluation", "deploy", "draft", "responses/B3_magicoder"):
        shutil.rmtree(workflow.work / gone)
    (workflow.work / "prepared/B5_openthoughts/rejects.jsonl").write_text("no JSON\n")
    (workflow.work / "corpus/stats.json").write_text('{"train": {}}')
    (workflow.work / "hidden_states/heldout/00000-of-00001.json").write_text("{")
    page = look(made(workflow, tmp_path / "report.html"))
    told = page.locator(".notice").first.inner_text()
    for what in (
        "answers: B3_magicoder",
        "the draft",
        "snakemake trained",
        "snakemake evaluated",
        "snakemake deployed",
    ):
        assert what in told
    assert "hidden states: 2 of 3 shards" in told and page.said == []
    notices = page.locator("main > .notice").all_inner_texts()
    assert any("corpus/stats.json: lacks heldout: run `snakemake --force" in notice for notice in notices)
    assert any("00000-of-00001.json: cannot be read" in notice for notice in notices)
    assert page.locator("h2", has_text="What the draft learned").count() == 1, "the training's metrics are there"
    damaged = page.locator("article", has=page.locator("h1", has_text="B5_openthoughts")).first
    assert "holds a line that is no reject" in damaged.inner_text()


def test_of_nothing_a_report_can_be_made(tmp_path, look):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/describe_run.py", "--whole", "--root", tmp_path, "--out", tmp_path / "r.html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "snakemake prepared" in look(tmp_path / "r.html").locator(".notice").first.inner_text()
