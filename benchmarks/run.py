"""Measure what the issue promises, as ratios against what the libraries alone can do.

    python benchmarks/run.py [--only prepare|scan|answers|embedded|corpus|states|training|dryrun] [--quick] [--rounds 5]

Each side runs in a process of its own (sides.py), so that its peak memory is its own; the sides of a comparison take
turns, round after round, and a ratio is taken within a round: what else the machine does then falls on both. Prints a
table with each ratio's lowest, median and highest value; the median is held against the goal. Everything goes to
benchmarks/results/latest.json. Exit code 1 when a goal is not met (with --quick, a tenth of the data: never).
"""

import argparse
import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import data

RESULTS = data.ROOT / "benchmarks/results/latest.json"
SIDES = data.ROOT / "benchmarks/sides.py"
BUSY = 0.1  # of the machine's CPU time taken by other processes: too much where a side needs every core


@dataclass
class Row:
    """One line of the table. met: None where there is no goal."""

    what: str
    ours: str
    reference: str
    ratio: str
    goal: str
    met: bool | None


def side(*args: str, quick: bool) -> dict:
    """What one process of sides.py reports, or another command that begins with an interpreter's path."""
    own = [] if args[0].startswith("/") else [sys.executable, str(SIDES)]
    command = [*own, *args, *(["--quick"] if quick else [])]
    before = cpu_times()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed (exit code {done.returncode}); its message is above")
    result = {**json.loads(done.stdout), "others": round(others_share(before, cpu_times()), 3)}
    line = f"  {' '.join(args)}: {result['seconds']:.2f} s, {result['peak_mb']} MB"
    if result["others"] > BUSY:
        line += f" (other processes took {result['others']:.0%} of the machine)"
    print(line, file=sys.stderr, flush=True)
    return result


def in_turns(sides: dict[str, list[str]], rounds: int, quick: bool) -> dict[str, list[dict]]:
    """name → its results, one of each round: A B C, C B A, A B C …, so that a drift of the machine favours no side."""
    results: dict[str, list[dict]] = {name: [] for name in sides}
    for k in range(rounds):
        for name, args in list(sides.items())[:: -1 if k % 2 else 1]:
            results[name].append(side(*args, quick=quick))
    return results


def median(results: list[dict], key: str) -> float:
    return statistics.median(r[key] for r in results)


def compare(
    what: str, unit: str, amount: float, ours: list[dict], reference: list[dict], goal: float | None, cores: int = 1
) -> Row:
    """Rates of the same `amount` of work; the ratio is reference seconds / our seconds, pair by pair.

    cores: what a side needs at once. Where it needs all, only pairs count in which other processes left them to it.
    """
    pairs = list(zip(ours, reference, strict=True))
    if cores > 1 and (os.cpu_count() or 1) <= cores:
        pairs = [pair for pair in pairs if max(side["others"] for side in pair) <= BUSY]
        what += f" ({len(pairs)} of {len(ours)} rounds were quiet)" if len(pairs) < len(ours) else ""
    rates = [f"{amount / median(results, 'seconds'):,.0f} {unit}" for results in zip(*pairs, strict=True)] or ["", ""]
    ratios = sorted(r["seconds"] / o["seconds"] for o, r in pairs)
    return Row(
        what,
        *rates,
        f"{ratios[0]:.2f} – {statistics.median(ratios):.2f} – {ratios[-1]:.2f}" if ratios else "other work, not judged",
        "" if goal is None else f"≥ {goal}",
        None if goal is None or not ratios else statistics.median(ratios) >= goal,
    )


def told(what: str, ours: str, reference: str = "", ratio: str = "") -> Row:
    """A line without a goal."""
    return Row(what, ours, reference, ratio, "", None)


# The comparisons


