"""Capture training shards ahead of the training, never more than capture.window of them (see eyas/window.py).

    python scripts/capture_ahead.py

train_draft.py starts it when the configuration has a window. Ends when the last shard of the last pass is captured, or
with --fill when the window is full.
"""

import json
import time

import capture_states
from eyas.commands import add_path, add_settings, add_threads, log_to_stderr, parser_of, run_command
from eyas.config import load
from eyas.errors import EyasError
from eyas.window import POLL_S, window_of


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--states", "hidden_states")
    add_path(parser, "--corpus", "corpus")
    add_path(parser, "--vocabulary", "draft_vocab/map.safetensors")
    add_path(parser, "--state", "state/train_draft")
    parser.add_argument("--fill", action="store_true", help="end when the window is full")
    add_threads(parser)
    add_settings(parser)
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
