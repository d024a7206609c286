"""Capture training shards ahead of the training, never more than capture.window of them (see eyas/window.py).

    python scripts/capture_ahead.py

train_draft.py starts it when the configuration has a window. Ends when the last shard of the last pass is captured, or
with --fill when the window is full.
"""

import argparse
import json
import time
from pathlib import Path

import capture_states
from eyas.config import load
from eyas.errors import EyasError, run_command
from eyas.progress import log_to_stderr
from eyas.window import POLL_S, window_of


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=Path, default=Path("hidden_states"), help="default: hidden_states")
    parser.add_argument("--corpus", type=Path, default=Path("corpus"), help="default: corpus")
    parser.add_argument("--vocabulary", type=Path, default=Path("draft_vocab/map.safetensors"))
    parser.add_argument("--state", type=Path, default=Path("state/train_draft"), help="default: state/train_draft")
    parser.add_argument("--fill", action="store_true", help="end when the window is full")
    parser.add_argument("--threads", type=int, help="of the embedded engine; default: as torch chooses")
    parser.add_argument("--configfile", type=Path, action="append", help="instead of config/*.yaml; may be repeated")
    parser.add_argument("--settings", type=json.loads, help="JSON of config.Config.train_settings")
    args = parser.parse_args(argv)
    log_to_stderr()
    settings = args.settings or load(args.configfile).train_settings()
    own = {key: settings[key] for key in ("capture", "target", "greedy")}
    window = window_of(settings, args.states, args.corpus, args.vocabulary, args.state)
    if window is None:
        raise EyasError("capture.window: null: there is no window to capture ahead in: run `snakemake captured`")
    threads = ["--threads", str(args.threads)] if args.threads else []
    while window.next < window.total:
        number = window.to_capture()
        if number is None:
            if args.fill or window.next + window.size >= window.total:
                return 0
            time.sleep(POLL_S)
            continue
        shard = ["--split", "train", "--shard", str(number % window.shards), "--corpus", str(args.corpus)]
        shard += ["--output-dir", str(window.folder.parent)]
        capture_states.main([*shard, *threads, "--settings", json.dumps(own)])
    return 0


if __name__ == "__main__":
    run_command(main)
