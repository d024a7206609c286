"""The `sglang` engine: a server is asked over HTTP, token ids in and token ids out.

`POST /generate` with `input_ids`, one request a prompt, `concurrency` of them at once over kept-alive connections. What
fails for a reason that may pass (429, 5xx, a lost connection, an answer that makes no sense) is asked again with
growing pauses; what fails `tries` times is set aside.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

import orjson

from eyas.config import Generation
from eyas.errors import EyasError
from eyas.target.engine import Answer, Refusal, Request, seed_of

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
SLOWEST_TOKENS_PER_S = 1.0  # a slower answer counts as hung
TOO_LONG = ("longer than", "context length", "maximum", "too long", "exceeds")


class Server(Protocol):
    """A server that answers, wherever it runs (server.WarmServer, RunningServer)."""

    url: str

    def wait_ready(self) -> str:
        """Block until the server answers (again) and return its url; EyasError when it is gone for good."""


class SglangEngine:
    """Asks one server."""

    def __init__(self, server: Server):
        self.server = server

    def generate(self, requests: Iterable[Request], sampling: Generation) -> Iterator[Answer | Refusal]:
        """See engine.Engine. The event loop runs while the caller waits for the next answer."""
        loop = asyncio.new_event_loop()
        flight = _Flight(self.server, sampling, loop)
        try:
            yield from flight.run(iter(requests))
        finally:
            loop.run_until_complete(flight.close())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


class _Flight:
    """The requests in flight."""

    def __init__(self, server: Server, sampling: Generation, loop: asyncio.AbstractEventLoop):
        self.server, self.sampling, self.loop = server, sampling, loop
        self.tasks: set[asyncio.Task] = set()
        self.landed: deque[asyncio.Task] = deque()
        self.wake = asyncio.Event()
        self.mending = asyncio.Lock()  # one waits for the server, the others wait for that one
        self.generation = 0  # of the server: grows when it came back
        self.session = None
        self.context = context_of(server.url)

    def run(self, requests: Iterator[Request]) -> Iterator[Answer | Refusal]:
        self.loop.run_until_complete(self._open())
        more = True
        while more or self.tasks or self.landed:
            while more and len(self.tasks) < self.sampling.concurrency:
                request = next(requests, None)
                if request is None:
                    more = False
                else:
                    task = self.loop.create_task(self._ask(request))
                    self.tasks.add(task)
                    task.add_done_callback(self._land)
            if not self.landed and self.tasks:
                self.wake.clear()
                self.loop.run_until_complete(self.wake.wait())
            while self.landed:
                yield self.landed.popleft().result()

    async def _open(self) -> None:
        import aiohttp

        limit = 60 + self.sampling.max_new_tokens / SLOWEST_TOKENS_PER_S
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=limit)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        self.session = aiohttp.ClientSession(connector=connector, timeout=timeout)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.session is not None:
            await self.session.close()

    def _land(self, task: asyncio.Task) -> None:
        self.tasks.discard(task)
        self.landed.append(task)
        self.wake.set()

    async def _ask(self, request: Request) -> Answer | Refusal:
        import aiohttp

        # SGLang refuses a prompt that leaves less room than max_new_tokens asks for: ask for what there is.
        most = min(self.sampling.max_new_tokens, self.context - len(request.input_ids) - 1)
        if most < 1:
            detail = f"{len(request.input_ids):,} tokens, the target's context holds {self.context:,}"
            return Refusal(request.id, "prompt_too_long", detail)
        params = self._sampling_params(request.id, most)
        body = orjson.dumps({"input_ids": request.input_ids, "sampling_params": params})
        headers = {"Content-Type": "application/json"}
        detail = ""
        for attempt in range(self.sampling.tries):
            if attempt:
                await asyncio.sleep(self._pause(attempt))
            generation = self.generation
            started = time.monotonic()
            try:
                async with self.session.post(f"{self.server.url}/generate", data=body, headers=headers) as response:
                    content = await response.read()
                    status, retry_after = response.status, response.headers.get("Retry-After")
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                detail = f"{type(error).__name__}: {error}"
                await self._mend(generation)
                continue
            if status == 200:
                answer = read_answer(request, content, time.monotonic() - started, most)
                if isinstance(answer, Answer):
                    return answer
                detail = answer
            elif status in (400, 413, 422):
                return refusal(request, status, content)
            else:
                detail = f"HTTP {status}: {content[:200]!r}"
                if status == 429 and (retry_after or "").isdigit():
                    await asyncio.sleep(min(int(retry_after), LONGEST_PAUSE_S))
        return Refusal(request.id, "failed", f"{self.sampling.tries} tries, the last: {detail}")

    async def _mend(self, generation: int) -> None:
        """After a lost connection: wait until the server answers again (once for all that lost theirs)."""
        async with self.mending:
            if generation == self.generation:
                await self.loop.run_in_executor(None, self.server.wait_ready)
                self.generation += 1

    @staticmethod
    def _pause(attempt: int) -> float:
        return random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)

    def _sampling_params(self, request_id: str, most: int) -> dict:
        s = self.sampling
        params = {"temperature": s.temperature, "max_new_tokens": most}
        if s.temperature > 0:  # the seed counts only with --enable-deterministic-inference
            params |= {"top_p": s.top_p, "sampling_seed": seed_of(s, request_id)}
        return params


def read_answer(request: Request, content: bytes, seconds: float, asked_tokens: int) -> Answer | str:
    """The answer in a response of /generate, or what is wrong with it. asked_tokens: the most that it may have."""
    try:
        said = orjson.loads(content)
        output_ids, meta = said["output_ids"], said["meta_info"]
        reason = meta["finish_reason"]
        kind = reason["type"]
    except (ValueError, KeyError, TypeError) as error:
        return f"not an answer of /generate ({type(error).__name__}: {error}): {content[:200]!r}"
    if kind not in ("stop", "length"):
        return f"finish_reason {reason}"
    if not isinstance(output_ids, list) or not set(map(type, output_ids)) <= {int}:
        return f"output_ids are no token ids: {content[:200]!r}"
    if meta.get("prompt_tokens") != len(request.input_ids):
        return f"the server read {meta.get('prompt_tokens')} prompt tokens, {len(request.input_ids)} were sent"
    if kind == "length" and len(output_ids) < asked_tokens:
        return f"cut after {len(output_ids)} of {asked_tokens} tokens: the server has too little room for its cache"
    if kind == "stop" and isinstance(matched := reason.get("matched"), int) and output_ids[-1:] != [matched]:
        output_ids = [*output_ids, matched]  # the token that ended the turn was generated too
    return Answer(request.id, output_ids, kind, seconds)


def refusal(request: Request, status: int, content: bytes) -> Refusal:
    """Why the server does not take a prompt; asking again would not help."""
    text = content[:500].decode("utf-8", "replace")
    too_long = any(words in text.lower() for words in TOO_LONG)
    return Refusal(request.id, "prompt_too_long" if too_long else "refused", f"HTTP {status}: {text}")


class RunningServer:
    """A server that somebody else runs, named by its url. It must serve this model, without speculation."""

    def __init__(self, url: str, model: str, patience_s: float = 600):
        self.url, self.model, self.patience_s = url.rstrip("/"), model, patience_s

    def __enter__(self) -> "RunningServer":
        try:
            check_server(self.url, self.model)
        except ConnectionError as error:
            raise EyasError(f"{self.url}: no server answers there ({error}): start it, or correct url") from None
        return self

    def __exit__(self, *exc) -> None:
        pass

    def wait_ready(self) -> str:
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                check_server(self.url, self.model)
                return self.url
            except ConnectionError as error:
                if time.monotonic() > deadline:
                    raise EyasError(f"{self.url}: no answer for {self.patience_s:.0f} s: {error}") from None
                time.sleep(2)


def check_server(url: str, model: str) -> None:
    """Ask a server what it is; EyasError when it is another model or speculates, ConnectionError when it is silent."""
    info = {**_get(f"{url}/model_info"), **_get(f"{url}/server_info")}
    served = info.get("model_path")
    if served is None or _plain(served) != _plain(model):
        raise EyasError(f"{url} serves {served!r}, expected {model!r}: correct target.sglang.url or target.model")
    if algorithm := info.get("speculative_algorithm"):
        raise EyasError(
            f"{url} speculates ({algorithm}): answers must come from the plain target; "
            "start it without --speculative-algorithm"
        )


def context_of(url: str) -> int:
    """Tokens that a prompt and its answer may have together, as the server says; ConnectionError when it is silent."""
    models = _get(f"{url}/v1/models").get("data") or [{}]
    return models[0].get("max_model_len") or 1 << 30


def probe(url: str) -> None:
    """One real answer of one token; ConnectionError when there is none (yet)."""
    import urllib.error
    import urllib.request

    body = orjson.dumps({"input_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 1}})
    request = urllib.request.Request(f"{url}/generate", data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            said = orjson.loads(response.read())
        said["meta_info"]["finish_reason"]["type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConnectionError(f"{url}: no answer yet: {error}") from None


def _get(url: str) -> dict:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            info = orjson.loads(response.read())
    except (OSError, ValueError) as error:
        raise ConnectionError(f"{url}: {error}") from None
    return info if isinstance(info, dict) else {}


def _plain(model: str) -> str:
    """A model's name for comparison: a folder by its absolute path, a repository as it is."""
    import os

    return os.path.realpath(model) if os.path.isdir(model) else model.rstrip("/")
