"""Training Kimi-K2.5's draft on one GPU: tokens/s, memory, model FLOP utilization, and where the time goes.

    benchmarks/gpu.sh                  at most 6 minutes; needs torch, numpy and safetensors alone
    benchmarks/gpu.sh --small          the same at a thousandth of the size, on any device: does it run at all?

States, weights and tokens are random: the time does not depend on them. First the fast form of attention is compared
with the form for any device, loss and gradients; then steps of the training-time test are timed, each with teacher,
backward, clipping and AdamW; the last is profiled. Prints JSON lines; `results` in --out is what RESULTS.md quotes.

mfu: operations of the step's products (draft_work.step_flop) over what the device can do in that time by its data
sheet (dense bf16). of_products: the same over what a large product reaches here.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from draft_work import Kind, Work, step_flop

from eyas.compute import fast_dtype
from eyas.eagle3.attention import use_flex
from eyas.eagle3.model import DraftConfig
from eyas.eagle3.supervision import Objective

KIMI = DraftConfig(
    hidden_size=7168, intermediate_size=12288, num_attention_heads=64, num_key_value_heads=64, head_dim=128,
    vocab_size=163840, draft_vocab_size=32000, max_position_embeddings=262144, aux_layers=(2, 30, 58), rope_theta=5e4,
)  # fmt: skip
SMALL = DraftConfig(
    hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    vocab_size=2048, draft_vocab_size=512, max_position_embeddings=4096, aux_layers=(2, 30, 58),
)  # fmt: skip
PEAKS = {  # dense bf16 TFLOP/s by data sheet
    "H200": 989.5,
    "H100 80GB HBM3": 989.5,
    "A100": 312.0,
    "RTX PRO 6000 Blackwell": 503.8,
}
STEPS = 4
GROUPS = {  # part of a kernel's name → what it is
    "attention": ("flex", "flash", "fmha", "triton_tem"),
    "products": ("gemm", "cutlass", "nvjet", "cublas", "mm_", "addmm", "::mm", "::bmm"),
    "softmax": ("softmax",),
    "optimizer": ("adam", "multi_tensor", "foreach"),
    "gather, scatter": ("index", "gather", "scatter", "embedding"),
    "reductions": ("reduce", "norm"),
    "copies": ("copy", "memcpy", "memset", "fill"),
}
say = lambda **values: print(json.dumps(values), flush=True)  # noqa: E731


def lengths(total: int) -> Kind:
    """Documents of 1/2, 1/4, 1/8 and twice 1/16 of the tokens; a quarter of each is a prompt."""
    return Kind(tuple(total // k for k in (2, 4, 8, 16, 16)), prompt=0.25)


def forms_agree(device: str) -> dict:
    """Relative differences of loss and gradients in fp32: this device's form of attention against the CPU's."""
    found = []
    for where in ("cpu", device):
        work = Work(SMALL, Objective(steps=STEPS, loss="kl"), torch.float32)
        batch = work.batch(lengths(512))
        work.generator = torch.Generator(where)
        work.draft.to(where)
        work.t2d = work.t2d.to(where)
        work.teacher.lm_head, work.teacher.kept = work.teacher.lm_head.to(where), work.teacher.kept.to(where)
        batch = type(batch)(*(x.to(where) for x in vars(batch).values()))
        work.optimizer.zero_grad = lambda: None
        work.step(batch)
        found.append({"loss": work.loss, **{n: p.grad for n, p in work.draft.named_parameters() if p.grad is not None}})
    expected, here = found
    return {n: float((here[n].cpu() - g).norm() / g.norm().clamp_min(1e-12)) for n, g in expected.items()}


def product_rate(device: str, dtype: torch.dtype, small: bool) -> float:
    """TFLOP/s of a large product."""
    size, best = 512 if small else 8192, 0.0
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(8):
        start = time.perf_counter()
        c = a @ b
        float(c[0, 0])
        best = max(best, 2 * size**3 / (time.perf_counter() - start) / 1e12)
    return best


def profile(work: Work, batch) -> dict:
    """Seconds of one step's kernels by group, and the twelve that take the most."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    cuda = work.generator.device.type == "cuda"
    with profiled(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as seen:
        work.timed(batch)
    kernels = {}
    for event in seen.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA or not cuda:
            us = event.self_device_time_total if cuda else event.self_cpu_time_total
            kernels[event.key] = kernels.get(event.key, 0) + us / 1e6
    groups = dict.fromkeys([*GROUPS, "other"], 0.0)
    for name, seconds in kernels.items():
        group = next((g for g, parts in GROUPS.items() if any(p in name.lower() for p in parts)), "other")
        groups[group] += seconds
    top = sorted(kernels.items(), key=lambda item: -item[1])[:12]
    return {
        "groups_ms": {g: round(1000 * s, 2) for g, s in groups.items()},
        "top_ms": [[name[:90], round(1000 * s, 2)] for name, s in top],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes, on the CPU where there is no GPU")
    parser.add_argument("--seconds", type=float, default=330, help="begin no size after so many; default: 330")
    parser.add_argument("--out", type=Path, help="a folder for gpu.json")
    args = parser.parse_args()
    began, device = time.monotonic(), "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.small:
        print("error: no CUDA device: expected a GPU with 40 GB or more (--small runs anywhere)", file=sys.stderr)
        return 1
    dtype = fast_dtype(torch.bfloat16, torch.device(device))
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    peak = next((value for key, value in PEAKS.items() if key in name), None)
    machine = {"device": name, "torch": torch.__version__, "dtype": str(dtype), "peak_tflops": peak}
    machine |= {"product_tflops": round(product_rate(device, dtype, args.small), 4)}
    say(**machine)
    differences = forms_agree(device)
    worst = max(differences, key=differences.get)
    flex = use_flex(torch.zeros(1, device=device))
    say(fast_attention=flex, largest_difference=differences[worst], of=worst, agree=differences[worst] < 1e-3)
    base, sizes = (SMALL, (128, 256)) if args.small else (KIMI, (2048, 4096, 8192))
    inner = (256, 512) if args.small else (12288, 18432)
    results = []
    for intermediate in inner:
        work = Work(replace(base, intermediate_size=intermediate), Objective(steps=STEPS), dtype, device)
        for tokens in sizes:
            if time.monotonic() - began > args.seconds:
                say(left_out={"intermediate": intermediate, "tokens": tokens})
                continue
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            batch = work.batch(lengths(tokens))
            first = work.timed(batch)
            plan = work.step(batch)
            seconds = sorted(work.timed(batch) for _ in range(5))[2]
            tflop = {part: n / 1e12 for part, n in step_flop(work.config, batch, plan).items()}
            total = sum(tflop.values())
            found = {
                **{"intermediate": intermediate, "tokens": tokens, "supervised": int(plan.counts[0])},
                **{"seconds": round(seconds, 4), "first_seconds": round(first, 2)},
                "tokens_per_s": round(tokens / seconds),
                "tflop": {part: round(n, 4) for part, n in tflop.items()},
                "tflops": round(total / seconds, 4),
                "mfu": round(total / seconds / peak, 3) if peak else None,
                "of_products": round(total / seconds / machine["product_tflops"], 3),
                "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if device == "cuda" else None,
            }
            say(**found)
            results.append(found)
        if time.monotonic() - began < args.seconds:
            results[-1]["profile"] = profile(work, batch)
            say(profile=results[-1]["profile"])
        del work
        if device == "cuda":
            torch.cuda.empty_cache()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "gpu.json").write_text(json.dumps({**machine, "differences": differences, "results": results}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
