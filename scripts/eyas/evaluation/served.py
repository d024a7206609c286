"""The draft tried on SGLang: the same prompts, the same flags, one server with the draft and then one without.

Every prompt is asked at each concurrency, streamed, so that the time to the first token is known. SGLang tells how many
verifications an answer took and how many of them accepted how many drafts (meta_info). A line as in trials.py, one for
each prompt and concurrency, with first_s and alone_first_s: seconds to the first token.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import orjson

from eyas.config import Evaluation, Generation
from eyas.errors import EyasError
from eyas.evaluation.prompts import Asked, in_turns
from eyas.target.sglang import Server, algorithm_of

LEAST, EACH = 8, 2  # prompts asked at a concurrency: at least so many, and so many for each that is answered at once
TIMEOUT_S = 3600


def try_served(
    prompts: list[Asked],
    evaluation: Evaluation,
    open_server: Callable[[bool], AbstractContextManager[Server]],
) -> tuple[list[dict], dict]:
    """(lines of evaluation/sglang.jsonl, speed by concurrency). open_server: with the draft, or without it.

    The highest concurrency asks all prompts, the others as many as a rate needs. EyasError when an answer fails.
    """
    passes = {c: prompts_for(prompts, c, evaluation.concurrency) for c in evaluation.concurrency}
    found: dict[bool, dict[int, list[dict]]] = {}
    speed: dict = {str(c): {} for c in passes}
    algorithm = None
    for with_draft in (True, False):
        with open_server(with_draft) as server:
            found[with_draft] = {}
            algorithm = algorithm_of(server.url) if with_draft else algorithm
            asyncio.run(_ask_all(server.url, prompts[:1], evaluation.sampling, 1))  # the first answer is slow
            for c, asked in passes.items():
                started = time.perf_counter()
                answers = asyncio.run(_ask_all(server.url, asked, evaluation.sampling, c))
                speed[str(c)]["with" if with_draft else "without"] = _rates(answers, time.perf_counter() - started)
                found[with_draft][c] = answers
                logging.info("%s the draft, %s at once: %s", "with" if with_draft else "without", c, speed[str(c)])
    lines = [
        {
            **{"id": prompt.id, "dataset": prompt.dataset, "concurrency": c, "algorithm": algorithm},
            **{"output_ids": a["output_ids"], "accepted": _padded(a, evaluation.chain, prompt)},
            **{"seconds": round(a["seconds"], 4), "first_s": round(a["first_s"], 4)},
            **{"alone_ids": b["output_ids"], "alone_seconds": round(b["seconds"], 4)},
            "alone_first_s": round(b["first_s"], 4),
        }
        for c, asked in passes.items()
        for prompt, a, b in zip(asked, found[True][c], found[False][c], strict=True)
    ]
    return lines, speed


def prompts_for(prompts: list[Asked], concurrency: int, all_of_them: tuple[int, ...]) -> list[Asked]:
    """What is asked at one concurrency: all at the highest, else enough for a rate, from the datasets in turn."""
    if concurrency == max(all_of_them):
        return prompts
    return in_turns(prompts, max(LEAST, EACH * concurrency))


async def _ask_all(url: str, prompts: list[Asked], sampling: Generation, concurrency: int) -> list[dict]:
    import aiohttp

    waiting, answers = list(enumerate(prompts))[::-1], [None] * len(prompts)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT_S)

    async def ask(session) -> None:
        while waiting:
            k, prompt = waiting.pop()
            answers[k] = await _answer(session, url, prompt, sampling)

    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(ask(session) for _ in range(concurrency)))
    return answers


async def _answer(session, url: str, prompt: Asked, sampling: Generation) -> dict:
    """{"output_ids", "meta", "first_s", "seconds": after the first token}"""
    import aiohttp

    params = {"temperature": sampling.temperature, "max_new_tokens": sampling.max_new_tokens}
    body = {"input_ids": prompt.input_ids, "sampling_params": params, "stream": True}
    started, first, said = time.perf_counter(), None, None
    try:
        async with session.post(f"{url}/generate", json=body) as response:
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}: {(await response.text())[:300]}")
            async for line in response.content:
                if not line.startswith(b"data:") or b"[DONE]" in line:
                    continue
                first = first or time.perf_counter() - started
                said = orjson.loads(line[5:])
        seconds = time.perf_counter() - started - first
        return {"output_ids": said["output_ids"], "meta": said["meta_info"], "first_s": first, "seconds": seconds}
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
        raise EyasError(
            f"prompt {prompt.id} of {prompt.dataset}: the server did not answer ({type(error).__name__}: {error}): "
            "look at its log in state/server/, and run again"
        ) from None


def _padded(answer: dict, chain: int, prompt: Asked) -> list[int]:
    """Verifications by number of accepted drafts, [chain + 1]."""
    meta = answer["meta"]
    counts = meta.get("spec_correct_drafts_histogram")
    if counts is None:
        raise EyasError(
            f"prompt {prompt.id}: the server tells nothing of its draft: expected spec_correct_drafts_histogram in "
            f"meta_info, found {', '.join(meta)}: serve with the pinned version (target.sglang.version)"
        )
    return [*counts, *[0] * (chain + 1 - len(counts))]


def _rates(answers: list[dict], wall: float) -> dict:
    """Of one pass: tokens a second in all and of a request, median seconds to the first token."""
    tokens = sum(len(a["output_ids"]) for a in answers)
    alone = sorted((len(a["output_ids"]) - 1) / max(a["seconds"], 1e-9) for a in answers)
    first = sorted(a["first_s"] for a in answers)
    return {
        "requests": len(answers),
        "tokens_per_s": round(tokens / wall, 2),
        "tokens_per_s_of_a_request": round(alone[len(alone) // 2], 2),
        "first_token_s": round(first[len(first) // 2], 4),
    }
