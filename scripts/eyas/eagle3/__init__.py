"""EAGLE-3 (arXiv 2503.01840): the draft model, its training-time test, its checkpoint.

model.py        DraftConfig (config.json), Draft (parameters named as in the checkpoint), RoPE and its scalings
supervision.py  Batch, Objective, and `supervise`: which positions count at which step, and what must be computed at all
teacher.py      Teacher: the target's top-1 over its whole vocabulary, streamed; its head's rows of the draft vocabulary
products.py     matrix products that save little for their backward, in bf16 with fp32 gradients of the weights
attention.py    attention over the steps: blocks of queries on any device, flex_attention on CUDA
loss.py         the losses and their gradients, chunk by chunk: no [tokens, vocabulary] tensor
ttt.py          training_time_test: all of it together
propose.py      the draft as it serves: token after token, with a cache of its own
export.py       the draft's files, their check, and loading, in the form that SGLang's LlamaForCausalLMEagle3 reads
data.py         shards → packed batches, read ahead
start.py        what a training starts from, fitted together and checked
optimizers.py   AdamW, Muon, their schedule
world.py        the processes that train together: DDP, FSDP2
trainer.py      the loop: steps, checkpoints, judgements on held-out samples
metrics.py      what is measured: JSON lines, TensorBoard
train.py        all of it, from hidden_states/ to draft/

    teacher = Teacher(target_head, draft.t2d, torch.bfloat16)
    plan = supervise(batch, teacher.targets(batch, objective), draft.t2d, objective)
    with torch.autocast("cpu", torch.bfloat16):
        result = training_time_test(draft, batch, plan, objective)
    result.loss.backward()
"""
