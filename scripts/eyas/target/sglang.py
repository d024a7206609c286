"""The `sglang` engine: a server is asked over HTTP, token ids in and token ids out.

`POST /generate` with `input_ids`, one request a prompt, `concurrency` of them at once over kept-alive connections. What
fails for a reason that may pass (429, 5xx, a lost connection, an answer that makes no sense) is asked again with
growing pauses; what fails `tries` times is set aside.
"""

import asyncio
import os
import random
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Protocol

import orjson

from eyas.config import Generation
from eyas.errors import EyasError
from eyas.records import write_json
from eyas.target.engine import Answer, Captured, CaptureRequest, Refusal, Request, seed_of

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
SLOWEST_TOKENS_PER_S = 1.0  # a slower answer counts as hung
CAPTURE_TRIES = 5
WRITTEN_WITHIN_S = 120  # after the answer: states that are not there by then do not come
TOO_LONG = ("longer than", "context length", "maximum", "too long", "exceeds")


class Server(Protocol):
    """A server that answers, wherever it runs (server.WarmServer, RunningServer)."""

    url: str

    def wait_ready(self) -> str:
        """Block until the server answers (again) and return its url; EyasError when it is gone for good."""


class SglangEngine:
    """Asks one server. tickets: the folder that its capture hook looks into; None: it has no such hook."""

    def __init__(self, server: Server, tickets: Path | None = None):
        self.server, self.tickets = server, tickets

    def generate(self, requests: Iterable[Request], sampling: Generation) -> Iterator[Answer | Refusal]:
        """See engine.Engine. The event loop runs while the caller waits for the next answer."""
        asked = _Generation(sampling, context_of(self.server.url))
        return self._fly(requests, asked, sampling.concurrency, sampling.tries)

    def capture(self, requests: Iterable[CaptureRequest], concurrency: int) -> Iterator[Captured | Refusal]:
        """See engine.Engine. The server writes the rows itself (capture_hook), which must see these paths."""
        asked = _Capture(self.tickets, context_of(self.server.url))
        return self._fly(requests, asked, concurrency, CAPTURE_TRIES)

    def _fly(self, requests: Iterable, asked: "_Asked", concurrency: int, tries: int) -> Iterator:
        loop = asyncio.new_event_loop()
        flight = _Flight(self.server, asked, tries, loop)
        try:
            yield from flight.run(iter(requests), concurrency)
        finally:
            loop.run_until_complete(flight.close())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


class _Asked(Protocol):
    """What /generate is asked for."""

    tokens: int  # most tokens of one answer

    def body(self, request) -> dict | Refusal:
        """The request's JSON; called before each try."""

    async def read(self, request, content: bytes, seconds: float) -> object | str:
        """The result in a response, or what is wrong with it: then the request is tried again."""


class _Generation:
    """Answers."""

    def __init__(self, sampling: Generation, context: int):
        self.sampling, self.context, self.tokens = sampling, context, sampling.max_new_tokens

    def body(self, request: Request) -> dict | Refusal:
        s, most = self.sampling, self._most(request)
        if most < 1:
            return _too_long(request, self.context)
        params = {"temperature": s.temperature, "max_new_tokens": most}
        if s.temperature > 0:  # the seed counts only with --enable-deterministic-inference
            params |= {"top_p": s.top_p, "sampling_seed": seed_of(s, request.id)}
        return {"input_ids": request.input_ids, "sampling_params": params}

    async def read(self, request: Request, content: bytes, seconds: float) -> Answer | str:
        return read_answer(request, content, seconds, self._most(request))

    def _most(self, request: Request) -> int:
        # SGLang refuses a prompt that leaves less room than max_new_tokens asks for: ask for what there is.
        return min(self.sampling.max_new_tokens, self.context - len(request.input_ids) - 1)


