"""The embedded engine: a transformers model in this process, on a CPU or a GPU, without a server.

Every step feeds one flat sequence to the model: the newest token of each running row, then the whole prompts of rows
that join. transformers' own modules compute all of it but attention, which is replaced (AttentionInterface) by one
that knows where each row begins and holds its keys and values. So nothing is padded but attention in decode, a
finished row's place is taken in the next step, and one loop serves every architecture whose attention can be replaced.

Rows of like length share a pen: one tensor of keys and one of values a layer, one attention call for all of them. A row
that outgrows its pen moves to the next. Attention in decode is two batched products over whole pens: on a CPU, SDPA
takes twice their time there, and so do products over a part of each row. What is measured on a CPU in bf16: two jobs of
one thread each give a third more tokens than one job of two, since small operations do not wait for a second core.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from eyas.config import Generation
from eyas.errors import EyasError
from eyas.states_encoding import as_bytes, encode
from eyas.target.engine import Answer, Captured, CaptureRequest, Refusal, Request, seed_of
from eyas.target.weights import load_model

ATTENTION = "eyas_pens"
PROMPT_TOKENS = 1024  # a step takes prompts until they have so many tokens
SMALLEST_PEN = 64  # tokens; each next pen holds twice as many
PLACES = 8  # a pen grows by so many rows, or by half
NUCLEUS = 256  # tokens looked at first for top_p; more when they do not hold it
ATTENTION_KINDS = {"full_attention", "sliding_attention"}
CHECK_TOKENS = 24  # length of the sequence that is compared with transformers' own attention


class Embedded:
    """Answers with a model in this process.

    model: a folder or a Hub repository. stop_ids: tokens that end an answer; None: the model's own. context: most
    tokens of a prompt and its answer; None: the model's own limit. layers: whose states `capture` gives, as indexes
    into output_hidden_states. Threads are torch's setting.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        stop_ids: set[int] | None = None,
        device: str | None = None,
        context: int | None = None,
        layers: tuple[int, ...] | None = None,
    ):
        self.name, self.layers = Path(model).name, layers
        self.model = load_model(model, ATTENTION, device)
        self.device = self.model.device
        if self.device.type == "cpu":
            _pack(self.model)
        config = self.model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ()) - ATTENTION_KINDS
        if kinds or getattr(config, "attention_chunk_size", None) or not self.model._supports_attention_backend:
            raise EyasError(
                f"target {model}: the embedded engine replaces attention, which {type(self.model).__name__} does not "
                f"allow ({', '.join(sorted(kinds)) or 'it has no attention interface'}): set target.engine to sglang"
            )
        self.vocabulary = self.model.get_input_embeddings().num_embeddings
        own = getattr(config, "max_position_embeddings", None)
        self.context = context or own
        if self.context is None or (own and self.context > own):
            raise EyasError(f"target {model}: context {context} does not fit: the model's own limit is {own}")
        if stop_ids is None:
            own_stop = self.model.generation_config.eos_token_id
            if own_stop is None:
                raise EyasError(f"target {model}: generation_config.json names no eos_token_id: add it there")
            stop_ids = {own_stop} if isinstance(own_stop, int) else set(own_stop)
        self.stop_ids = frozenset(stop_ids)
        self._check_attention(str(model))

    def generate(self, requests: Iterable[Request], sampling: Generation) -> Iterator[Answer | Refusal]:
        """One Answer or Refusal for each request, as they come.

        Requests are taken in this thread, between two steps of the model: while the next one is waited for, all wait.
        """
        requests, more, pens = iter(requests), True, {}
        while True:
            joining, running = [], sum(len(pen.rows) for pen in pens.values())
            while (
                more
                and running + len(joining) < sampling.concurrency
                and sum(len(row.prompt) for row in joining) < PROMPT_TOKENS
            ):
                request = next(requests, None)
                if request is None:
                    more = False
                elif refusal := self._refusal(request):
                    yield refusal
                else:
                    joining.append(_Row.of(request, sampling, self.context))
            if not joining and not running:
                return
            try:
                rows, logits = self._step(pens, joining)
            except torch.OutOfMemoryError as error:
                raise EyasError(f"target {self.name}: {error}: lower generate.concurrency") from None
            for row, token in zip(rows, _choose(logits, rows, sampling), strict=True):
                row.output.append(token)
            yield from self._finished(pens)

    def capture(self, requests: Iterable[CaptureRequest], concurrency: int) -> Iterator[Captured | Refusal]:
        """See engine.Engine; samples are prefilled together until they have PROMPT_TOKENS."""
        batch: list[CaptureRequest] = []
        for request in requests:
            if refusal := self._refusal(request):
                yield refusal
                continue
            batch.append(request)
            if sum(len(r.input_ids) for r in batch) >= PROMPT_TOKENS or len(batch) == concurrency:
                yield from self._capture(batch)
                batch = []
        yield from self._capture(batch)

    @torch.inference_mode()
    def _capture(self, batch: list[CaptureRequest]) -> list[Captured]:
        if not batch:
            return []
        step, pens, ids, positions = _Step(), {}, [], []
        for request in batch:
            pen = _pen_for(pens, len(request.input_ids))
            pen.rows.append(_Row(request.id, request.input_ids, 0, 0.0, torch.Generator()))
            start = len(ids)
            ids += request.input_ids
            positions += range(len(request.input_ids))
            step.joining.append(_Joining(pen, len(pen.rows) - 1, start, len(ids)))
        out = self.model.get_decoder()(
            input_ids=torch.tensor([ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            output_hidden_states=True,
            eyas_step=step,
        )
        aux, last = [out.hidden_states[layer][0] for layer in self.layers], out.last_hidden_state[0]  # [tokens, H] each
        for request, join in zip(batch, step.joining, strict=True):
            rows = slice(join.start, join.stop)
            states = encode([a[rows] for a in aux], last[rows], request.slot.encoding)
            request.slot.write(0, as_bytes({name: t.cpu() for name, t in states.items()}))
        return [Captured(request.id) for request in batch]

    def _refusal(self, request: Request | CaptureRequest) -> Refusal | None:
        if len(request.input_ids) >= self.context:
            detail = f"{len(request.input_ids)} tokens leave no room for an answer in a context of {self.context}"
            return Refusal(request.id, "prompt_too_long", detail)
        if not request.input_ids:
            return Refusal(request.id, "refused", "the prompt has no token")
        if not all(0 <= token < self.vocabulary for token in request.input_ids):
            return Refusal(request.id, "refused", f"a token id is outside the vocabulary of {self.vocabulary}")
        return None

    @torch.inference_mode()
    def _step(self, pens: dict[int, "_Pen"], joining: list["_Row"]) -> tuple[list["_Row"], torch.Tensor]:
        """One token further: the rows that ran or joined, and the logits of each, [rows, vocabulary] in fp32."""
        _move_grown(pens)
        step, rows, ids, positions, last = _Step(), [], [], [], []
        for pen in pens.values():
            start = len(ids)
            for row in pen.rows:
                ids.append(row.output[-1])
                positions.append(row.length - 1)
            rows += pen.rows
            step.running.append(_Running.of(pen, start, positions[start:], self.device))
        last += range(len(ids))
        for row in joining:
            pen = _pen_for(pens, row.length)
            pen.rows.append(row)
            step.joining.append(_Joining(pen, len(pen.rows) - 1, len(ids), len(ids) + row.length))
            rows.append(row)
            ids += row.prompt
            positions += range(row.length)
            last.append(len(ids) - 1)
        logits = self._forward(ids, positions, last, step)
        return rows, logits.float()

    def _forward(self, ids: list[int], positions: list[int], last: list[int], step: "_Step") -> torch.Tensor:
        """Logits at the indexes `last` of one flat sequence, [last, vocabulary]."""
        keep = torch.tensor(last, device=self.device)
        logits = self.model(
            input_ids=torch.tensor([ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,  # the pens are the cache
            logits_to_keep=keep,
            eyas_step=step,
        ).logits[0]
        if not step.seen:
            raise EyasError(
                f"{type(self.model).__name__} does not call the attention it was given: set target.engine to sglang"
            )
        return logits if len(logits) == len(last) else logits[keep]

    @torch.inference_mode()
    def _finished(self, pens: dict[int, "_Pen"]) -> list[Answer]:
        """The answers that are complete; their rows leave the pens."""
        now = time.monotonic()
        answers = []
        for pen in pens.values():
            for place in reversed(range(len(pen.rows))):
                row = pen.rows[place]
                reason = "stop" if row.output[-1] in self.stop_ids else "length" if row.full else None
                if reason:
                    answers.append(Answer(row.id, row.output, reason, now - row.since))
                    pen.drop(place)
        for capacity in [c for c, pen in pens.items() if not pen.rows]:
            del pens[capacity]
        return answers

    @torch.inference_mode()
    def _check_attention(self, model: str) -> None:
        """EyasError when prompt and decode through the pens do not give what transformers' own attention gives."""
        ids = torch.linspace(0, self.vocabulary - 1, CHECK_TOKENS).long().tolist()
        row = _Row("check", ids[:-4], len(ids), 0.0, torch.Generator())
        pens, found = {}, []
        for token in [*ids[-4:], None]:
            found.append(self._step(pens, [] if row.output else [row])[1])
            row.output.append(token)
        self.model.set_attn_implementation("eager")
        expected = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0, -5:].float()
        self.model.set_attn_implementation(ATTENTION)
        error = ((torch.cat(found) - expected).norm() / expected.norm()).item()
        if not error < (0.1 if self.model.dtype in (torch.bfloat16, torch.float16) else 1e-3):
            raise EyasError(
                f"target {model}: the embedded engine's logits differ from transformers' own by {error:.1%}: "
                "its attention is not known here; set target.engine to sglang"
            )


class _PackedLinear(torch.nn.Module):
    """A bf16 linear layer whose weights lie as oneDNN reads them: 1.1 to 1.6 times as fast with few rows."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def _pack(model: torch.nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear and child.weight.dtype == torch.bfloat16:
                setattr(module, name, _PackedLinear(child))


@dataclass
class _Row:
    """A request on its way."""

    id: str
    prompt: list[int]
    room: int  # tokens that the answer may have
    since: float
    dice: torch.Generator
    output: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, sampling: Generation, context: int) -> "_Row":
        room = min(sampling.max_new_tokens, context - len(request.input_ids))
        dice = torch.Generator().manual_seed(seed_of(sampling, request.id))
        return cls(request.id, request.input_ids, room, time.monotonic(), dice)

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return len(self.prompt) + len(self.output)

    @property
    def full(self) -> bool:
        return len(self.output) >= self.room


class _Pen:
    """Rows of at most `capacity` tokens; their keys and values, one tensor a layer.

    Row i of `rows` lies at index i of each tensor [places, heads, capacity, dim]. What lies behind a row's end is
    finite (zeros, or what another row left): attention masks it, and a mask does not stop a NaN.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.rows: list[_Row] = []
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def place(self, cache: dict[int, torch.Tensor], layer: int, like: torch.Tensor) -> torch.Tensor:
        """The tensor of one layer with a place for each row; `like`: what goes there, [tokens, heads, dim]."""
        held = cache.get(layer)
        if held is None or len(held) < len(self.rows):
            places = 0 if held is None else len(held) + len(held) // 2
            places = -(-max(places, len(self.rows)) // PLACES) * PLACES
            grown = like.new_zeros(places, like.shape[1], self.capacity, like.shape[2])
            if held is not None:
                grown[: len(held)] = held
            held = cache[layer] = grown
        return held

    def drop(self, place: int) -> None:
        """Let a row go; the last row takes its place."""
        row = self.rows.pop()
        if place == len(self.rows):
            return
        self.rows[place] = row
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[place, :, : row.length] = tensor[len(self.rows), :, : row.length]

    def take(self, other: "_Pen", place: int) -> None:
        """Move a row here from a smaller pen."""
        self.rows.append(other.rows[place])
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for layer, tensor in theirs.items():
                held = self.place(mine, layer, tensor[place].transpose(0, 1))
                held[len(self.rows) - 1, :, : other.capacity] = tensor[place]
        other.drop(place)


def _pen_for(pens: dict[int, _Pen], length: int) -> _Pen:
    capacity = SMALLEST_PEN
    while capacity < length:
        capacity *= 2
    return pens.setdefault(capacity, _Pen(capacity))


def _move_grown(pens: dict[int, _Pen]) -> None:
    for pen in list(pens.values()):
        for place in reversed(range(len(pen.rows))):
            if pen.rows[place].length > pen.capacity:
                _pen_for(pens, pen.rows[place].length).take(pen, place)
        if not pen.rows:
            del pens[pen.capacity]


@dataclass
class _Running:
    """The rows of one pen, a token each: [start, stop) of the flat sequence."""

    pen: _Pen
    start: int
    stop: int
    positions: torch.Tensor  # [rows]: where each token's key goes
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    places: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, pen: _Pen, start: int, positions: list[int], device: torch.device) -> "_Running":
        return cls(pen, start, start + len(positions), torch.tensor(positions, device=device))

    def write(self, tensor: torch.Tensor, tokens: torch.Tensor) -> None:
        """Put the new keys or values, [rows, heads, dim], where they belong in a layer of the pen."""
        heads, capacity, dim = tensor.shape[1:]
        if heads not in self.places:
            lines = torch.arange(len(tokens) * heads, device=tensor.device).view(-1, heads)  # of `capacity` tokens
            self.places[heads] = (lines * capacity + self.positions[:, None]).view(-1)
        tensor.view(-1, dim).index_copy_(0, self.places[heads], tokens.reshape(-1, dim))

    def mask(self, window: int | None) -> torch.Tensor:
        """What is added to the scores, [rows, 1, capacity]; window: only so many last keys are seen."""
        if window not in self.masks:
            key, query = torch.arange(self.pen.capacity, device=self.positions.device), self.positions[:, None]
            hidden = key > query
            if window is not None:
                hidden |= key <= query - window
            mask = torch.zeros(hidden.shape, device=hidden.device)
            self.masks[window] = mask.masked_fill_(hidden, float("-inf"))[:, None]
        return self.masks[window]


@dataclass
class _Joining:
    """A prompt: [start, stop) of the flat sequence, and its place in a pen."""

    pen: _Pen
    place: int
    start: int
    stop: int


@dataclass
class _Step:
    """What attention must know about the flat sequence of one step."""

    running: list[_Running] = field(default_factory=list)
    joining: list[_Joining] = field(default_factory=list)
    seen: bool = False  # whether the model called attention at all


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, tokens, dim]
    key: torch.Tensor,  # [1, key heads, tokens, dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    eyas_step: _Step | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Attention of one flat step: [1, tokens, heads, dim]. Keys and values go to the pens on the way."""
    if eyas_step is None or softcap is not None or s_aux is not None:
        raise EyasError(
            f"{type(module).__name__} asks for what the embedded engine's attention does not have (soft caps, sinks, "
            "or it drops the arguments of a step): set target.engine to sglang"
        )
    eyas_step.seen = True
    layer, heads, groups = module.layer_idx, query.shape[1], query.shape[1] // key.shape[1]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [tokens, heads, dim]
    outputs = []
    for run in eyas_step.running:
        part, rows = slice(run.start, run.stop), run.stop - run.start
        keys = run.pen.place(run.pen.keys, layer, k)  # [places, key heads, capacity, dim]
        values = run.pen.place(run.pen.values, layer, v)
        run.write(keys, k[part])
        run.write(values, v[part])
        asked = q[part].reshape(rows * key.shape[1], groups, -1)  # [rows × key heads, groups, dim]
        scores = torch.bmm(asked, keys[:rows].flatten(0, 1).transpose(1, 2)).view(rows, heads, -1).float()
        scores.mul_(q.shape[-1] ** -0.5 if scaling is None else scaling)
        weights = scores.add_(run.mask(sliding_window)).softmax(-1).to(v.dtype)
        attended = torch.bmm(weights.view(len(asked), groups, -1), values[:rows].flatten(0, 1))
        outputs.append(attended.view(rows, heads, -1))
    for join in eyas_step.joining:
        part, tokens = slice(join.start, join.stop), join.stop - join.start
        join.pen.place(join.pen.keys, layer, k)[join.place, :, :tokens] = key[0, :, part]
        join.pen.place(join.pen.values, layer, v)[join.place, :, :tokens] = value[0, :, part]
        windowed = sliding_window is not None and sliding_window < tokens
        attended = F.scaled_dot_product_attention(
            query[:, :, part],
            key[:, :, part],
            value[:, :, part],
            attn_mask=_window_mask(tokens, sliding_window, query.device) if windowed else None,
            is_causal=not windowed,
            enable_gqa=groups > 1,
            scale=scaling,
        )
        outputs.append(attended[0].transpose(0, 1))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None], None


def _window_mask(tokens: int, window: int, device: torch.device) -> torch.Tensor:
    """Whether a query sees a key, [tokens, tokens]."""
    at = torch.arange(tokens, device=device)
    behind = at[:, None] - at
    return (behind >= 0) & (behind < window)


AttentionInterface.register(ATTENTION, _attend)


@torch.inference_mode()
def _choose(logits: torch.Tensor, rows: list[_Row], sampling: Generation) -> list[int]:
    """The next token of each row; logits: [rows, vocabulary]."""
    if sampling.temperature == 0:
        return logits.argmax(-1).tolist()
    draws = torch.cat([torch.rand(1, generator=row.dice) for row in rows]).to(logits.device)
    return _sample((logits / sampling.temperature).softmax(-1), draws, sampling.top_p, NUCLEUS).tolist()


def _sample(probabilities: torch.Tensor, draws: torch.Tensor, top_p: float, head: int) -> torch.Tensor:
    """Token ids, [rows]: each draw in [0, 1) picks from the fewest, likeliest tokens that have top_p together."""
    vocabulary = probabilities.shape[-1]
    if top_p == 1:
        return _pick(probabilities, draws)
    likeliest, ids = probabilities.topk(min(head, vocabulary))  # sorted
    before = likeliest.cumsum(-1) - likeliest
    chosen = ids.gather(-1, _pick(likeliest * (before < top_p), draws)[:, None])[:, 0]
    wider = likeliest.sum(-1) < top_p
    if head < vocabulary and wider.any():
        chosen[wider] = _sample(probabilities[wider], draws[wider], top_p, 8 * head)
    return chosen


def _pick(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Index into each row of `weights`, drawn in proportion to them."""
    mass = weights.double().cumsum(-1)
    found = torch.searchsorted(mass, draws.double()[:, None] * mass[:, -1:], right=True)[:, 0]
    return found.clamp(max=weights.shape[-1] - 1)
