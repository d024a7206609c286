"""From source files to records: prepared/<dataset>/{prompts,tokenized_data}.jsonl, rejects.jsonl, stats.json.

Needs sources/<dataset>/manifest.json and target/tokenizer/. Each dataset is one job of its own: what one
holds depends on no other's. With `prepare.shards` several jobs share the reading, and that job puts together what they
hand over.
"""


rule prepare_shard:
    """Read a share of one dataset's source files; its rows are handed over and dropped when all shares are merged."""
    input:
        remade_when("read-under-other-settings", shard_is_old, "prepared/{dataset}/shards/{shard}-of-{shards}"),
        manifest="sources/{dataset}/manifest.json",
        tokenizer="target/tokenizer/manifest.json",
    output:
        temp(directory("prepared/{dataset}/shards/{shard}-of-{shards}")),
    log:
        "logs/prepare_shard/{dataset}-{shard}-of-{shards}.log",
    benchmark:
        "benchmarks/prepare_shard/{dataset}-{shard}-of-{shards}.tsv"
    wildcard_constraints:
        dataset=one_of(SHARDED),
        shard=r"\d{5}",
        shards=r"\d{5}",
    conda:
        "../envs/workflow.yaml"
    threads: shard_threads
    resources:
        mem_mb=CONFIG.resources.prepare_mem_mb,
    params:
        settings=prepare_settings,
    shell:
        "python $SCRIPTS/prepare_dataset.py --dataset {wildcards.dataset} --output-dir prepared "
        "--shard {wildcards.shard} --shards {wildcards.shards} --threads {threads} "
        "--settings {params.settings:q} &> {log:q}"


rule prepare_prompts:
    """One dataset's prompts, which the target must still answer."""
    input:
        remade_when_blank("prepared/{dataset}/prompts.jsonl", "prepared/{dataset}/stats.json"),
        shards_of,
        manifest="sources/{dataset}/manifest.json",
        tokenizer="target/tokenizer/manifest.json",
    output:
        ensure("prepared/{dataset}/prompts.jsonl", non_empty=True),
        "prepared/{dataset}/rejects.jsonl",
        "prepared/{dataset}/stats.json",
    log:
        "logs/prepare_prompts/{dataset}.log",
    benchmark:
        "benchmarks/prepare_prompts/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(PROMPT_DATASETS + BENCHMARKS),
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.prepare_threads
    resources:
        mem_mb=CONFIG.resources.prepare_mem_mb,
    params:
        settings=prepare_settings,
        shards=lambda wildcards: CONFIG.preparation(wildcards.dataset).shards,
    shell:
        "python $SCRIPTS/prepare_dataset.py --dataset {wildcards.dataset} --output-dir prepared "
        "--shards {params.shards} --threads {threads} --settings {params.settings:q} &> {log:q}"


use rule prepare_prompts as prepare_tokenized with:
    input:
        remade_when_blank("prepared/{dataset}/tokenized_data.jsonl", "prepared/{dataset}/stats.json"),
        shards_of,
        manifest="sources/{dataset}/manifest.json",
        tokenizer="target/tokenizer/manifest.json",
    output:
        ensure("prepared/{dataset}/tokenized_data.jsonl", non_empty=True),
        "prepared/{dataset}/rejects.jsonl",
        "prepared/{dataset}/stats.json",
    log:
        "logs/prepare_tokenized/{dataset}.log",
    benchmark:
        "benchmarks/prepare_tokenized/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(TOKENIZED_DATASETS),