def prepare(rounds: int, quick: bool) -> tuple[list[Row], dict]:
    rows, raw = [], {}
    data.tokenizer()
    for name in ("agentic", "chat"):
        data.conversations(name, quick)
        ours = ["prepare", "--set", name]
        sides = {
            "tokenizer alone": ["tokenizer", "--set", name],
            "1 thread": ours,
            "2 threads": [*ours, "--threads", "2"],
            "tokenizer alone, twice": ["tokenizer", "--set", name, "--threads", "2"],
        }
        raw[name] = r = in_turns(sides, rounds, quick)
        tokens = {x["tokens"] for results in r.values() for x in results}
        if len(tokens) != 1:
            raise SystemExit(f"{name}: the sides made different numbers of tokens: {tokens}")
        amount, one, two = tokens.pop() / 1000, r["1 thread"], r["2 threads"]
        alone, both = r["tokenizer alone"], r["tokenizer alone, twice"]
        cpu_one, cpu_two = median(one, "cpu_s"), median(two, "cpu_s")
        rows += [
            compare(f"{name}, 1 thread / tokenizer alone", "k tokens/s", amount, one, alone, 0.7),
            compare(f"{name}, 2 threads / 1 thread", "k tokens/s", amount, two, one, 1.6, cores=2),
            compare("    tokenizer alone, 2 processes / 1", "k tokens/s", amount, both, alone, None, cores=2),
            told(
                "    CPU time, 2 threads / 1 thread", f"{cpu_two:.1f} s", f"{cpu_one:.1f} s", f"{cpu_two / cpu_one:.2f}"
            ),
            told("    peak memory, 1 thread", f"{median(one, 'peak_mb'):.0f} MB", f"{median(alone, 'peak_mb'):.0f} MB"),
            told("    loading the tokenizer, not counted", f"{median(one, 'load_s'):.1f} s"),
        ]
    for loss_mask in ("assistant", "after_first_user"):
        r = side("masks", "--loss-mask", loss_mask, quick=quick)
        raw[f"masks {loss_mask}"] = r
        wrong = f" (wrong: {'; '.join(r['wrong'])})" if r["wrong"] else ""
        exact, checked = r["exact"], r["checked"]
        rows.append(
            Row(f"hostile, exact masks, {loss_mask}", f"{exact}{wrong}", f"{checked}", "", "all", exact == checked)
        )
    return rows, raw


def scan(rounds: int, quick: bool) -> tuple[list[Row], dict]:
    data.scan(quick)
    sides = {"pyarrow alone": ["pyarrow"], "scan": ["scan"], "scan, twice the rows": ["scan", "--times", "2"]}
    r = in_turns(sides, rounds, quick)
    if {x["rows"] for x in r["pyarrow alone"]} != {x["rows"] for x in r["scan"]}:
        raise SystemExit("scan: the sides read different numbers of rows")
    once, twice = median(r["scan"], "peak_mb"), median(r["scan, twice the rows"], "peak_mb")
    growth = twice / once
    amount = r["scan"][0]["rows"] / 1000
    return [
        compare("scan / pyarrow alone", "k rows/s", amount, r["scan"], r["pyarrow alone"], 0.5),
        Row(
            "scan, peak memory",
            f"{once:.0f} MB",
            f"{median(r['pyarrow alone'], 'peak_mb'):.0f} MB",
            "",
            "< 700 MB",
            once < 700,
        ),
        Row(
            "scan, peak memory at twice the rows",
            f"{twice:.0f} MB",
            f"{once:.0f} MB",
            f"{growth:.2f}",
            "0.9 to 1.1",
            0.9 <= growth <= 1.1,
        ),
    ], r


def answers(rounds: int, quick: bool) -> tuple[list[Row], dict]:
    """The stage against real SGLang on this CPU, beside a bare load generator; then against a server that is fast."""
    from sglang_server import PYTHON, SglangCpu

    rows, raw = [], {}
    if PYTHON.exists():
        prompts = 24 if quick else 96
        data.prompts(prompts)
        with tempfile.TemporaryDirectory() as folder:
            flags = {"disable-radix-cache": True}  # so that no round profits from the one before
            with SglangCpu(data.model(), Path(folder) / "server.log", flags) as server:
                asked = ["--url", server.url, "--model", str(data.model()), "--prompts", str(prompts)]
                asked += ["--concurrency", "8"]
                sides = {"load generator": ["load-generator", *asked], "stage": ["stage", *asked]}
                raw["sglang"] = r = in_turns(sides, rounds, quick)
        shares = [x["cpu_s"] / x["seconds"] for x in r["stage"]]
        share = statistics.median(shares)
        rows += [
            compare("SGLang, stage / bare load generator", "answers/s", prompts, r["stage"], r["load generator"], 0.95),
            Row("    of one core, the client", f"{share:.1%}", "", "", "< 15%", share < 0.15),
        ]
    else:
        rows.append(told("SGLang, stage / bare load generator", "not measured: `make sglang-cpu` first"))
    most = data.COUNTS["prompts"] // (10 if quick else 1)
    with fake_server() as url:
        for count in (most // 10, most):
            data.prompts(count)
            raw[f"fast {count}"] = side(
                *("stage", "--url", url, "--prompts", str(count), "--concurrency", "200"), quick=quick
            )
    few, many = raw[f"fast {most // 10}"], raw[f"fast {most}"]
    rate, peak = many["answers"] / many["seconds"], many["peak_mb"]
    rows += [
        Row(f"fast server, {most:,} prompts", f"{rate:,.0f} answers/s", "", "", "≥ 1,500", rate >= 1500),
        Row("    peak memory", f"{peak} MB", f"{few['peak_mb']} MB for a tenth", "", "< 500 MB", peak < 500),
    ]
    return rows, raw


@contextmanager
def fake_server():
    """The url of tests/fake_server.py, which answers by arithmetic some thousand times a second."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, str(data.ROOT / "tests/fake_server.py"), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()  # it listens
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def embedded(rounds: int, quick: bool) -> tuple[list[Row], dict]:
    """Answer tokens at batch 64: two threads, two processes of one thread each, transformers' `generate`."""
    prompts = 64 if quick else 192
    data.prompts(prompts)
    data.model()
    asked = ["--prompts", str(prompts)]
    raw = {"2 threads": [], "2 processes": [], "transformers": []}
    for _ in range(rounds):
        raw["2 threads"].append(side("embedded", "--threads", "2", *asked, quick=quick))
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda _: side("embedded", "--threads", "1", *asked, quick=quick), range(2)))
        tokens, seconds = sum(x["answer_tokens"] for x in both), max(x["seconds"] for x in both)
        # As one: twice the work; the seconds of a half, so that rates can be compared.
        raw["2 processes"].append({"answer_tokens": tokens, "seconds": seconds / 2, "others": 0.0})
        raw["transformers"].append(side("transformers", "--threads", "2", *asked, quick=quick))
    tokens = raw["2 threads"][0]["answer_tokens"]
    best = statistics.median(tokens / x["seconds"] for x in raw["2 processes"])
    return [
        compare(
            "embedded, batch 64, 2 threads / transformers",
            "tokens/s",
            tokens,
            raw["2 threads"],
            raw["transformers"],
            None,
        ),
        compare(
            "    2 processes of 1 thread / transformers",
            "tokens/s",
            tokens,
            raw["2 processes"],
            raw["transformers"],
            None,
        ),
        Row("    2 processes of 1 thread", f"{best:,.0f} tokens/s", "", "", "≥ 400", best >= 400),
    ], raw


