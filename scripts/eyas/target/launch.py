"""What is to be launched, by the configuration: the server's command, its flags checked, the right server found.

The process is started in `keeper.guard`; `open_engine` and `open_drafting` give an engine that answers.
"""

import json
import logging
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from eyas.config import Evaluation, Sglang, Target
from eyas.errors import EyasError
from eyas.gpus import slurm_step
from eyas.layers import sglang_ids
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
ALGORITHM = "EAGLE3"  # for a draft of three layers
OWN_FLAGS = {"model-path", "model", "host", "port", "forward-hooks", "dp-size", "dp", "data-parallel-size"}
OWN_FLAGS |= {"enable-return-aux-hidden-states", "return-aux-hidden-state-layer-ids"}


@dataclass(frozen=True)
class Capturing:
    """What an engine that captures hidden states must know before it starts.

    layers: indexes into Hugging Face's output_hidden_states. default: whether these are what SGLang captures by itself.
    architecture: the target's, as its config.json names it. flags: of the server, where they differ from those that
    generate.
    """

    layers: tuple[int, int, int]
    default: bool
    architecture: str
    flags: dict


@dataclass(frozen=True)
class Drafting:
    """How a server speculates: `chain` tokens ahead in `topk` branches, `verified` tokens checked at once."""

    chain: int
    topk: int
    verified: int

    @classmethod
    def of(cls, evaluation: Evaluation) -> "Drafting":
        whole = cls.whole(evaluation.chain, evaluation.topk)
        return replace(whole, verified=evaluation.draft_tokens or whole.verified)

    @classmethod
    def whole(cls, chain: int, topk: int = 1) -> "Drafting":
        """With every token of the chain or tree verified, and the one before them."""
        return cls(chain, topk, 1 + chain * topk)

    def __str__(self) -> str:
        return f"chains of {self.chain}" if self.topk == 1 else f"trees of {self.chain} × {self.topk}"


@contextmanager
def open_engine(
    target: Target, state: Path, threads: int | None = None, capturing: Capturing | None = None
) -> Iterator[Engine]:
    """The target's engine, ready to be asked.

    state: folder of servers and their logs (state/server). threads: of the embedded engine (None: as torch chooses).
    """
    if target.engine == "transformers":
        import torch

        from eyas.target.embedded import Embedded

        if threads:
            torch.set_num_threads(threads)
        yield Embedded(target.model, layers=capturing.layers if capturing else None)
        return
    from eyas.target.sglang import RunningServer, SglangEngine

    sglang = target.sglang
    folder = server_folder(state)
    tickets = (folder / "tickets").absolute() if capturing else None
    if sglang.url is not None:
        if capturing:
            raise EyasError(
                "target.sglang.url: a server that runs already has no capture hook: leave url out, and eyas starts one"
            )
        with RunningServer(sglang.url, target.model) as server:
            yield SglangEngine(server)
        return
    check_flags(target, state)
    if capturing:
        refuse_flags(capturing.flags, "capture.flags")
        tickets.mkdir(parents=True, exist_ok=True)
        target = capturing_target(target, capturing, tickets)
        ask_flags(target, state / "capture")
    with _warm_server(target, folder) as server:
        yield SglangEngine(server, tickets)


@contextmanager
def open_drafting(target: Target, state: Path, draft: Path, drafting: Drafting | None, flags: dict) -> Iterator:
    """A server of the target that speculates with the draft of a folder, or (drafting None) one that does not.

    flags: see drafting_target; they are those of the server without a draft, too, but for what speculates.
    """
    if target.sglang.url is not None:
        raise EyasError("target.sglang.url: a server that runs already has no draft: leave url out, eyas starts one")
    check_flags(target, state)
    if drafting is None:
        merged = {k: v for k, v in _merged(target, flags).items() if not k.startswith("speculative")}
        served = _with_flags(target, merged)
    else:
        served = drafting_target(target, draft.absolute(), drafting, flags)
    ask_flags(served, state / ("plain" if drafting is None else "drafting"))
    with _warm_server(served, server_folder(state)) as server:
        yield server


def server_folder(state: Path) -> Path:
    """Where keeper and clients meet by locks and signals: one host, and under Slurm one step, or one allocation.

    A server runs on its devices and ends with it: no other job may count on it.
    """
    return state / "-".join(filter(None, (socket.gethostname(), slurm_step())))


def _merged(target: Target, flags: dict) -> dict:
    """The target's flags and, over them, others: name with dashes → value."""
    return {k.removeprefix("--").replace("_", "-"): v for k, v in (target.sglang.flags | flags).items()}


def _with_flags(target: Target, flags: dict) -> Target:
    return target.model_copy(update={"sglang": target.sglang.model_copy(update={"flags": flags})})


