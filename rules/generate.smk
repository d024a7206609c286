"""The target answers: responses/<dataset>/ from prepared/<dataset>/prompts.jsonl, prompt by prompt.

Needs prepared/, target/tokenizer/, and the target's weights (target/model/ when they are converted from a .gguf file).
All jobs share one warm server; each keeps a journal in state/, which no rule declares, so that nothing answered is lost.
"""

if CONFIG.target.weights is not None:

    rule fetch_model:
        """Convert the target's weights from a .gguf file."""
        input:
            remade_when("lacks-files", lacks_files, *TARGET_MODEL),
        output:
            TARGET_MODEL,
        log:
            "logs/fetch_model.log",
        benchmark:
            "benchmarks/fetch_model.tsv"
        conda:
            "../envs/workflow.yaml"
        params:
            settings=target_settings,
        shell:
            "python $SCRIPTS/fetch_model.py --settings {params.settings:q} &> {log:q}"


rule generate_responses:
    """Let the target answer one dataset's prompts; resumes prompt by prompt."""
    input:
        going_on,
        remade_when_blank("responses/{dataset}/tokenized_data.jsonl", "responses/{dataset}/stats.json"),
        prompts="prepared/{dataset}/prompts.jsonl",
        tokenizer="target/tokenizer/manifest.json",
        model=TARGET_MODEL,
    output:
        ensure("responses/{dataset}/tokenized_data.jsonl", non_empty=True),
        "responses/{dataset}/rejects.jsonl",
        "responses/{dataset}/stats.json",
    log:
        "logs/generate_responses/{dataset}.log",
    benchmark:
        "benchmarks/generate_responses/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(PROMPT_DATASETS),
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.generate_threads
    resources:
        gpu=CONFIG.target_gpus,
        mem_mb=CONFIG.resources.generate_mem_mb,
    params:
        settings=generate_settings,
    shell:
        "python $SCRIPTS/generate_responses.py --dataset {wildcards.dataset} --output-dir responses "
        "--threads {threads} --settings {params.settings:q} &> {log:q}"
