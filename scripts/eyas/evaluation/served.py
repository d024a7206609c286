"""The draft tried on SGLang: the same prompts, the same flags, servers with the draft and one without it.

Every prompt is asked at each concurrency, streamed, so that the time to the first token is known. SGLang tells how many
verifications an answer took and how many of them accepted how many drafts (meta_info). A pass is all answers of one
server at one concurrency; it is kept when it ends, so that a run that was killed asks only what is left, and a sweep
finds what the evaluation has asked.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from eyas.config import Evaluation, Generation, Target
from eyas.differences import fingerprint
from eyas.errors import EyasError
from eyas.evaluation.prompts import Asked, in_turns
from eyas.evaluation.trials import draft_digest
from eyas.records import read_json, write_json
from eyas.target.engine import identity_of
from eyas.target.launch import Drafting
from eyas.target.sglang import Server, algorithm_of

LEAST, EACH = 8, 2  # prompts asked at a concurrency: at least so many, and so many for each that is answered at once
TIMEOUT_S = 3600


@dataclass(frozen=True)
class Pass:
    """answers: {"output_ids", "accepted" [chain + 1], "first_s", "seconds": after the first token}, as asked.

    wall: seconds of all of them. algorithm: that the server speculates with; None: it does not.
    """

    answers: list[dict]
    wall: float
    algorithm: str | None

    @property
    def rates(self) -> dict:
        """Tokens a second in all and of a request, median seconds to the first token."""
        tokens = sum(len(a["output_ids"]) for a in self.answers)
        alone = sorted((len(a["output_ids"]) - 1) / max(a["seconds"], 1e-9) for a in self.answers)
        first = sorted(a["first_s"] for a in self.answers)
        return {
            "requests": len(self.answers),
            "tokens_per_s": round(tokens / self.wall, 2),
            "tokens_per_s_of_a_request": round(alone[len(alone) // 2], 2),
            "first_token_s": round(first[len(first) // 2], 4),
        }


class Served:
    """Asks servers, and keeps what they answered.

    open_server: with the draft, or (None) without it. folder: of the passes; a server is opened when one is missing.
    """

    def __init__(
        self,
        settings: dict,
        draft: Path,
        folder: Path,
        open_server: Callable[[Drafting | None], AbstractContextManager[Server]],
    ):
        evaluation, target = Evaluation.model_validate(settings["evaluate"]), Target.model_validate(settings["target"])
        self.sampling, self.open_server, self.folder = evaluation.sampling, open_server, folder
        self.digest = draft_digest(draft)
        asked = evaluation.model_dump(mode="json", include={"max_new_tokens", "temperature", "flags"})
        self.key = (identity_of(target), target.sglang.deciding, asked, socket.gethostname())

    def passes(self, drafting: Drafting | None, asked: dict[int, list[Asked]]) -> dict[int, Pass]:
        """asked: concurrency → prompts. EyasError when an answer fails."""
        found, words = {}, f"with {drafting}" if drafting else "without the draft"
        with ExitStack() as opened:
            server = None
            for c, prompts in asked.items():
                path = self._path(drafting, c, prompts)
                if path.exists():
                    found[c] = Pass(**read_json(path, f"delete {path}, and run again: it is asked anew"))
                    logging.info("%s, %s at once: asked before: %s", words, c, found[c].rates)
                    continue
                if server is None:
                    server = opened.enter_context(self.open_server(drafting))
                    algorithm = algorithm_of(server.url) if drafting else None
                    _ask_all(server.url, prompts[:1], self.sampling, 1, drafting)  # the first answer is slow
                answers, wall = _ask_all(server.url, prompts, self.sampling, c, drafting)
                found[c] = Pass(answers, wall, algorithm)
                write_json(path, asdict(found[c]))
                logging.info("%s, %s at once: %s", words, c, found[c].rates)
        return found

    def _path(self, drafting: Drafting | None, concurrency: int, prompts: list[Asked]) -> Path:
        own = None if drafting is None else [asdict(drafting), self.digest]
        name = fingerprint(self.key, own, concurrency, [[p.id, p.input_ids] for p in prompts])
        return self.folder / f"pass-{name}.json"


def lines_of(asked: dict[int, list[Asked]], drafted: dict[int, Pass], alone: dict[int, Pass]) -> list[dict]:
    """Lines as in trials.py, one for each prompt and concurrency, with first_s and alone_first_s."""
    return [
        {
            **{"id": prompt.id, "dataset": prompt.dataset, "benchmark": prompt.benchmark, "concurrency": c},
            **{"algorithm": drafted[c].algorithm, "output_ids": a["output_ids"], "accepted": a["accepted"]},
            **{"seconds": a["seconds"], "first_s": a["first_s"]},
            **{"alone_ids": b["output_ids"], "alone_seconds": b["seconds"], "alone_first_s": b["first_s"]},
        }
        for c, prompts in asked.items()
        for prompt, a, b in zip(prompts, drafted[c].answers, alone[c].answers, strict=True)
    ]


def prompts_by_concurrency(prompts: list[Asked], concurrencies: Iterable[int]) -> dict[int, list[Asked]]:
    """What is asked: all at the highest concurrency, else enough for a rate, from the datasets in turn."""
    highest = max(concurrencies)
    return {c: prompts if c == highest else in_turns(prompts, max(LEAST, EACH * c)) for c in concurrencies}


def _ask_all(
    url: str, prompts: list[Asked], sampling: Generation, concurrency: int, drafting: Drafting | None
) -> tuple[list[dict], float]:
    """(an answer for each prompt, seconds of all)"""
    import aiohttp

    waiting, answers = list(enumerate(prompts))[::-1], [None] * len(prompts)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT_S)

    async def ask(session) -> None:
        while waiting:
            k, prompt = waiting.pop()
            answers[k] = await _answer(session, url, prompt, sampling, drafting)

    async def ask_all() -> None:
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(ask(session) for _ in range(concurrency)))

    started = time.perf_counter()
    asyncio.run(ask_all())
    return answers, time.perf_counter() - started


async def _answer(session, url: str, prompt: Asked, sampling: Generation, drafting: Drafting | None) -> dict:
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
        answer = {"output_ids": said["output_ids"], "first_s": round(first, 4)}
        answer["seconds"] = round(time.perf_counter() - started - first, 4)
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
        raise EyasError(
            f"prompt {prompt.id} of {prompt.dataset}: the server did not answer ({type(error).__name__}: {error}): "
            "look at its log in state/server/, and run again"
        ) from None
    return answer | ({"accepted": _accepted(said["meta_info"], drafting.chain, prompt)} if drafting else {})


def _accepted(meta: dict, chain: int, prompt: Asked) -> list[int]:
    """Verifications by number of accepted drafts, [chain + 1]."""
    counts = meta.get("spec_correct_drafts_histogram")
    if counts is None:
        raise EyasError(
            f"prompt {prompt.id}: the server tells nothing of its draft: expected spec_correct_drafts_histogram in "
            f"meta_info, found {', '.join(meta)}: serve with the pinned version (target.sglang.version)"
        )
    return [*counts, *[0] * (chain + 1 - len(counts))]