def corpus(rounds: int, quick: bool) -> tuple[list[Row], dict]:
    data.records(quick)
    sides = {"orjson alone": ["orjson"], "1 thread": ["corpus"], "2 threads": ["corpus", "--threads", "2"]}
    r = in_turns(sides, rounds, quick)
    one, two, alone = r["1 thread"], r["2 threads"], r["orjson alone"]
    amount = two[0]["records"] / 1000
    peak = median(two, "peak_mb") + 2 * median(two, "peak_worker_mb")  # what they share counts more than once
    return [
        compare("corpus, 2 threads / orjson alone", "k records/s", amount, two, alone, 0.5, cores=2),
        compare("    1 thread / orjson alone", "k records/s", amount, one, alone, None),
        Row(
            "    peak memory, 2 threads",
            f"{peak:.0f} MB",
            f"{median(one, 'peak_mb'):.0f} MB, 1 thread",
            "",
            "< 2,000 MB",
            peak < 2000,
        ),
    ], r


def states(rounds: int, quick: bool) -> tuple[list[Row], dict]:
    """Writing a shard beside a plain save; capturing through real SGLang beside the same server's prefill alone."""
    from eyas.config import load
    from eyas.layers import Shape, layers_of
    from eyas.target.launch import Capturing, capturing_target
    from sglang_server import PYTHON, SglangCpu, cpu_env

    raw = {"write": in_turns({"safetensors": ["safetensors"], "shard": ["write-states"]}, rounds, quick)}
    written = raw["write"]
    rows = [
        compare("shard / plain save", "MB/s", written["shard"][0]["mb"], written["shard"], written["safetensors"], 0.8)
    ]
    if not PYTHON.exists():
        return [*rows, told("capture / prefill alone", "not measured: `make sglang-cpu` first")], raw
    prompts, shape = (32 if quick else 192), Shape.of(data.model())
    data.prompts(prompts)
    with tempfile.TemporaryDirectory() as folder:
        layers, target = layers_of(shape, None), load([data.ROOT / "config/demo.yaml"]).target
        served = capturing_target(target, Capturing(layers, True, shape.architecture, {}), Path(folder)).sglang
        asked = ["--model", str(data.model()), "--prompts", str(prompts), "--concurrency", "8"]
        env = {"PYTHONPATH": os.pathsep.join([cpu_env()["PYTHONPATH"], served.env["PYTHONPATH"]])}
        plain = {"disable-radix-cache": True}
        with (
            SglangCpu(data.model(), Path(folder) / "a.log", served.flags, env) as capturing,
            SglangCpu(data.model(), Path(folder) / "b.log", plain) as other,
        ):
            sides = {
                "capture": ["capture", "--url", capturing.url, "--tickets", folder, *asked],
                "prefill": ["prefill", "--url", other.url, *asked],
            }
            results = in_turns(sides, rounds, quick)
        raw["capture"] = results
    tokens = results["capture"][0]["tokens"]
    rows.append(compare("capture / prefill alone", "tokens/s", tokens, results["capture"], results["prefill"], 0.8))
    return rows, raw


