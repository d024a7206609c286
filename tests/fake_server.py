"""A small real server that answers as SGLang does, and can be made to fail in many ways.

    python fake_server.py --port 30000 --starts starts.txt

`POST /generate` answers what `answer` computes, `GET /model_info` and `/health` as SGLang's. `POST /fault` takes JSON:
{"status": 500, "times": 3} answers so the next three times; {"garbage": 1}, bytes that are no JSON; {"drop": 1} closes
the connection without an answer; {"exit_after": 5} dies after five more answers; {"answer_s": 0.1} makes answers slow.
`GET /stats`: {"answers", "in_flight", "most_in_flight"}.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time

EOS = 2
CODE_BITS = 18  # the width of its states; Kimi has 163,840 tokens
PROBE = [1, 2, 3]  # what eyas asks to see whether a server is ready
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 503: "Service Unavailable"}


def answer(input_ids: list[int], max_new_tokens: int) -> tuple[list[int], str]:
    """Output ids and the type of finish_reason: by arithmetic, so that a test can say what must come."""
    total = sum(input_ids) + len(input_ids)
    whole = [3 + (total * 31 + k * 7) % 1000 for k in range(2 + total % 11)] + [EOS]
    return (whole, "stop") if len(whole) <= max_new_tokens else (whole[:max_new_tokens], "length")


def speculation(tokens: int, drafts: int) -> dict:
    """What meta_info tells of a draft: its first token is right at each step, the second never."""
    verified = -(-(tokens - 1) // 2)
    return {"spec_verify_ct": verified, "spec_correct_drafts_histogram": [0, verified, *[0] * (drafts - 1)]}


def ask(url: str, path: str = "/generate", body: dict | None = None, timeout_s: float = 5) -> dict:
    """One request to a fake server (a POST when there is a body); OSError when it fails."""
    from urllib.request import Request, urlopen

    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url + path, data), timeout=timeout_s) as response:
        return json.loads(response.read() or b"{}")


def probe(url: str) -> None:
    """A real answer, or an exception."""
    got = ask(url, body={"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 4}})
    assert got["output_ids"] == answer([5, 6], 4)[0]


def code(token: int) -> bytes:
    """A token as CODE_BITS numbers in bf16, each 1 or -1."""
    return b"".join(b"\x80\x3f" if token >> bit & 1 else b"\x80\xbf" for bit in range(CODE_BITS))


def capture(hooks: list, rid: str | None, input_ids: list[int]) -> bool:
    """As the capture hook does: each state spells the next token, which lm_head (see `code`) then proposes first."""
    for hook in hooks or []:
        ticket = os.path.join(hook["config"]["tickets"], f"{rid}.json")
        if os.path.exists(ticket):
            with open(ticket) as file:
                slot = json.load(file)
            last = b"".join(map(code, [*input_ids[1:], 0]))
            with open(slot["path"], "r+b") as file:
                for name, rows in (("aux", 3 * last), ("last", last)):
                    start, row_bytes = slot["places"][name]
                    assert len(rows) == slot["rows"] * row_bytes
                    file.seek(start)
                    file.write(rows)
            with open(ticket.removesuffix("json") + "done", "w"):
                return True
    return False


class Server:
    def __init__(self, options):
        self.options = options
        self.drafts = getattr(options, "drafts", None)  # of launch_server
        self.speculative_algorithm = options.speculative_algorithm if self.drafts else None
        self.fault = {"exit_after": options.exit_after, "answer_s": options.answer_s}
        self.answers = self.in_flight = self.most = 0

    async def connection(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                method, path = head.split(" ", 2)[:2]
                length = head.partition("content-length:")[2].partition("\r\n")[0]
                body = json.loads(await reader.readexactly(int(length))) if int(length or 0) else {}
                self.in_flight += 1
                self.most = max(self.most, self.in_flight)
                try:
                    status, content = await self.reply(method, path, body)
                finally:
                    self.in_flight -= 1
                if status == 0:  # drop
                    return
                parts = content if isinstance(content, list) else [content]
                parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts]
                writer.write(
                    b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % (status, REASONS.get(status, "Error").encode(), sum(map(len, parts)))
                )
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.05 * (len(parts) > 1))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def reply(self, method, path, body):
        if path == "/fault":
            self.fault.update(body)
            if body.get("exit_after") is not None:
                self.answers = 0
            return 200, {}
        if path == "/stats":
            return 200, {"answers": self.answers, "in_flight": self.in_flight, "most_in_flight": self.most}
        if self.options.never_ready:
            return 503, {"error": {"message": "loading"}}
        if path == "/health":
            return 200, b""
        if path in ("/model_info", "/get_model_info"):
            return 200, {"model_path": self.options.model, "is_generation": True}
        if path == "/server_info":
            info = {"version": self.options.version, "model_path": self.options.model, "pid": os.getpid()}
            return 200, {**info, "speculative_algorithm": self.options.speculates or self.speculative_algorithm}
        if path == "/v1/models":
            return 200, {"data": [{"id": self.options.model, "max_model_len": self.options.context}]}
        if (method, path) != ("post", "/generate"):
            return 404, {"detail": "Not Found"}
        return await self.generate(body)

    async def generate(self, body):
        if delay := self.fault.get("answer_s"):
            await asyncio.sleep(delay)
        if self.fault.get("times", 0) > 0:
            self.fault["times"] -= 1
            return self.fault["status"], {"error": {"message": "asked to fail"}}
        if self.take("garbage"):
            return 200, b'{"output_ids": [1, 2'
        if self.take("drop"):
            return 0, b""
        ids, sampling = body["input_ids"], body.get("sampling_params", {})
        if len(ids) >= self.options.context:
            message = (
                f"The input ({len(ids)} tokens) is longer than the model's context length "
                f"({self.options.context} tokens)."
            )
            return 400, {"error": {"message": message}}
        output_ids, kind = answer(ids, sampling.get("max_new_tokens", 128))
        if self.options.ends_at_once:
            output_ids, kind = [EOS], "stop"
        reason = {"type": kind, "matched": EOS} if kind == "stop" else {"type": kind, "length": len(output_ids)}
        self.answers += 1
        captured = capture(self.options.forward_hooks, body.get("rid"), ids)
        if self.options.answered and ids != PROBE and not captured and not body.get("stream"):
            with open(self.options.answered, "a") as file:
                file.write(f"{hash(tuple(ids))}\n")
        limit = self.fault.get("exit_after")
        if limit is not None and self.answers > limit:
            print("asked to crash", flush=True)
            os._exit(3)
        meta = {
            "id": body.get("rid", "0"),
            "finish_reason": reason,
            "prompt_tokens": len(ids),
            "completion_tokens": len(output_ids),
            "cached_tokens": 0,
        }
        if self.drafts:
            meta |= speculation(len(output_ids), self.drafts)
        answered = {"text": "", "output_ids": output_ids, "meta_info": meta}
        if body.get("stream"):
            started = {**answered, "output_ids": output_ids[:1]}
            return 200, [b"data: %s\n\n" % json.dumps(part).encode() for part in (started, answered)]
        return 200, answered

    def take(self, fault):
        if self.fault.get(fault, 0) > 0:
            self.fault[fault] -= 1
            return True
        return False


def fork_children(options):
    """What could be left behind: a child in the group; one orphaned, in its own session; one with an empty env."""
    for k in range(options.children):
        if os.fork() == 0:
            if k == 1:
                os.setsid()
                if os.fork():  # and orphaned at once
                    os._exit(0)
            if options.stubborn:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if k == 2:
                os.setsid()
                pause = "import signal\nwhile True: signal.pause()"
                os.execve(sys.executable, [sys.executable, "-c", pause, options.starts], {})
            while True:
                signal.pause()


async def serve(options):
    await asyncio.start_server(Server(options).connection, options.host, options.port, backlog=2048)
    print(f"listening on {options.port}", flush=True)
    await asyncio.Event().wait()


def add_options(parser):
    parser.add_argument("--port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--version", default="0.5.23")
    parser.add_argument("--context", type=int, default=4096, help="longer inputs are refused with 400")
    parser.add_argument("--starts", help="file that gets a line (pid, CUDA_VISIBLE_DEVICES) at each start")
    parser.add_argument(
        "--answered", help="file that gets a line (a hash of the prompt) at each answer that is wanted whole"
    )
    parser.add_argument("--delay-s", type=float, default=0, help="loading: seconds before it listens")
    parser.add_argument("--answer-s", type=float, default=0, help="seconds that each answer takes")
    parser.add_argument("--children", type=int, default=0, help="processes that it forks (see fork_children)")
    parser.add_argument("--stubborn", action="store_true", help="it and its children ignore SIGTERM")
    parser.add_argument("--never-ready", action="store_true", help="it listens, and answers 503 for ever")
    parser.add_argument("--exit-after", type=int, help="dies when asked for one more answer")
    parser.add_argument("--die", help="message with which it exits at once (code 1)")
    parser.add_argument("--port-taken", help="file that is made; when it was not there, somebody else has the port")
    parser.add_argument("--ends-at-once", action="store_true", help="every answer is empty")
    parser.add_argument("--forward-hooks", type=json.loads, help="those of a server that captures hidden states")
    parser.add_argument("--speculates", help="the algorithm that /server_info names")


def run(options):
    if options.starts:
        with open(options.starts, "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    fork_children(options)
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.die:
        sys.exit(options.die)
    time.sleep(options.delay_s)
    if options.port_taken and not os.path.exists(options.port_taken):
        open(options.port_taken, "w").close()
        thief = socket.create_server(("127.0.0.1", options.port))  # noqa: F841 (listens until this process ends)
        asyncio.run(serve(options))
    asyncio.run(serve(options))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="fake")
    add_options(parser)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
