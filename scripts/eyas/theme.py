"""How the pages look: two themes, one stylesheet, and the script that sorts tables."""

import base64
import hashlib

# Two themes, as the reader's system has it. Text and marks stand out from the paper as WCAG 2.2 asks, and the first of
# the series are told apart by the colour-blind, too: tests/test_pages.py holds them against the numbers.
LIGHT = {
    **{"ink": "#1f2933", "soft": "#56616d", "line": "#e3e7ec", "paper": "#ffffff", "ground": "#f6f7f9"},
    **{"axis": "#9aa5b1", "sum": "#fafbfc", "edge": "#cbd2da", "chip": "#f1f4f7", "control": "#eef1f5"},
    **{"kept": "#2f8578", "rejected": "#b8692c", "duplicates": "#75869f", "beyond": "#d5dae2"},
    **{"trained": "#cdebd6", "trained-ink": "#10291b", "trained-control": "#a9d9ba", "faint": "#a7b1bc"},
    **{"ok": "#dff1e6", "ok-ink": "#1d5b41", "warn": "#fbf0d3", "warn-ink": "#6d5310"},
    **{"bad": "#f9e0dc", "bad-ink": "#86291c", "none": "#e8ecf1", "none-ink": "#3e4c59"},
}
DARK = {
    **{"ink": "#e4e8ec", "soft": "#a3aeb9", "line": "#343c45", "paper": "#1b2128", "ground": "#12171c"},
    **{"axis": "#6a7682", "sum": "#222931", "edge": "#4a5561", "chip": "#29313a", "control": "#313a44"},
    **{"kept": "#4fb3a4", "rejected": "#dd9457", "duplicates": "#8fa0ba", "beyond": "#48525e"},
    **{"trained": "#1f4a35", "trained-ink": "#d9f2e3", "trained-control": "#2d6a4c", "faint": "#6f7b88"},
    **{"ok": "#1d4633", "ok-ink": "#bfe8d1", "warn": "#4a3d14", "warn-ink": "#f2dfa4"},
    **{"bad": "#57241c", "bad-ink": "#f6c9c1", "none": "#2d353e", "none-ink": "#c3ccd6"},
}
# Of lines, bars, datasets, in order: (on light paper, on dark paper).
SERIES = (
    *(("#0072b2", "#56a8e0"), ("#c2500a", "#f08a4b"), ("#00815c", "#3fc79a"), ("#a8377e", "#e08fc0")),
    *(("#8a6d00", "#dcb93c"), ("#5d3a9b", "#ad90e6"), ("#007c8a", "#5cc8d6"), ("#7d2020", "#e07b7b")),
    *(("#4d6b1e", "#a6c46c"), ("#44546a", "#9fb2cc"), ("#8f4a12", "#d39a67"), ("#205ea6", "#85b4ee")),
    *(("#6b2e5f", "#c88fbd"), ("#2c6e49", "#7fc29c")),
)


def _variables(theme: int) -> str:
    named = (LIGHT, DARK)[theme] | {f"s{k}": pair[theme] for k, pair in enumerate(SERIES)}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


