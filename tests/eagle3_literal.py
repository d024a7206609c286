"""EAGLE-3's training-time test, literally: loops over documents, steps, positions, heads and keys, in float64.

Written from the published algorithm alone, to be compared with; nothing of eyas.eagle3 is used.
"""

import math

import torch


def rms(x, weight, eps):
    return x / torch.sqrt((x * x).mean() + eps) * weight


def rotated(x, position, theta):
    """x [d]: pairs (k, k + d/2) turned by position · θ^(−2k/d)."""
    half = len(x) // 2
    first, second = [], []
    for k in range(half):
        angle = position * theta ** (-2 * k / len(x))
        c, s = math.cos(angle), math.sin(angle)
        first.append(x[k] * c - x[k + half] * s)
        second.append(x[k + half] * c + x[k] * s)
    return torch.stack(first + second)


def counts_at(supervision, mask, t, i, needs_token):
    """Whether the mask allows position t at step i. It predicts token t+2+i from target row t+1+i."""
    length = len(mask)
    if t + 1 + i > length - 1 or (needs_token and t + 2 + i > length - 1):
        return False
    entry = {"position": t + i, "next_token": t + 1 + i, "predicted_token": t + 2 + i}[supervision]
    return entry < length and bool(mask[entry])


def literal_test(w, c, documents, objective, target_head):
    """Losses, hits and counts of documents [(ids, mask, aux, last)].

    w: name → weight (float64), c: DraftConfig. Returns a dict with sums, counts, masked, hits, joint, chains [steps]
    and the logits {(document, step, t): [draft vocabulary]}.
    """
    steps, d = objective.steps, c.head_dim
    kept = (torch.arange(c.draft_vocab_size) + w["d2t"]).tolist()
    group = c.num_attention_heads // c.num_key_value_heads
    out = {key: [0] * steps for key in ("counts", "masked", "hits", "joint", "chains")}
    out["sums"] = [torch.zeros((), dtype=torch.float64) for _ in range(steps)]
    out["logits"] = {}
    for number, (ids, mask, aux, last) in enumerate(documents):
        length = len(ids)
        target = [target_head @ last[t] for t in range(length)]
        hidden = []
        for t in range(length):
            states = aux[t].reshape(len(c.aux_layers), -1)
            if c.fc_norm:
                states = torch.stack([rms(s, w[f"fc_norm.{k}.weight"], c.rms_norm_eps) for k, s in enumerate(states)])
            hidden.append(w["fc.weight"] @ states.reshape(-1))
        keys, values = [], []  # [step][position][key head]
        right = [[False] * length for _ in range(steps)]
        allowed = [[False] * length for _ in range(steps)]
        for i in range(steps):
            keys.append([])
            values.append([])
            queries = []
            for t in range(length):
                token = int(ids[t + 1 + i]) if t + 1 + i < length else 0  # zero-filled
                u = torch.cat(
                    [
                        rms(w["embed_tokens.weight"][token], w["midlayer.input_layernorm.weight"], c.rms_norm_eps),
                        rms(hidden[t], w["midlayer.hidden_norm.weight"], c.rms_norm_eps),
                    ]
                )
                q, k, v = (w[f"midlayer.self_attn.{name}_proj.weight"] @ u for name in "qkv")
                queries.append([rotated(x, t + i, c.rope_theta) for x in q.reshape(-1, d)])
                keys[i].append([rotated(x, t + i, c.rope_theta) for x in k.reshape(-1, d)])
                values[i].append(list(v.reshape(-1, d)))
            after = []
            for t in range(length):
                heads = []
                for h, q in enumerate(queries[t]):
                    seen = [(0, s) for s in range(t + 1)] + [(j, t) for j in range(1, i + 1)]
                    scores = torch.stack([q @ keys[j][s][h // group] / math.sqrt(d) for j, s in seen])
                    shares = torch.softmax(scores, 0)
                    heads.append(sum(p * values[j][s][h // group] for p, (j, s) in zip(shares, seen, strict=True)))
                h = hidden[t] + w["midlayer.self_attn.o_proj.weight"] @ torch.cat(heads)
                x = rms(h, w["midlayer.post_attention_layernorm.weight"], c.rms_norm_eps)
                gate, up = w["midlayer.mlp.gate_proj.weight"] @ x, w["midlayer.mlp.up_proj.weight"] @ x
                after.append(h + w["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up))
            hidden = after
            for t in range(length):
                if not counts_at(objective.supervision, mask, t, i, objective.loss == "hard"):
                    continue
                allowed[i][t] = True
                out["masked"][i] += 1
                g = target[t + 1 + i]
                top = int(ids[t + 2 + i]) if objective.loss == "hard" else int(g.argmax())
                if top not in kept:
                    continue
                out["counts"][i] += 1
                logits = w["lm_head.weight"] @ rms(hidden[t], w["norm.weight"], c.rms_norm_eps)
                out["logits"][number, i, t] = logits
                log_q = torch.log_softmax(logits, 0)
                if objective.loss == "hard":
                    loss = -log_q[kept.index(top)]
                elif objective.loss == "kl":
                    loss = -(torch.softmax(g[kept], 0) * log_q).sum()
                else:
                    loss = -torch.log(torch.minimum(torch.softmax(g, 0)[kept], log_q.exp()).sum())
                out["sums"][i] = out["sums"][i] + loss
                right[i][t] = kept[int(logits.argmax())] == top
                out["hits"][i] += right[i][t]
        for i in range(steps):
            for t in range(length):
                if all(allowed[j][t] for j in range(i + 1)):
                    out["chains"][i] += 1
                    out["joint"][i] += all(right[j][t] for j in range(i + 1))
    return out