def _warm_server(target: Target, folder: Path):
    from eyas.target.sglang import probe
    from eyas.target.warm_server import WarmServer

    sglang = target.sglang
    return WarmServer(
        command=command(target),
        env=sglang.env,
        gpus=sglang.all_gpus,
        fingerprint={"model": target.model, **sglang.deciding},
        folder=folder,
        probe=probe,
        ready_timeout_s=sglang.ready_timeout_s,
        idle_s=sglang.idle_s,
        restarts=sglang.restarts,
        restart_window_s=sglang.restart_window_s,
    )


def capturing_target(target: Target, capturing: Capturing, tickets: Path) -> Target:
    """The target with the flags of a server that captures.

    `--enable-return-aux-hidden-states` makes the model keep the layers' states; EAGLE3 names the convention only, no
    draft is loaded. A cached prefix has no states: no radix cache. Hooks are not called from a replayed graph: none in
    prefill.
    """
    scripts = str(Path(__file__).resolve().parents[2])
    hook = {
        "name": "eyas-capture",
        "target_modules": ["logits_processor", "*.logits_processor"],
        "hook_factory": "eyas.target.capture_hook:factory",
        "config": {"tickets": str(tickets)},
    }
    flags = {
        "cuda-graph-backend-prefill": "disabled",
        **_merged(target, capturing.flags),
        "enable-return-aux-hidden-states": True,
        "speculative-algorithm": ALGORITHM,
        "disable-radix-cache": True,
        "forward-hooks": json.dumps([hook]),
    }
    if (ids := layer_flags(capturing)) is not None:
        flags["return-aux-hidden-state-layer-ids"] = ids
    path = os.pathsep.join(filter(None, [scripts, target.sglang.env.get("PYTHONPATH")]))
    served = target.sglang.model_copy(update={"flags": flags, "env": {**target.sglang.env, "PYTHONPATH": path}})
    return target.model_copy(update={"sglang": served})


def drafting_target(target: Target, draft: Path, drafting: Drafting, flags: dict) -> Target:
    """The target with the flags of a server that speculates with the draft in a folder.

    flags: where they differ from those that answer. EyasError for an algorithm that would accept nothing, in silence:
    EAGLE feeds a draft of three layers the last state alone.
    """
    wanted = _merged(target, flags)
    algorithm = wanted.get("speculative-algorithm", ALGORITHM)
    if algorithm != ALGORITHM:
        raise EyasError(
            f"evaluate.flags.speculative-algorithm: {algorithm}: a draft of three layers needs {ALGORITHM}; with "
            "another one it runs, and nothing is accepted: leave the flag out"
        )
    speculative = {
        "speculative-algorithm": ALGORITHM,
        "speculative-draft-model-path": str(draft),
        "speculative-num-steps": drafting.chain,
        "speculative-eagle-topk": drafting.topk,
        "speculative-num-draft-tokens": drafting.verified,
    }
    for key in sorted(speculative.keys() & wanted.keys() - {"speculative-algorithm"}):
        raise EyasError(f"evaluate.flags.{key}: eyas sets this itself (evaluate.chain, topk): leave it out")
    return _with_flags(target, {**wanted, **speculative})


def layer_flags(capturing: Capturing) -> list[str] | None:
    """The ids that make SGLang capture these layers; None: its own choice is these."""
    return None if capturing.default else [str(i) for i in sglang_ids(capturing.layers, capturing.architecture)]


def command(target: Target) -> list[str]:
    """The server's command line; {port} stands for the port."""
    head = [_interpreter(target.sglang), "-m", "sglang.launch_server", "--model-path", target.model]
    return [*head, "--host", "127.0.0.1", "--port", "{port}", *arguments(target.sglang)]


def arguments(sglang: Sglang) -> list[str]:
    """The flags as arguments: true is a switch, false leaves it out, a list follows its flag."""
    out = ["--dp-size", str(sglang.replicas)] if sglang.replicas > 1 else []
    for key, value in sglang.flags.items():
        flag = "--" + key.removeprefix("--").replace("_", "-")
        if value is True:
            out.append(flag)
        elif value is not False:
            out += [flag, *(map(str, value) if isinstance(value, list) else [str(value)])]
    return out


def check_flags(target: Target, state: Path) -> None:
    """Refuse what the server's own version would not take, and what eyas sets itself, before anything starts."""
    refuse_flags(target.sglang.flags, "target.sglang.flags")
    ask_flags(target, state)


def refuse_flags(flags: dict, where: str) -> None:
    """EyasError for a flag that is not the user's to set."""
    for key in flags:
        plain = key.removeprefix("--").replace("_", "-")
        if plain.startswith("speculative"):
            raise EyasError(f"{where}.{key}: answers and states come from the plain target: leave it out")
        if plain in OWN_FLAGS:
            raise EyasError(f"{where}.{key}: eyas sets this itself: leave it out")


def ask_flags(target: Target, state: Path) -> None:
    """Let the server's own version parse the target's flags; EyasError names the key.

    Asking takes ten seconds or more (the interpreter imports SGLang), so what was found sound is remembered in `state`.
    """
    sglang = target.sglang
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
