"""Runs inside the SGLang server: writes the states of each prompt where its ticket says, while the server prefills.

The server loads it by its own `--forward-hooks` and calls it after every logits processor, which has it all: the
post-norm last state, and the layers' states that `--enable-return-aux-hidden-states` made the model keep. A prompt's
chunks come one by one; each is written as it comes, at its own rows. Nothing else of the server is touched.

A ticket is a file <folder>/<request id>.json with a states.Slot. When all its rows are written the hook adds <request
id>.done, or <request id>.failed with the reason. Requests without a ticket are left alone.
"""

import json
import logging
import queue
import threading
from pathlib import Path

import torch

from eyas.states import Slot
from eyas.states_encoding import as_bytes, encode

QUEUE = 64  # pieces that wait to be written; then the model waits
logger = logging.getLogger(__name__)


def factory(config: dict) -> "CaptureHook":
    """What --forward-hooks names as hook_factory. config: {"tickets": folder}"""
    return CaptureHook(Path(config["tickets"]))


class CaptureHook:
    """The forward hook of a logits processor; its writes are done by a thread of its own."""

    def __init__(self, tickets: Path):
        self.tickets = tickets
        self.rank: int | None = None
        self.open: dict[str, _Ticket] = {}
        self.queue: queue.Queue = queue.Queue(QUEUE)
        threading.Thread(target=self._write, name="eyas-capture", daemon=True).start()

    def __call__(self, module: torch.nn.Module, inputs: tuple, output) -> None:
        """inputs: (input_ids, last [tokens, H], lm_head, forward batch, aux: [tokens, 3·H], or three [tokens, H])."""
        if len(inputs) < 5 or inputs[4] is None:
            return
        _, last, _, batch, aux = inputs[:5]
        if self.rank is None:
            self.rank = _rank()
        if self.rank or batch.extend_seq_lens_cpu is None or not batch.forward_mode.is_extend() or not batch.rids:
            return  # other ranks hold the same states
        start = 0
        for rid, first, count in zip(batch.rids, batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=False):
            rows = slice(start, start + count)
            start += count
            if ticket := self._ticket(rid):
                parts = aux[rows].split(last.shape[-1], dim=-1) if torch.is_tensor(aux) else [a[rows] for a in aux]
                states = encode([p.detach() for p in parts], last[rows].detach(), ticket.slot.encoding)
                self.queue.put((ticket, int(first), *_on_cpu(states)))

    def _ticket(self, rid: str) -> "_Ticket | None":
        if rid not in self.open:
            try:
                slot = json.loads((self.tickets / f"{rid}.json").read_bytes())
            except FileNotFoundError:
                return None
            self.open[rid] = _Ticket(self.tickets / rid, Slot(**slot))
        return self.open[rid]

    def _write(self) -> None:
        while True:
            ticket, first, states, copied = self.queue.get()
            try:
                if copied is not None:
                    copied.synchronize()
                ticket.slot.write(first, as_bytes(states))
                ticket.rows += len(states["last"])
                if ticket.rows >= ticket.slot.rows:
                    self._close(ticket, "done", "")
            except Exception as error:  # the server must live on; who asked is told
                logger.exception("eyas: capture failed")
                self._close(ticket, "failed", f"{type(error).__name__}: {error}")

    def _close(self, ticket: "_Ticket", how: str, text: str) -> None:
        self.open.pop(ticket.path.name, None)
        ticket.path.with_suffix(f".{how}").write_text(text)


class _Ticket:
    def __init__(self, path: Path, slot: Slot):
        self.path, self.slot, self.rows = path, slot, 0


def _rank() -> int:
    try:
        from sglang.srt.distributed import get_tensor_model_parallel_rank
    except ImportError:  # not inside a server
        return 0
    return get_tensor_model_parallel_rank()


def _on_cpu(states: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], "torch.cuda.Event | None"]:
    """Copies, and the event after which they are whole; the model may reuse its own memory at once."""
    if not states["last"].is_cuda:
        return {name: t.clone() for name, t in states.items()}, None
    copies = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for name, t in states.items()}
    for name, copy in copies.items():
        copy.copy_(states[name], non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copies, event
