"""Run the first rows of each dataset through its adapter and print one table of yields and reasons.

    python scripts/probe_datasets.py [--dataset B5_openthoughts]

Brings at most the first file of each source (the full fetch finds it there later). Ends with 1 when a
dataset yields too little or cannot be read: better now than after hours.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from eyas.chat import Chat, chat_of, keep_torch_out
from eyas.commands import add_config, add_path, config_of, log_to_stderr, parser_of, run_command
from eyas.config import Config
from eyas.errors import EyasError
from eyas.prepare import probe_dataset
from eyas.sources import fetch, files_of


def first_files(config: Config, name: str, folder: Path) -> list[Path] | EyasError:
    """The first file of each source of one dataset, or the error that stands in the way."""
    try:
        return files_of(fetch(config.dataset(name).sources, folder, first_file_only=True), folder / "manifest.json")
    except EyasError as error:
        return error


def probe(config: Config, name: str, files: list[Path] | EyasError, chat: Chat) -> dict:
    """One row of the table: {"dataset", "rows_read", "kept", "yield", "tokens", "reasons", "problem"}."""
    row = {
        "dataset": name,
        "rows_read": 0,
        "kept": 0,
        "filtered": 0,
        "tokens": 0,
        "reasons": {},
        "yield": 0.0,
        "problem": "",
    }
    try:
        if isinstance(files, EyasError):
            raise files
        row |= probe_dataset(config.prepare_settings(name), files, config.probe_rows, chat)
    except EyasError as error:
        return {**row, "problem": str(error)}
    judged = row["rows_read"] - row["filtered"]
    row["yield"] = row["kept"] / judged if judged else 0.0
    least = config.preparation(name).min_yield
    if row["yield"] < least:
        row["problem"] = f"yields {row['yield']:.0%} of its rows, expected at least {least:.0%}:\n{row['example']}"
    return row


def as_text(rows: list[dict]) -> str:
    """The table, and below it what each failing dataset needs."""
    width = max(len("dataset"), *(len(r["dataset"]) for r in rows))
    lines = [
        f"{'dataset':{width}}  {'rows':>6}  {'kept':>6}  {'yield':>6}  {'filtered':>8}  {'tokens/row':>10}  reasons"
    ]
    for r in rows:
        reasons = ", ".join(f"{reason} {count}" for reason, count in r["reasons"].items())
        mean = r["tokens"] / r["kept"] if r["kept"] else 0
        flag = "  ← too little" if r["problem"] else ""
        lines.append(
            f"{r['dataset']:{width}}  {r['rows_read']:6,}  {r['kept']:6,}  {r['yield']:6.0%}  "
            f"{r['filtered']:8,}  {mean:10,.0f}  {reasons or '-'}{flag}"
        )
    lines += [f"\n{r['dataset']}: {r['problem']}" for r in rows if r["problem"]]
    return "\n".join(lines)


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--dataset", action="append", help="only this one; may be repeated")
    add_path(parser, "--source-dir", "sources")
    add_path(parser, "--tokenizer", "target/tokenizer")
    add_config(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
    keep_torch_out()
    config = config_of(args)
    chat = chat_of(args.tokenizer, config.target.model_dump())
    names = args.dataset or config.names()
    with ThreadPoolExecutor(4) as pool:  # waiting for the network, mostly
        files = list(pool.map(lambda name: first_files(config, name, args.source_dir / name), names))
    rows = [probe(config, name, f, chat) for name, f in zip(names, files, strict=True)]
    print(as_text(rows), flush=True)
    return int(any(r["problem"] for r in rows))


if __name__ == "__main__":
    run_command(main)
