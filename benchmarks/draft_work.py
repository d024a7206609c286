"""Work for the draft's training: random states of a given size, optimizer steps on them, and their arithmetic."""

import time
from dataclasses import dataclass

import torch

from eyas.eagle3.model import Draft, DraftConfig
from eyas.eagle3.supervision import Batch, Objective, Plan, supervise
from eyas.eagle3.teacher import Teacher
from eyas.eagle3.ttt import training_time_test

SMOLLM2 = DraftConfig(
    hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
    vocab_size=49152, draft_vocab_size=8192, max_position_embeddings=8192, aux_layers=(2, 15, 27), rope_theta=1e5,
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """lengths: tokens of each document. prompt: the share of each, from its start, that is not supervised."""

    lengths: tuple[int, ...]
    prompt: float = 0.0


EQUAL = Kind((512,) * 8)
REAL = Kind((1960, 1240, 870, 610, 480, 350, 270, 200, 150, 110, 80, 50), prompt=0.5)


class Work:
    """A fresh draft of `config`, a random target head whose top-1 is one of the draft's tokens, AdamW.

    dtype: of the products, of the frozen embeddings, and of the head; the draft's own weights are fp32.
    """

    def __init__(self, config: DraftConfig, objective: Objective, dtype: torch.dtype, device: str = "cpu"):
        self.config, self.objective, self.dtype = config, objective, dtype
        self.generator = torch.Generator(device).manual_seed(0)
        vocab, kept = config.vocab_size, config.draft_vocab_size
        tokens = torch.arange(kept, device=device) * (vocab // kept)
        self.t2d = torch.zeros(vocab, dtype=torch.bool, device=device)
        self.t2d[tokens] = True
        head = self._normal(vocab, config.hidden_size) * 0.05
        head[~self.t2d] *= 0.25  # so that the top-1 is one of the draft's tokens
        embeddings = self._normal(vocab, config.hidden_size) * 0.05
        d2t = tokens - torch.arange(kept, device=device)
        self.draft = Draft.from_target(config, embeddings, head, d2t, self.t2d)
        self.teacher = Teacher(head, self.t2d)
        self.parameters = list(self.draft.trainable().values())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.generator.device).to(self.dtype)

    def batch(self, kind: Kind) -> Batch:
        """Random states and tokens."""
        device, total, size = self.generator.device, sum(kind.lengths), self.config.hidden_size
        offsets = torch.tensor([0, *kind.lengths]).cumsum(0)
        mask = torch.ones(total)
        for start, length in zip(offsets.tolist(), kind.lengths, strict=False):
            mask[start : start + int(kind.prompt * length)] = 0
        return Batch(
            torch.randint(self.config.vocab_size, (total,), generator=self.generator, device=device),
            mask.to(device),
            self._normal(total, len(self.config.aux_layers) * size),
            self._normal(total, size),
            offsets.to(device),
        )

    def step(self, batch: Batch) -> Plan:
        """One optimizer step, the teacher included."""
        plan = supervise(batch, self.teacher.targets(batch, self.objective), self.t2d, self.objective)
        device = self.generator.device.type
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            result = training_time_test(self.draft, batch, plan, self.objective)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss = result.loss.detach()
        return plan

    def timed(self, batch: Batch) -> float:
        """Seconds of one step."""
        start = time.perf_counter()
        self.step(batch)
        float(self.loss)  # waits for the device
        return time.perf_counter() - start


def step_flop(config: DraftConfig, batch: Batch, plan: Plan) -> dict[str, int]:
    """Operations of one step's matrix products, by part; what is made again in the backward does not count.

    A product of [n, a] by [a, b] is 2·n·a·b, its backward once for the weight and once for the input (not for fc's, the
    aux states; for the embeddings', since their norm is trained). Attention is counted as it is seen: a query at t of
    its document sees t + 1 keys of step 0.
    """
    c, rows = config, len(plan.rows)
    h, q, kv = c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    layers = len(c.aux_layers) * c.aux_size
    flop = {"fc": 2 * 2 * rows * layers * h, "embeddings' q, k, v": 3 * 2 * h * (len(plan.queries) * q + rows * 2 * kv)}
    layer = attention = 0
    for i, step in enumerate(plan.steps):
        n = len(step.active)
        layer += 3 * 2 * h * (n * (2 * q + 3 * c.intermediate_size) + (n if i else rows) * 2 * kv)
        attention += 3 * 4 * q * (int(plan.place[step.active].sum()) + n * (1 + i))
    predicted = len(plan.good) * len(plan.steps)
    masked = int(plan.targets.allowed.sum())
    return {
        **flop,
        "layer": layer,
        "attention": attention,
        "lm_head": 3 * 2 * predicted * h * c.draft_vocab_size,
        "teacher": 2 * h * (masked * c.vocab_size + len(plan.good) * c.draft_vocab_size),
    }
