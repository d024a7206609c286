"""The training-time test equals the published algorithm, option by option, and costs nothing that it should not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from eagle3_literal import literal_test
from eyas import compute
from eyas.eagle3 import loss as loss_module
from eyas.eagle3.model import Draft, DraftConfig
from eyas.eagle3.supervision import LOSSES, SUPERVISION, Batch, Objective, supervise
from eyas.eagle3.teacher import Teacher
from eyas.eagle3.ttt import hidden_states, training_time_test
from eyas.errors import EyasError
from eyas.vocabulary import maps_of

ORACLE = Path(__file__).parent / "data/eagle3_oracle"
VOCAB, DRAFT_VOCAB = 24, 15


def config(**changes):
    small = {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"head_dim": 6, "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "max_position_embeddings": 64}
    return DraftConfig(**{**small, **sizes, "aux_layers": (1, 2, 4), **changes})


def maps(kept, vocab=VOCAB):
    return [torch.from_numpy(x) for x in maps_of(kept.sort().values.numpy(), vocab)]


def make_draft(c, seed=0):
    """A draft whose every weight is random and large enough to matter."""
    g = torch.Generator().manual_seed(seed)
    head = torch.randn(VOCAB, c.hidden_size, generator=g)
    kept = torch.randperm(VOCAB, generator=g)[: c.draft_vocab_size]
    draft = Draft.from_target(c, torch.randn(VOCAB, c.hidden_size, generator=g), head, *maps(kept), seed=seed)
    with torch.no_grad():
        for p in draft.trainable().values():
            p.copy_(torch.randn(p.shape, generator=g) * (0.5 if p.dim() == 1 else p.shape[1] ** -0.5) + (p.dim() == 1))
    return draft, head


def make_documents(c, lengths, seed=0, masked=0.4):
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randint(VOCAB, (n,), generator=g),
            (torch.rand(n, generator=g) > masked).long(),
            torch.randn(n, len(c.aux_layers) * c.aux_size, generator=g),
            torch.randn(n, c.hidden_size, generator=g),
        )
        for n in lengths
    ]


def pack(documents):
    offsets = torch.tensor([0, *(len(ids) for ids, *_ in documents)]).cumsum(0)
    return Batch(*(torch.cat(parts) for parts in zip(*documents, strict=True)), offsets)


def run(draft, head, documents, objective, counts=None):
    batch = pack(documents)
    targets = Teacher(head, draft.t2d).targets(batch, objective)
    plan = supervise(batch, targets, draft.t2d, objective)
    draft.zero_grad()
    draft.trainable(objective.train_lm_head)
    result = training_time_test(draft, batch, plan, objective, counts)
    result.loss.backward()
    gradients = {name: p.grad for name, p in draft.named_parameters() if p.requires_grad}
    return plan, result, gradients


def close(ours, theirs, tolerance=2e-5):
    """Equal to fp32 rounding, by the size of the whole tensor."""
    ours, theirs = ours.double(), theirs.double()
    return bool((ours - theirs).norm() <= tolerance * theirs.norm() + 1e-6)


def same_as_literal(c, lengths, objective, seed=0, masked=0.4):
    draft, head = make_draft(c, seed)
    documents = make_documents(c, lengths, seed, masked)
    plan, result, gradients = run(draft, head, documents, objective)

    w = {name: x.detach().double() if x.is_floating_point() else x for name, x in draft.state_dict().items()}
    for name in gradients:
        w[name].requires_grad_(True)
    documents = [(ids, mask, aux.double(), last.double()) for ids, mask, aux, last in documents]
    truth = literal_test(w, c, documents, objective, head.double())
    for key in ("counts", "masked", "chains"):
        assert getattr(plan, key).tolist() == truth[key], key
    for key in ("hits", "joint"):
        assert getattr(result, key).tolist() == truth[key], key
    assert close(result.sums, torch.stack(truth["sums"]).detach())
    pairs = zip(objective.weights, truth["sums"], truth["counts"], strict=True)
    total = sum(weight * s / n for weight, s, n in pairs if n)
    assert close(result.loss.detach(), torch.as_tensor(total).detach())
    if any(truth["counts"]):
        total.backward()
        for name, gradient in gradients.items():
            assert close(gradient, w[name].grad, 1e-4), name


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_losses_accuracies_and_gradients_equal_the_published_algorithm(data):
    heads = data.draw(st.sampled_from([(4, 2), (2, 2), (3, 1)]))
    c = config(
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=data.draw(st.sampled_from([2, 6])),
        fc_norm=data.draw(st.booleans()),
        rope_theta=data.draw(st.sampled_from([100.0, 10000.0])),
        aux_layers=data.draw(st.sampled_from([(1, 2, 4), (0, 3)])),
        target_hidden_size=data.draw(st.sampled_from([None, 5])),
    )
    steps = data.draw(st.integers(1, 4))
    objective = Objective(
        steps=steps,
        step_weights=data.draw(st.sampled_from([None, tuple(1.0 + i for i in range(steps))])),
        supervision=data.draw(st.sampled_from(sorted(SUPERVISION))),
        loss=data.draw(st.sampled_from(LOSSES)),
        train_lm_head=data.draw(st.booleans()),
    )
    lengths = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    same_as_literal(c, lengths, objective, data.draw(st.integers(0, 999)), data.draw(st.sampled_from([0.0, 0.5, 0.9])))


@pytest.mark.parametrize("supervision", sorted(SUPERVISION))
@pytest.mark.parametrize("loss", LOSSES)
def test_every_option_on_one_batch(supervision, loss):
    same_as_literal(config(), [7, 5], Objective(steps=3, supervision=supervision, loss=loss), seed=3)


def test_chunks_and_blocks_of_any_size_give_the_same(monkeypatch):
    """Chunks of the loss, blocks of attention and of the teacher's stream are cut anywhere."""
    import eyas.eagle3.attention as attention

    monkeypatch.setattr(loss_module, "CHUNK", {"cpu": (7 * DRAFT_VOCAB, 3 * DRAFT_VOCAB)})
    monkeypatch.setattr(attention, "QUERIES", 2)
    monkeypatch.setattr(compute, "BLOCK", {"cpu": (3, 5)})
    for loss in LOSSES:
        same_as_literal(config(), [9, 1, 6], Objective(steps=3, loss=loss), seed=5)