PEER = "EYAS_PEER_PYTHON"  # an interpreter with torch and speculators, see peer.py


def training(rounds: int, quick: bool) -> tuple[list[Row], dict]:
    """A step of the training-time test beside the machine's own products, and a peer's where one is installed."""
    peer, raw, rows = os.environ.get(PEER), {}, []
    if peer is None:
        print(f"  {PEER} is not set: no peer is measured beside", file=sys.stderr, flush=True)
    for steps in (4, 7):
        ours = ["train", "--threads", "2", "--steps", str(steps), "--dtype"]
        sides = {dtype: [*ours, dtype] for dtype in ("float32", "bfloat16")}
        if peer is not None:
            sides["peer"] = [peer, str(data.ROOT / "benchmarks/peer.py"), "--steps", str(steps)]
        raw[f"{steps} steps"] = r = in_turns(sides, rounds, quick)
        wide, amount = r["float32"], r["float32"][0]["tokens"]
        shares = sorted(x["gflop"] / x["seconds"] / x["product_rate"] for x in wide)
        middle = statistics.median(shares)
        rows.append(
            Row(
                f"{steps} steps, fp32 / the machine's own products",
                f"{amount / median(wide, 'seconds'):,.0f} tokens/s",
                f"{median(wide, 'product_rate'):,.0f} GFLOP/s",
                f"{shares[0]:.2f} – {middle:.2f} – {shares[-1]:.2f}",
                "≥ 0.8",
                middle >= 0.8,
            )
        )
        for name, dtype, goal in (("fp32", "float32", 1), ("bf16", "bfloat16", 3)) if peer is not None else ():
            what = f"{steps} steps, {name} / speculators, fp32"
            rows.append(compare(what, "tokens/s", amount, r[dtype], r["peer"], goal))
            peak, limit = median(r[dtype], "peak_mb"), median(r["peer"], "peak_mb")
            rows.append(Row("    peak memory", f"{peak:,.0f} MB", f"{limit:,.0f} MB", "", "below", peak < limit))
    return rows, raw


def dryrun(rounds: int, quick: bool) -> tuple[list[Row], dict]:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "snakemake", "-n"], cwd=data.ROOT, capture_output=True, text=True)
        seconds.append(round(time.perf_counter() - start, 3))
        print(f"  snakemake -n: {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
        if done.returncode:
            raise SystemExit(f"snakemake -n failed (exit code {done.returncode}):\n{done.stdout}{done.stderr}")
    best = min(seconds)
    return [Row("snakemake -n, best of 3", f"{best:.2f} s", "", "", "< 3 s", best < 3)], {"seconds": seconds}


SECTIONS = {
    "prepare": prepare,
    "scan": scan,
    "answers": answers,
    "embedded": embedded,
    "corpus": corpus,
    "states": states,
    "training": training,
    "dryrun": dryrun,
}


def others_share(before: tuple, after: tuple) -> float:
    """Share of the machine's CPU time that processes other than ours took between two `cpu_times()`."""
    wall, busy, own = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, busy - own) / max(wall * (os.cpu_count() or 1), 1e-9)


def cpu_times() -> tuple[float, float, float]:
    """(clock, CPU seconds of all processes, CPU seconds of our children so far)"""
    import psutil

    now, ours = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), now.user + now.system, ours.ru_utime + ours.ru_stime


def print_table(rows: list[Row]) -> None:
    verdict = {True: "met", False: "NOT MET", None: ""}
    lines = [("what", "ours", "reference", "ratio", "goal", "")]
    lines += [(r.what, r.ours, r.reference, r.ratio, r.goal, verdict[r.met]) for r in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SECTIONS, help="one section; default: all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data: a smoke test, not a measurement")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs; default: 5 (at least 3)")
    args = parser.parse_args(argv)
    rounds = max(3, args.rounds)
    sys.path[:0] = [str(data.ROOT / "scripts"), str(data.ROOT / "tests")]  # the tokenizer; the servers of the tests
    rows, raw = [], {}
    for name in [args.only] if args.only else SECTIONS:
        print(f"{name}:", file=sys.stderr, flush=True)
        more, raw[name] = SECTIONS[name](rounds, args.quick)
        rows += more
    print_table(rows)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "quick": args.quick,
        "rounds": rounds,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "versions": {
            name: version(name) for name in ("tokenizers", "pyarrow", "orjson", "snakemake", "torch", "transformers")
        },
        "rows": [asdict(row) for row in rows],
        "raw": raw,
    }
    RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if args.quick else int(any(row.met is False for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
