"""The processes that train together: one alone, or those that torchrun started (DDP or FSDP2)."""

import os
import signal
from collections.abc import Iterable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from eyas.compute import fast_dtype
from eyas.config import Training
from eyas.eagle3.model import Draft
from eyas.errors import EyasError


class World:
    """rank, size, device of this process; what they compute together. A context manager."""

    def __init__(self, device: str | None = None):
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        local = int(os.environ.get("LOCAL_RANK", 0))
        if device is None:
            device = f"cuda:{local}" if torch.cuda.is_available() else "cpu"
        self.device, self.asked_to_stop = torch.device(device), 0

    def __enter__(self) -> "World":
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.size > 1:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        return self

    def __exit__(self, *exc) -> None:
        if self.size > 1:
            dist.destroy_process_group()

    def watch_signals(self) -> None:
        """SIGINT and SIGTERM ask for a stop at the next step's end."""

        def ask(number, frame):
            self.asked_to_stop = 1

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)

    def summed(self, tensor: Tensor) -> Tensor:
        """Over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def first(self, value: float) -> float:
        """The first process's value: what all decide by must be one."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def compute_dtype(self, precision: str) -> torch.dtype:
        """auto: bf16 where products in it are fast."""
        wanted = torch.float32 if precision == "fp32" else torch.bfloat16
        return fast_dtype(wanted, self.device) if precision == "auto" else wanted

    def wrapped(self, draft: Draft, training: Training) -> nn.Module:
        """The draft on this device, its gradients shared by the processes."""
        draft.to(self.device)
        if self.size == 1:
            return draft
        if training.sharding == "fsdp":
            from torch.distributed.fsdp import fully_shard

            if training.optimizer == "muon":
                raise EyasError("train.sharding: fsdp cuts matrices apart, which muon needs whole: use ddp, or adamw")
            return fully_shard(draft, ignored_params={draft.embed_tokens.weight})
        from torch.nn.parallel import DistributedDataParallel

        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(draft, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True)

    def syncing(self, model: nn.Module, now: bool):
        """Gradients are shared in the last backward of a step alone."""
        if hasattr(model, "set_requires_gradient_sync"):  # FSDP2
            model.set_requires_gradient_sync(now)
            return nullcontext()
        return nullcontext() if now or self.size == 1 else model.no_sync()

    def plain(self, model: nn.Module) -> nn.Module:
        """Without DDP's hooks, for what has no gradients; FSDP needs its own."""
        return getattr(model, "module", model)

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> Tensor:
        """Scale the gradients down to a norm of `most`; gives the norm before."""
        norm = nn.utils.clip_grad_norm_(list(parameters), most)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def whole_draft(self, model: nn.Module, draft: Draft) -> Draft:
        """The draft with whole parameters, on the first process."""
        if not hasattr(model, "set_requires_gradient_sync"):
            return draft
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        with torch.device("meta"):
            whole = Draft(draft.config)
        if self.rank == 0:
            whole.load_state_dict(state, assign=True, strict=False)
        return whole

    def memory_gb(self) -> float:
        """The most that this process had at once: on its GPU, or resident."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 1e9
        with open("/proc/self/status") as file:
            peak = next(line for line in file if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024 / 1e9