def test_packed_equals_one_by_one():
    """No attention, supervision or position crosses a document's end; global counts make the parts add up."""
    c, objective = config(), Objective(steps=4)
    draft, head = make_draft(c)
    documents = make_documents(c, [9, 2, 12, 5])
    plan, whole, gradients = run(draft, head, documents, objective)
    total, added, hits = 0.0, dict.fromkeys(gradients, 0.0), 0
    for document in documents:
        _, part, more = run(draft, head, [document], objective, plan.counts)
        total, hits = total + part.loss.detach(), hits + part.hits
        added = {name: added[name] + more[name] for name in added}
    assert close(total, whole.loss.detach(), 1e-6) and torch.equal(hits, whole.hits)
    for name, gradient in gradients.items():
        assert close(added[name], gradient), name


def test_what_no_step_needs_changes_nothing():
    """A document without supervision, and what follows the last supervised token, cost nothing: they have no rows."""
    c, objective = config(), Objective(steps=3)
    draft, head = make_draft(c)
    first, second, third = make_documents(c, [8, 8, 8], masked=0.0)
    second[1].zero_()
    third[1][5:] = 0
    plan, result, _ = run(draft, head, [first, second, third], objective)
    assert len(plan.rows) <= 6 + 3
    _, without, _ = run(draft, head, [first, tuple(x[:5] for x in third)], objective)
    assert close(result.sums, without.sums, 1e-6)


def test_a_batch_without_supervision_has_a_zero_loss_that_touches_every_parameter():
    """Else the other ranks wait for this one's gradients for ever."""
    c, objective = config(fc_norm=True), Objective(steps=3)
    draft, head = make_draft(c)
    documents = [(ids, mask * 0, aux, last) for ids, mask, aux, last in make_documents(c, [6, 4])]
    plan, result, gradients = run(draft, head, documents, objective)
    assert plan.counts.tolist() == [0, 0, 0] and result.loss.item() == 0
    assert set(gradients) == set(c.weight_shapes())
    assert all(g is not None and not g.any() for g in gradients.values())


def test_a_step_without_supervision_counts_as_nothing():
    """Two tokens before the end only the first steps have something to predict: no division by zero."""
    same_as_literal(config(), [3], Objective(steps=4), masked=0.0)


