"""The draft: trained on the hidden states, published in the form that SGLang serves.

Needs hidden_states/ (with capture.window: of held-out samples; the training ones come and go), corpus/, draft_vocab/,
target/head.safetensors and target/tokenizer/. Checkpoints lie in state/, which no rule declares: a run that was killed
goes on.
"""


rule train_draft:
    """Train the draft, or go on with it; the best by held-out acceptance length is published."""
    input:
        remade_when_blank("draft/model.safetensors", "draft/config.json", "draft/training.json"),
        STATES,
        corpus="corpus/train.parquet",
        vocabulary="draft_vocab/map.safetensors",
        head="target/head.safetensors",
        tokenizer="target/tokenizer/manifest.json",
    output:
        ensure("draft/model.safetensors", non_empty=True),
        "draft/config.json",
        "draft/metrics.jsonl",
        "draft/training.json",
    log:
        "logs/train_draft.log",
    benchmark:
        "benchmarks/train_draft.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.train_threads
    resources:
        **TRAIN_DEVICES,
        mem_mb=CONFIG.resources.train_mem_mb,
    params:
        settings=train_settings,
        folder=subpath(output[0], parent=True),
        threads=lambda wildcards, threads: max(1, threads // max(1, CONFIG.train.gpus)),
    shell:
        "python $SCRIPTS/train_draft.py --output-dir {params.folder:q} --threads {params.threads} "
        "--settings {params.settings:q} &> {log:q}"
