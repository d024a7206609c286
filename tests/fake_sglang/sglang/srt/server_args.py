"""The flags that the stand-in takes."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

import fake_server


class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--tp", type=int, default=1)
        parser.add_argument("--trust-remote-code", action="store_true")
        parser.add_argument("--mem-fraction-static", type=float)
        parser.add_argument("--attention-backend", choices=["flashinfer", "triton"])
        parser.add_argument("--chunked-prefill-size", type=int)
        parser.add_argument("--cuda-graph-max-bs", type=int)
        parser.add_argument("--enable-mixed-chunk", action="store_true")
        parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8_e4m3"], default="auto")
        parser.add_argument("--disable-radix-cache", action="store_true")
        parser.add_argument("--cuda-graph-backend-prefill")
        parser.add_argument("--enable-return-aux-hidden-states", action="store_true")
        parser.add_argument("--return-aux-hidden-state-layer-ids", type=int, nargs="+")
        parser.add_argument("--speculative-algorithm")
        parser.add_argument("--speculative-draft-model-path")
        parser.add_argument("--speculative-num-steps", type=int)
        parser.add_argument("--speculative-eagle-topk", type=int)
        parser.add_argument("--speculative-num-draft-tokens", type=int)
        fake_server.add_options(parser)