def test_a_chain_of_hits_is_broken_by_a_miss():
    """Of two tokens, a random draft gets half right: the joint hits are fewer than the hits of each step alone."""
    c, objective = config(draft_vocab_size=2), Objective(steps=3, loss="hard")
    draft, head = make_draft(c)
    kept = draft.t2d.nonzero().flatten()
    documents = [(kept[ids % 2], *rest) for ids, *rest in make_documents(c, [30, 20], masked=0.1)]
    plan, result, _ = run(draft, head, documents, objective)
    w = {name: x.double() if x.is_floating_point() else x for name, x in draft.state_dict().items()}
    truth = literal_test(w, c, [(i, m, a.double(), x.double()) for i, m, a, x in documents], objective, head.double())
    assert result.joint.tolist() == truth["joint"] and plan.chains.tolist() == truth["chains"]
    assert (
        0 < result.joint[2] < result.joint[1] < result.joint[0] == result.hits[0] and result.joint[1] < result.hits[1]
    )


def test_step_weights_default_to_powers_of_0_8():
    assert Objective(steps=3).weights == pytest.approx((1.0, 0.8, 0.64))
    assert Objective(steps=2, step_weights=(1.0, 3.0)).weights == (1.0, 3.0)


def test_a_frozen_lm_head_gets_no_gradient():
    draft, head = make_draft(config())
    _, _, gradients = run(draft, head, make_documents(config(), [9]), Objective(steps=2, train_lm_head=False))
    assert "lm_head.weight" not in gradients and "norm.weight" in gradients


def test_evaluation_gives_the_losses_of_training():
    c, objective = config(), Objective(steps=3)
    draft, head = make_draft(c)
    documents = make_documents(c, [9, 6])
    plan, trained, _ = run(draft, head, documents, objective)
    with torch.no_grad():
        evaluated = draft(pack(documents), plan, objective)
    assert not evaluated.loss.requires_grad
    assert torch.equal(evaluated.sums, trained.sums) and torch.equal(evaluated.joint, trained.joint)


def test_bf16_is_near_fp32_and_gradients_stay_fp32():
    c, objective = config(hidden_size=64, intermediate_size=128, head_dim=16), Objective(steps=3)
    draft, head = make_draft(c)
    documents = make_documents(c, [30, 20])
    plan, exact, gradients = run(draft, head, documents, objective)
    draft.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        rough = training_time_test(draft, pack(documents), plan, objective)
    rough.loss.backward()
    assert close(rough.sums, exact.sums, 0.02) and not torch.equal(rough.sums, exact.sums)
    for name, gradient in gradients.items():
        found = draft.get_parameter(name).grad
        assert found.dtype == torch.float32 and close(found, gradient, 0.1), name


def test_aux_states_may_come_in_bf16():
    c, objective = config(), Objective(steps=2)
    draft, head = make_draft(c)
    documents = [(i, m, aux.bfloat16(), last.bfloat16()) for i, m, aux, last in make_documents(c, [9])]
    _, rough, _ = run(draft, head, documents, objective)
    rounded = [(i, m, aux.float(), last.float()) for i, m, aux, last in documents]
    _, exact, _ = run(draft, head, rounded, objective)
    assert close(rough.sums, exact.sums)


def test_the_teacher_streams_the_top_1_over_the_whole_vocabulary(monkeypatch):
    """Also where it lies outside of the draft vocabulary, or in the last, shorter block; equals go to the lower id."""
    monkeypatch.setattr(compute, "BLOCK", {"cpu": (4, 7)})
    c = config()
    draft, head = make_draft(c)
    head[20] = head[3]
    batch = pack(make_documents(c, [12, 9], masked=0.0))
    for objective in (Objective(), Objective(loss="lk")):
        targets = Teacher(head, draft.t2d).targets(batch, objective)
        logits = batch.last @ head.T
        assert targets.allowed.sum() == 12 + 9 - 2 * 2
        assert torch.equal(targets.top1[targets.allowed], logits.argmax(-1)[targets.allowed])
        assert (targets.top1[~targets.allowed] == -1).all()
    assert torch.allclose(targets.log_total[targets.allowed], logits.logsumexp(-1)[targets.allowed])


def test_hard_labels_need_no_teacher():
    c = config()
    draft, head = make_draft(c)
    documents = make_documents(c, [9])
    batch = replace(pack(documents), last=None)
    targets = Teacher(head, draft.t2d).targets(batch, Objective(loss="hard"))
    assert targets.top1[targets.allowed].tolist() == [
        int(batch.input_ids[t + 1]) for t in range(9) if targets.allowed[t]
    ]
    with pytest.raises(EyasError, match="last: loss kl needs the target's last hidden states"):
        Teacher(head, draft.t2d).targets(batch, Objective())


