"""From the configuration to an engine that answers: the server's command, its flags checked, the right server found."""

import json
import logging
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eyas.config import Sglang, Target
from eyas.errors import EyasError
from eyas.target.engine import Engine

# Run by the server's own interpreter: its version, and what its own parser says of the flags.
CHECK = """
import argparse, contextlib, importlib.metadata, io, json, sys
out = {"version": importlib.metadata.version("sglang")}
if out["version"] == sys.argv[1]:
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser(prog="sglang", allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    out["known"] = sorted(o.removeprefix("--") for a in parser._actions for o in a.option_strings if o.startswith("--"))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(sys.argv[2:])
    except SystemExit:
        out["problem"] = said.getvalue().strip().splitlines()[-1:]
print("EYAS" + json.dumps(out))
"""
CHECK_TIMEOUT_S = 300


@contextmanager
def open_engine(target: Target, state: Path, threads: int | None = None) -> Iterator[Engine]:
    """The target's engine, ready to be asked.

    state: folder of servers and their logs (state/server). threads: of the embedded engine (None: as torch chooses).
    """
    if target.engine == "transformers":
        import torch

        from eyas.target.embedded import Embedded

        if threads:
            torch.set_num_threads(threads)
        yield Embedded(target.model)
        return
    from eyas.target.server import WarmServer
    from eyas.target.sglang import RunningServer, SglangEngine, probe

    sglang = target.sglang
    if sglang.url is not None:
        with RunningServer(sglang.url, target.model) as server:
            yield SglangEngine(server)
        return
    check_flags(target, state)
    deciding = sglang.model_dump(mode="json", include={"python", "version", "flags", "env", "gpus"})
    with WarmServer(
        command=command(target),
        env=sglang.env,
        gpus=sglang.gpus,
        fingerprint={"model": target.model, **deciding},
        folder=state / socket.gethostname(),  # keeper and clients meet by locks and signals: one host
        probe=probe,
        ready_timeout_s=sglang.ready_timeout_s,
        idle_s=sglang.idle_s,
        restarts=sglang.restarts,
        restart_window_s=sglang.restart_window_s,
    ) as server:
        yield SglangEngine(server)


def command(target: Target) -> list[str]:
    """The server's command line; {port} stands for the port."""
    head = [_interpreter(target.sglang), "-m", "sglang.launch_server", "--model-path", target.model]
    return [*head, "--host", "127.0.0.1", "--port", "{port}", *arguments(target.sglang)]


def arguments(sglang: Sglang) -> list[str]:
    """The flags as arguments: true is a switch, false leaves it out, a list follows its flag."""
    out = []
    for key, value in sglang.flags.items():
        flag = "--" + key.removeprefix("--").replace("_", "-")
        if value is True:
            out.append(flag)
        elif value is not False:
            out += [flag, *(map(str, value) if isinstance(value, list) else [str(value)])]
    return out


def check_flags(target: Target, state: Path) -> None:
    """Refuse what the server's own version would not take, before anything starts; EyasError names the key.

    Asking takes ten seconds or more (the interpreter imports SGLang), so what was found sound is remembered in `state`.
    """
    sglang = target.sglang
    for key in sglang.flags:
        plain = key.removeprefix("--").replace("_", "-")
        if plain.startswith("speculative"):
            raise EyasError(f"target.sglang.flags.{key}: answers come from the plain target: leave it out")
        if plain in ("model-path", "model", "host", "port"):
            raise EyasError(f"target.sglang.flags.{key}: eyas sets this itself: leave it out")
    asked = json.dumps([sglang.python, sglang.version, sglang.env, arguments(sglang)])
    remembered = state / "flags.json"
    try:
        if remembered.read_text() == asked:
            return
    except OSError:
        pass
    said = _ask(target)
    if said["version"] != sglang.version:
        raise EyasError(
            f"target.sglang.version: {sglang.python} has SGLang {said['version']}, expected {sglang.version}: "
            "install the pinned one (envs/sglang.txt), or change the key"
        )
    if problem := said.get("problem"):
        raise EyasError(f"target.sglang.flags: {_named(sglang, said['known'], problem[0])}")
    remembered.parent.mkdir(parents=True, exist_ok=True)
    remembered.write_text(asked)


def _named(sglang: Sglang, known: list[str], problem: str) -> str:
    """The parser's words, with the nearest flag when one is unknown."""
    from difflib import get_close_matches

    unknown = [k for k in sglang.flags if k.removeprefix("--").replace("_", "-") not in known]
    hints = []
    for key in unknown:
        close = get_close_matches(key.replace("_", "-"), known, n=1)
        hints.append(f"{key}: no such flag" + (f" (did you mean {close[0]!r}?)" if close else ""))
    return "; ".join(hints) or problem


def _ask(target: Target) -> dict:
    sglang = target.sglang
    python = _interpreter(sglang)
    asked = [python, "-c", CHECK, sglang.version, "--model-path", target.model, *arguments(sglang)]
    logging.info("asking %s whether it knows these flags", python)
    try:
        done = subprocess.run(
            asked,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            env={**os.environ, **sglang.env},
            check=False,
        )
    except OSError as error:
        raise EyasError(
            f"target.sglang.python: {python} does not run ({error.strerror}): make the environment (`make sglang`), "
            "or name its interpreter"
        ) from None
    except subprocess.TimeoutExpired:
        raise EyasError(f"target.sglang.python: {python} did not import SGLang in {CHECK_TIMEOUT_S} s") from None
    for line in done.stdout.splitlines():
        if line.startswith("EYAS"):
            return json.loads(line.removeprefix("EYAS"))
    tail = "\n".join(done.stderr.splitlines()[-15:])
    raise EyasError(f"target.sglang.python: SGLang cannot be imported by {python}:\n{tail}")


def _interpreter(sglang: Sglang) -> str:
    """The interpreter's path; made absolute without following links (a venv's python is a link)."""
    return os.path.abspath(sglang.python) if os.sep in sglang.python else sglang.python
