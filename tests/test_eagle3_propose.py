"""What the draft proposes when it serves is what it learned to: the rows of the training-time test, one by one."""

import pytest
import torch
from torch.nn import functional as F

from eyas.eagle3.products import rms_norm
from eyas.eagle3.propose import Proposer
from eyas.eagle3.supervision import Objective, hard_targets, supervise
from eyas.eagle3.ttt import hidden_states
from test_eagle3_ttt import config, make_documents, make_draft, pack

STEPS, TOKENS = 4, 11


@pytest.fixture(params=[{}, {"fc_norm": True}, {"rope_scaling": {"type": "linear", "factor": 2.0}}], ids=str)
def draft(request):
    draft, _ = make_draft(config(**request.param))
    return draft.requires_grad_(False)


def document(draft):
    """Ids that the draft can propose, and aux states."""
    ((ids, _, aux, last),) = make_documents(draft.config, [TOKENS])
    kept = draft.t2d.nonzero().flatten()
    return kept[ids % len(kept)], aux, last


def trained_logits(draft, ids, aux, last):
    """(step, position) → logits of the training-time test."""
    batch = pack([(ids, torch.ones_like(ids), aux, last)])
    objective = Objective(steps=STEPS, loss="hard")
    plan = supervise(batch, hard_targets(batch, objective), draft.t2d, objective)
    found = {}
    for i, (step, hidden) in enumerate(zip(plan.steps, hidden_states(draft, batch, plan, torch.float32), strict=True)):
        y = rms_norm(hidden, draft.config.rms_norm_eps)[0] * draft.norm.weight
        for row, logits in zip(step.active.tolist(), F.linear(y, draft.lm_head.weight), strict=True):
            found[i, row] = logits
    return found


def test_chains_are_the_rows_of_the_training_time_test(draft):
    ids, aux, last = document(draft)
    expected = trained_logits(draft, ids, aux, last)
    draft_id = {int(token): k for k, token in enumerate(draft.t2d.nonzero().flatten())}
    proposer, compared = Proposer(draft, 32), 0
    for t in range(TOKENS - 2):  # the context grows by one position
        proposer.extend(aux[t : t + 1], ids[t + 1 : t + 2])
        text, seen = iter(ids[t + 2 :].tolist()), []

        def forced(logits, text=text, seen=seen):
            seen.append(logits)
            return draft_id[next(text)]

        assert proposer.chain(min(STEPS, TOKENS - t - 2), forced) == ids[t + 2 :][:STEPS].tolist()
        for i, logits in enumerate(seen):
            torch.testing.assert_close(logits, expected[i, t], rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared > 25


def test_a_context_may_come_in_any_pieces(draft):
    ids, aux, _ = document(draft)
    states = []
    for pieces in ([10], [1] * 10, [3, 5, 2]):
        proposer, at = Proposer(draft, 16), 0
        for n in pieces:
            proposer.extend(aux[at : at + n], ids[at + 1 : at + n + 1])
            proposer.chain(3, lambda logits: int(logits.argmax()))  # leaves nothing behind
            at += n
        states.append(proposer.state)
    for other in states[1:]:
        torch.testing.assert_close(other, states[0], rtol=1e-4, atol=1e-4)
    proposer.restart()
    proposer.extend(aux[:10], ids[1:11])
    torch.testing.assert_close(proposer.state, states[0], rtol=1e-4, atol=1e-4)
