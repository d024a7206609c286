"""The target's hidden states on the corpus, shard by shard; all jobs share one warm server.

Needs corpus/, target/tokenizer/, and the target's weights (see generate.smk).
"""


rule fetch_head:
    """Copy the target's embeddings, lm_head and final norm out of its weights."""
    input:
        remade_when_blank("target/head.safetensors"),
        model=TARGET_MODEL,
    output:
        "target/head.safetensors",
    log:
        "logs/fetch_head.log",
    benchmark:
        "benchmarks/fetch_head.tsv"
    localrule: True
    conda:
        "../envs/workflow.yaml"
    resources:
        downloads=1,
    params:
        settings=target_settings,
    shell:
        "python $SCRIPTS/fetch_head.py --out {output:q} --settings {params.settings:q} &> {log:q}"


rule capture_states:
    """Capture the hidden states of one shard of one split; resumes sample by sample."""
    input:
        going_on,
        remade_when("is-no-whole-shard", is_no_shard, "hidden_states/{split}/{shard}-of-{shards}.safetensors"),
        corpus="corpus/{split}.parquet",
        tokenizer="target/tokenizer/manifest.json",
        model=TARGET_MODEL,
        head="target/head.safetensors",
    output:
        "hidden_states/{split}/{shard}-of-{shards}.safetensors",
        "hidden_states/{split}/{shard}-of-{shards}.json",
    log:
        "logs/capture_states/{split}-{shard}-of-{shards}.log",
    benchmark:
        "benchmarks/capture_states/{split}-{shard}-of-{shards}.tsv"
    wildcard_constraints:
        split="train|heldout",
        shard=r"\d{5}",
        shards=r"\d{5}",
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.capture_threads
    resources:
        gpu=CONFIG.target_gpus,
        mem_mb=CONFIG.resources.capture_mem_mb,
    params:
        settings=capture_settings,
    shell:
        "python $SCRIPTS/capture_states.py --split {wildcards.split} --shard {wildcards.shard} --corpus corpus "
        "--output-dir hidden_states --threads {threads} --settings {params.settings:q} &> {log:q}"