class _Capture:
    """Hidden states: one token is asked for, since SGLang prefills nothing for none, and forgotten."""

    tokens = 1

    def __init__(self, tickets: Path, context: int):
        self.tickets, self.context, self.number = tickets, context, count()
        self.rids: dict[str, str] = {}  # request id → the newest try's

    def body(self, request: CaptureRequest) -> dict | Refusal:
        if len(request.input_ids) + 2 > self.context:
            return _too_long(request, self.context)
        self._forget(request)
        # Of this try alone: what an earlier one still writes is the same rows, and must not pass for this one's.
        rid = f"{os.getpid()}-{next(self.number)}-{secrets.token_hex(4)}"
        self.rids[request.id] = rid
        write_json(self.tickets / f"{rid}.json", asdict(request.slot), durable=False)
        params = {"temperature": 0, "max_new_tokens": 1}
        return {"rid": rid, "input_ids": request.input_ids, "sampling_params": params}

    async def read(self, request: CaptureRequest, content: bytes, seconds: float) -> Captured | str:
        answer = read_answer(request, content, seconds, 1)
        if isinstance(answer, str):
            return answer
        path, deadline = self.tickets / self.rids[request.id], time.monotonic() + WRITTEN_WITHIN_S
        while not path.with_suffix(".done").exists():
            if path.with_suffix(".failed").exists():
                return f"the server could not write the states: {path.with_suffix('.failed').read_text()}"
            if time.monotonic() > deadline:
                return f"the server answered, and wrote fewer than {request.slot.rows} rows of states"
            await asyncio.sleep(0.002)
        self._forget(request)
        return Captured(request.id)

    def _forget(self, request: CaptureRequest) -> None:
        if rid := self.rids.pop(request.id, None):
            for suffix in ("json", "done", "failed"):
                (self.tickets / f"{rid}.{suffix}").unlink(missing_ok=True)


def _too_long(request: Request | CaptureRequest, context: int) -> Refusal:
    detail = f"{len(request.input_ids):,} tokens, the target's context holds {context:,}"
    return Refusal(request.id, "prompt_too_long", detail)


class _Flight:
    """The requests in flight."""

    def __init__(self, server: Server, asked: _Asked, tries: int, loop: asyncio.AbstractEventLoop):
        self.server, self.asked, self.tries, self.loop = server, asked, tries, loop
        self.tasks: set[asyncio.Task] = set()
        self.landed: deque[asyncio.Task] = deque()
        self.wake = asyncio.Event()
        self.mending = asyncio.Lock()  # one waits for the server, the others wait for that one
        self.generation = 0  # of the server: grows when it came back
        self.session = None

    def run(self, requests: Iterator, concurrency: int) -> Iterator:
        self.loop.run_until_complete(self._open())
        more = True
        while more or self.tasks or self.landed:
            while more and len(self.tasks) < concurrency:
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

        limit = 60 + self.asked.tokens / SLOWEST_TOKENS_PER_S
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

    async def _ask(self, request) -> object:
        import aiohttp

        headers = {"Content-Type": "application/json"}
        detail = ""
        for attempt in range(self.tries):
            if attempt:
                await asyncio.sleep(self._pause(attempt))
            body = self.asked.body(request)
            if isinstance(body, Refusal):
                return body
            data = orjson.dumps(body)
            generation = self.generation
            started = time.monotonic()
            try:
                async with self.session.post(f"{self.server.url}/generate", data=data, headers=headers) as response:
                    content = await response.read()
                    status, retry_after = response.status, response.headers.get("Retry-After")
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                detail = f"{type(error).__name__}: {error}"
                await self._mend(generation)
                continue
            if status == 200:
                result = await self.asked.read(request, content, time.monotonic() - started)
                if not isinstance(result, str):
                    return result
                detail = result
            elif status in (400, 413, 422):
                return refusal(request, status, content)
            else:
                detail = f"HTTP {status}: {content[:200]!r}"
                if status == 429 and (retry_after or "").isdigit():
                    await asyncio.sleep(min(int(retry_after), LONGEST_PAUSE_S))
        return Refusal(request.id, "failed", f"{self.tries} tries, the last: {detail}")

    async def _mend(self, generation: int) -> None:
        """After a lost connection: wait until the server answers again (once for all that lost theirs)."""
        async with self.mending:
            if generation == self.generation:
                await self.loop.run_in_executor(None, self.server.wait_ready)
                self.generation += 1

    @staticmethod
    def _pause(attempt: int) -> float:
        return random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)


def read_answer(request: Request | CaptureRequest, content: bytes, seconds: float, asked_tokens: int) -> Answer | str:
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


def refusal(request: Request | CaptureRequest, status: int, content: bytes) -> Refusal:
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


def algorithm_of(url: str) -> str | None:
    """By what a server speculates, as it says; ConnectionError when it is silent."""
    return _get(f"{url}/server_info").get("speculative_algorithm")


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
    return os.path.realpath(model) if os.path.isdir(model) else model.rstrip("/")