CSS = (
    f"""
:root {{ color-scheme: light dark; {_variables(0)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} }} }}
"""
    + """
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 28px 24px 56px; }
h1 { font-size: 24px; line-height: 1.25; font-weight: 650; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 16px; font-weight: 650; margin: 0 0 8px; overflow-wrap: anywhere; }
h3 { font-size: 14px; font-weight: 600; margin: 20px 0 6px; overflow-wrap: anywhere; }
a { color: var(--s0); } :focus-visible { outline: 2px solid var(--s0); outline-offset: 2px; }
p { margin: 0 0 10px; } .soft { color: var(--soft); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 18px 20px;
  margin-top: 18px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; font-size: 13px; vertical-align: bottom; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--s0); }
th button:hover { color: var(--ink); } th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
th:last-child, td:last-child { padding-right: 0; } tbody tr:last-child td { border-bottom: 0; }
td { overflow-wrap: break-word; unicode-bidi: isolate; } td:last-child, .anywhere { overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.group td { color: var(--soft); font-size: 13px; padding-top: 16px; }
tr.subtotal td { font-weight: 600; background: var(--sum); }
tr.total td { font-weight: 700; border-top: 2px solid var(--edge); }
code, .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 12.5px; overflow-wrap: anywhere; }
code.command { display: inline-block; background: var(--chip); border-radius: 4px; padding: 2px 8px; margin-top: 2px; }
.badge { display: inline-block; border-radius: 10px; padding: 0 9px; font-size: 12.5px; line-height: 20px;
  background: var(--none); color: var(--none-ink); }
.badge.ok { background: var(--ok); color: var(--ok-ink); }
.badge.stale { background: var(--warn); color: var(--warn-ink); }
.badge.damaged { background: var(--bad); color: var(--bad-ink); }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 18px; }
.tiles div { flex: 1 1 130px; background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 16px; }
.tiles b { display: block; font-size: 21px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; }
.bar { display: flex; height: 12px; border-radius: 6px; overflow: hidden; background: var(--line);
  margin: 4px 0 10px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 14px; font-variant-numeric: tabular-nums; }
.key i, .swatch { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.kept { background: var(--kept); } .rejected { background: var(--rejected); }
.duplicates { background: var(--duplicates); } .beyond { background: var(--beyond); }
.f-kept { fill: var(--kept); }
.notice { background: var(--warn); color: var(--warn-ink); border-radius: 8px; padding: 10px 16px; margin-top: 18px; }
.turn { display: grid; grid-template-columns: minmax(0, 96px) minmax(0, 1fr); gap: 0 14px; padding: 8px 0;
  border-top: 1px solid var(--line); }
.turn > b { font-size: 12.5px; font-weight: 600; color: var(--soft); padding-top: 2px; overflow-wrap: anywhere; }
.text, .tokens { white-space: break-spaces; overflow-wrap: anywhere; unicode-bidi: isolate; }
.tokens { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 12.5px; line-height: 1.75; color: var(--soft); border: 1px solid var(--line); border-radius: 6px;
  padding: 10px 12px; }
mark { background: var(--trained); color: var(--trained-ink); padding: 2px 0; text-decoration: underline;
  text-decoration-color: var(--kept); text-decoration-thickness: 1px; text-underline-offset: 3px; }
.control { border: 1px solid var(--edge); border-radius: 4px; padding: 0 4px; margin: 0 1px; font-size: 11px;
  background: var(--control); color: var(--none-ink); white-space: nowrap; }
mark .control { background: var(--trained-control); border-color: var(--kept); color: var(--trained-ink); }
.strip { display: block; width: 100%; height: 8px; background: var(--line); border-radius: 4px; margin: 0 0 8px; }
.end { color: var(--faint); }
.gap { display: inline-block; color: var(--soft); font: italic 13px system-ui, sans-serif; padding: 2px 0; }
svg text { font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--soft); }
svg text.strong { fill: var(--ink); font-weight: 600; }
nav ol { margin: 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; font-size: 14px; }
.chapter { margin-top: 56px; border-top: 3px solid var(--edge); padding-top: 18px; }
details > summary { cursor: pointer; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
)

# Each table whose rows may change places gets a button in each head: rising, then falling; totals stay below.
SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, k) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    const value = (row) => {
      const cell = row.cells[k], known = cell.querySelector("[data-value]");
      const text = known ? known.dataset.value : cell.textContent.trim();
      if (!head.classList.contains("n")) return text;
      const number = parseFloat(text.replace(/[^0-9.eE+-]/g, ""));
      return Number.isNaN(number) ? -Infinity : number;
    };
    const compare = (a, b) => (typeof a === "number" ? a - b || 0 : a.localeCompare(b, "en", { numeric: true }));
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const rows = [...body.rows], below = rows.filter((row) => row.className);
      const moved = rows.filter((row) => !row.className);
      moved.sort((a, b) => compare(value(a), value(b)) * (rising ? 1 : -1));
      body.append(...moved, ...below);
    });
  });
}
"""
SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_HASH}'"
