"""The same training step by a peer: speculators' own model and losses on the work of draft_work.EQUAL, in fp32.

    PEER/bin/python benchmarks/peer.py --steps 4        # PEER: pip install torch==2.13.0 speculators==0.9.0

It is fed one document after the other, gradients added: as its loader packs (one dense row), it needs eight times the
attention. lm_head is trained and losses are eager, as in eyas; it does not look for the target's top-1 over the whole
vocabulary, which eyas does. Prints JSON as sides.py does. It needs neither eyas nor its requirements.
"""

import argparse
import json
import resource
import time
import warnings

import torch

DOCUMENTS, LENGTH = 8, 512
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, DRAFT_VOCABULARY = 576, 1536, 9, 3, 64, 49152, 8192


def peer_model():
    """Its draft of SmolLM2's sizes, on a random target; embeddings and the target's head are frozen."""
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from transformers import LlamaConfig

    layer = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCABULARY,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )
    layer._attn_implementation = "sdpa"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=DRAFT_VOCABULARY,
        eagle_aux_hidden_state_layer_ids=[2, 15, 27],
    )
    model = Eagle3DraftModel(config).float()
    every = VOCABULARY // DRAFT_VOCABULARY
    t2d = torch.zeros(VOCABULARY, dtype=torch.bool)
    t2d[::every] = True
    d2t = torch.arange(DRAFT_VOCABULARY) * (every - 1)
    with torch.no_grad():
        model.load_vocab_mappings(t2d, d2t)
        for weight in (model.embed_tokens.weight, model.verifier_lm_head.weight, model.lm_head.weight):
            torch.nn.init.normal_(weight, std=0.05)
        model.verifier_norm.weight.fill_(1.0)
    for weight in (model.embed_tokens.weight, model.verifier_lm_head.weight, model.verifier_norm.weight):
        weight.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="of the training-time test; default: 4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one step is timed instead of four")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from speculators.losses import resolve_loss_config

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, losses = peer_model(), resolve_loss_config("kl_div", "eager")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    ids = torch.randint(VOCABULARY, (DOCUMENTS, LENGTH))
    aux, last = torch.randn(DOCUMENTS, LENGTH, 3 * HIDDEN), torch.randn(DOCUMENTS, LENGTH, HIDDEN)
    inside = LENGTH - 1  # its collator gives a position's states together with the next token
    of_one = torch.zeros(1, inside, dtype=torch.int64)

    def step() -> float:
        started = time.perf_counter()
        for k in range(DOCUMENTS):
            _, loss, _ = model(
                hidden_states=aux[k : k + 1, :-1],
                input_ids=ids[k : k + 1, 1:],
                document_ids=of_one,
                loss_mask=torch.ones(1, inside, dtype=torch.bool),
                position_ids=1 + torch.arange(inside)[None],
                verifier_last_hidden_states=last[k : k + 1, 1:],
                ttt_steps=args.steps,
                ttt_step_loss_decay=0.8,
                loss_config=losses,
            )
            (loss / DOCUMENTS).backward()
        torch.nn.utils.clip_grad_norm_(trained, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    step()
    seconds = [step() for _ in range(1 if args.quick else 4)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    told = {"seconds": round(min(seconds), 4), "peak_mb": peak, "tokens": DOCUMENTS * LENGTH}
    print(json.dumps({**told, "all_seconds": [round(s, 3) for s in seconds]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