def test_no_tensor_of_tokens_times_vocabulary_is_made(monkeypatch):
    """Not of the target's, nor of the draft's: neither in fp32 nor at all."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                if isinstance(x, torch.Tensor) and x.numel() > 0 and x.is_floating_point():
                    self.seen = max(self.seen, x.untyped_storage().nbytes() // x.element_size())
            return out

    monkeypatch.setattr(compute, "BLOCK", {"cpu": (16, 8)})
    monkeypatch.setattr(loss_module, "CHUNK", {"cpu": (512, 512)})
    c = config(hidden_size=4, intermediate_size=4, num_attention_heads=1, num_key_value_heads=1, head_dim=2)
    draft, head = make_draft(c)
    tokens = 400
    with Largest() as largest:
        run(draft, head, make_documents(c, [20] * (tokens // 20)), Objective(steps=3))
    assert largest.seen < tokens * DRAFT_VOCAB


@pytest.mark.parametrize("case", ["random", "warm", "padded"])
def test_specforge_s_numbers_are_reproduced(case):
    """Vectors made with SpecForge 0.2.0: losses (its sums are divided by all positions), accuracies, acceptance rates,
    logits, hidden states and gradients, under its own conventions."""
    t = load_file(ORACLE / "shared.safetensors") | load_file(ORACLE / f"{case}.safetensors")
    weights = {k.removeprefix("draft."): v for k, v in t.items() if k.startswith("draft.")}
    c = DraftConfig(
        hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        vocab_size=512, draft_vocab_size=128, max_position_embeddings=256, aux_layers=(1, 2, 3),
    )  # fmt: skip
    head = t["in.target_lm_head"]
    draft = Draft.from_target(c, weights["embed_tokens.weight"], head, weights["d2t"], weights["t2d"])
    with torch.no_grad():
        for name in c.weight_shapes():
            draft.get_parameter(name).copy_(weights[name])
    lengths = t["in.attention_mask"].sum(1).tolist()
    parts = ("input_ids", "loss_mask", "aux", "last")
    documents = [tuple(t[f"in.{key}"][b, :n] for key in parts) for b, n in enumerate(lengths)]
    objective = Objective(steps=4, supervision="position")
    positions = t["in.input_ids"].numel()
    plan, result, gradients = run(draft, head, documents, objective, torch.full((4,), positions))
    assert torch.allclose(result.sums / positions, t["out.losses"], atol=2e-6)
    assert result.loss.item() == pytest.approx(t["out.total"].item(), abs=5e-6)
    assert plan.masked.tolist() == t["out.denominators"].tolist()
    assert result.hits.tolist() == t["out.corrects"].tolist()
    assert torch.allclose(result.hits / plan.masked, t["out.accuracies"])
    for name, gradient in gradients.items():
        assert close(gradient, t[f"grad.{name}"]), name

    batch = pack(documents)
    starts = batch.offsets[:-1].tolist()
    real = torch.cat([t["out.hidden"][:, b, :n] for b, n in enumerate(lengths)], 1)  # [steps, T, H]
    logits = torch.cat([t["out.logits"][:, b, :n] for b, n in enumerate(lengths)], 1)
    for i, hidden in enumerate(hidden_states(draft, batch, plan, torch.float32)):
        at = plan.rows[plan.steps[i].active]
        assert len(at) > 15 and torch.allclose(hidden, real[i, at], atol=2e-5)
        inner = hidden / hidden.square().mean(-1, keepdim=True).add(1e-5).sqrt() * draft.norm.weight
        assert torch.allclose(inner @ draft.lm_head.weight.T, logits[i, at], atol=5e-5)
    assert starts[0] == 0

    lk = replace(objective, loss="lk")
    plan, result, _ = run(draft, head, documents, lk)
    assert torch.allclose(result.overlaps / plan.counts, t["out.acceptance_rates"], atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1"),
        ({"steps": 3, "step_weights": (1.0,)}, "step_weights: expected 3, one for each step, found 1"),
        ({"loss": "kld"}, "loss: expected kl, hard, lk, found 'kld'"),
        ({"supervision": "all"}, "supervision: expected predicted_token, next_token, position, found 'all'"),
    ],
)
def test_an_objective_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(EyasError, match=message):
        Objective(**changes)


def test_a_batch_whose_parts_differ_in_length_is_refused():
    batch = pack(make_documents(config(), [4, 5]))
    with pytest.raises(EyasError, match="aux: expected 9 rows, one for each token, found 8"):
        replace(batch, aux=batch.aux[1:])
    with pytest.raises(EyasError, match="offsets: expected to rise from 0 to 9"):
        replace(batch, offsets=torch.tensor([0, 4, 4, 9]))
