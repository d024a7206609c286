"""From source files to records: prepared/<dataset>/{prompts,tokenized_data}.jsonl, rejects.jsonl, stats.json.

Needs sources/<dataset>/manifest.json and target/tokenizer/. Each dataset is one job of its own: what one
holds depends on no other's.
"""


rule prepare_prompts:
    """One dataset's prompts, which the target must still answer."""
    input:
        remade_when_blank("prepared/{dataset}/prompts.jsonl", "prepared/{dataset}/stats.json"),
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
    shell:
        "python $SCRIPTS/prepare_dataset.py --dataset {wildcards.dataset} --output-dir prepared "
        "--threads {threads} --settings {params.settings:q} &> {log:q}"


use rule prepare_prompts as prepare_tokenized with:
    input:
        remade_when_blank("prepared/{dataset}/tokenized_data.jsonl", "prepared/{dataset}/stats.json"),
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
