"""What status.status found, as one screen of text."""

import textwrap
import time

from eyas.progress import duration
from eyas.storage import size

WIDTH, LINES = 100, 40  # of the screen; what does not fit is counted there, and JSON has it all


def as_text(result: dict) -> str:
    """One screen: so many parts, problems, servers and holders of GPUs as fit."""
    for most in (10, 6, 4, 2, 1, 0):
        if len(lines := _screen(result, most)) <= LINES:
            break
    return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines) + "\n"


def _screen(result: dict, most: int) -> list[str]:
    now = result["time"]
    clock = time.strftime("%F %T", time.localtime(now))
    lines = [f"{result['target']} in {result['directory']}, {clock}", *_wrapped("", _snakemake(result)), ""]
    lines.append(f"{'stage':20}  {'done':>19}  {'left':>16}  {'rate':>16}  {'time left':>12}")
    for row in result["stages"]:
        lines.append(_row(row))
        if row["note"]:
            lines += _wrapped("    ", row["note"])
        lines += _some([_row(part, "  ") for part in row["parts"]], most, "  ")
    lines.append("")
    for head, told in (
        ("GPUs", _some(_gpus(result["gpus"]), most + 1)),
        ("servers", _some(_servers(result["servers"], now), most + 1)),
        ("disk", [_disk(result["disk"])]),
    ):
        for k, line in enumerate(told):
            lines += _wrapped(f"{'' if k else head:10}", line)
    if result["problems"]:
        lines += ["", "Could not be read:"]
        for problem in _some(result["problems"], most):
            lines += _wrapped("  ", problem)
    return lines


def _some(lines: list[str], most: int, indent: str = "") -> list[str]:
    more = len(lines) - most
    return lines if more <= 0 else [*lines[:most], f"{indent}and {more} more (--json has them)"]


def _wrapped(indent: str, text: str) -> list[str]:
    """Two lines at most."""
    return textwrap.wrap(
        *(" ".join(text.split()), WIDTH),
        initial_indent=indent,
        subsequent_indent=" " * (len(indent) + 2),
        max_lines=2,
        placeholder=" …",
        break_on_hyphens=False,
    )


def _snakemake(result: dict) -> str:
    snakemake = result["snakemake"]
    words = {
        "running": "Snakemake runs",
        "planning": "Snakemake looks at the files, and runs nothing",
        "killed": "Snakemake left its lock here and was killed (`snakemake --unlock`), or runs on another host",
        "none": "Snakemake does not run here",
    }[snakemake["state"]]
    if snakemake["since"]:
        words += f" (process {snakemake['pids'][0]}, for {duration(result['time'] - snakemake['since'])})"
    jobs = [job["name"] for job in result["jobs"]]
    return words + (f"; jobs: {', '.join(jobs)}" if jobs else "")


def _row(row: dict, indent: str = "") -> str:
    """One line; a part has its note where rate and time left would be, or behind them."""
    share = row["unit"] == "%"
    done, of, left = (None if row[k] is None else f"{row[k]:.1f}" if share else f"{row[k]:,}" for k in _COUNTS)
    unit = row["unit"].removesuffix("s") if row["left"] == 1 else row["unit"]
    cells = [
        f"{indent + row['name']:20}",
        f"{done if of is None else f'{done} of {of}':>19}",
        f"{'not known yet' if left is None else '–' if not row['left'] else f'{left} {unit}':>16}",
    ]
    if row["rate"] is not None:
        rate = f"{row['rate']:,.0f} {row['rate_unit']}"
        cells += [f"{rate:>16}", f"{'' if row['seconds_left'] is None else duration(row['seconds_left']):>12}"]
    if indent and row["note"]:
        cells.append(row["note"])
    return "  ".join(cells).rstrip()


_COUNTS = ("done", "of", "left")


def _gpus(gpus: dict) -> list[str]:
    if not gpus["devices"]:  # nobody can wait then, either
        return ["none can be seen here"]
    held: dict[tuple, list[str]] = {}
    for device in gpus["devices"]:
        held.setdefault((device["pid"], device["who"]), []).append(device["id"])
    free = held.pop((None, None), [])
    lines = [f"{len(gpus['devices'])}: {len(free)} free" + (f" ({', '.join(free)})" if free else "")]
    lines += [f"{', '.join(ids)}: held by process {pid} ({who})" for (pid, who), ids in held.items()]
    return lines + [f"process {w['pid']} ({w['who']}) waits for {w['gpus']}" for w in gpus["waiting"]]


def _servers(servers: list[dict], now: float) -> list[str]:
    living = [s for s in servers if s["alive"] is not False]
    latest = [s for s in servers if s["alive"] is False and s["state"] != "gone"][:1] if not living else []
    lines = []
    for s in living + latest:
        words = [s["key"] + (f" on {s['host']}" if s["host"] else "") + f": {s['state']}"]
        if s["message"] not in ("", s["state"]):
            words.append(s["message"].partition("\n")[0])
        if s["alive"] is False and s["state"] in ("starting", "ready"):
            process = f" (process {s['keeper_pid']})" if s["keeper_pid"] else ""
            words.append(f"but its keeper{process} is dead; the next job starts another")
        if s["alive"] and s["pid"] and not s["pid_alive"]:
            words.append(f"its process {s['pid']} has ended")
        if s["url"] and s["alive"] is not False:
            words.append(f"{s['url']}/health: {s['health'] or 'not asked, another host'}")
        if s["since"]:
            words.append(f"up {duration(now - s['since'])}")
        if s["restarts"]:
            words.append(f"{s['restarts']} restarts")
        lines.append(", ".join(words))
    if ended := len(servers) - len(living) - len(latest):
        lines.append(f"{ended} that ended")
    return lines or ["none was started"]


def _disk(disk: dict) -> str:
    if disk["needed_bytes"] is None:
        needed = f"needed for hidden states: not known, {disk['why_unknown']}"
    else:
        bound = f"{disk['bound']} " if disk["bound"] else ""
        fits = "fits" if disk["fits"] else "does not fit: `snakemake plan` says what would"
        needed = f"{bound}{size(disk['needed_bytes'])} still needed for hidden states: {fits}"
    return f"{size(disk['free_bytes'])} free, {needed}"
