"""Does the draft make serving faster? evaluation/ from draft/, corpus/ and the prompts of benchmark sets.

Needs draft/, corpus/, prepared/<benchmark>/, target/ and the target's weights. What the engines tried is kept in
state/evaluation/, which no rule declares: a run that was killed goes on.
"""


rule choose_prompts:
    """What every engine is asked: held-out prompts of each dataset, and prompts of benchmark sets."""
    input:
        remade_when_blank("evaluation/prompts.jsonl"),
        PREPARED_BENCHMARKS,
        train="corpus/train.parquet",
        heldout="corpus/heldout.parquet",
        tokenizer="target/tokenizer/manifest.json",
    output:
        ensure("evaluation/prompts.jsonl", non_empty=True),
    log:
        "logs/choose_prompts.log",
    benchmark:
        "benchmarks/choose_prompts.tsv"
    conda:
        "../envs/workflow.yaml"
    params:
        settings=evaluate_settings,
    shell:
        "python $SCRIPTS/choose_prompts.py --settings {params.settings:q} --out {output:q} &> {log:q}"


rule evaluate_here:
    """Answer the prompts with and without the draft in one process: the reference, or a witness."""
    input:
        remade_when_blank("evaluation/{engine}.jsonl"),
        prompts="evaluation/prompts.jsonl",
        draft="draft/model.safetensors",
        config="draft/config.json",
        head="target/head.safetensors",
        model=TARGET_MODEL,
    output:
        ensure("evaluation/{engine}.jsonl", non_empty=True),
    log:
        "logs/evaluate_here/{engine}.log",
    benchmark:
        "benchmarks/evaluate_here/{engine}.tsv"
    wildcard_constraints:
        engine="walk|llamacpp",
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.evaluate_threads
    resources:
        mem_mb=CONFIG.resources.evaluate_mem_mb,
    params:
        settings=evaluate_settings,
        draft=subpath(input.draft, parent=True),
    shell:
        "python $SCRIPTS/evaluate_draft.py --engine {wildcards.engine} --prompts {input.prompts:q} "
        "--draft {params.draft:q} --head {input.head:q} --threads {threads} --settings {params.settings:q} "
        "--out {output:q} &> {log:q}"


rule evaluate_sglang:
    """Ask a server with the draft, then one without it: acceptance, and the speed by concurrency."""
    input:
        remade_when_blank("evaluation/sglang.jsonl", "evaluation/speed.json"),
        prompts="evaluation/prompts.jsonl",
        draft="draft/model.safetensors",
        config="draft/config.json",
        model=TARGET_MODEL,
    output:
        trials=ensure("evaluation/sglang.jsonl", non_empty=True),
        speed="evaluation/speed.json",
    log:
        "logs/evaluate_sglang.log",
    benchmark:
        "benchmarks/evaluate_sglang.tsv"
    conda:
        "../envs/workflow.yaml"
    resources:
        gpu=CONFIG.target_gpus,
        mem_mb=CONFIG.resources.generate_mem_mb,
    params:
        settings=evaluate_settings,
        draft=subpath(input.draft, parent=True),
    shell:
        "python $SCRIPTS/evaluate_draft.py --engine sglang --prompts {input.prompts:q} --draft {params.draft:q} "
        "--settings {params.settings:q} --out {output.trials:q} --speed {output.speed:q} &> {log:q}"


rule summarize_evaluation:
    """All figures and the verdict; fails when the draft gains nothing, and says what was checked."""
    input:
        remade_when_blank("evaluation/summary.json"),
        trials=TRIALS,
        speed="evaluation/speed.json" if SERVED_BY_SGLANG else [],
        metrics="draft/metrics.jsonl",
        corpus="corpus/stats.json",
    output:
        "evaluation/summary.json",
    log:
        "logs/summarize_evaluation.log",
    benchmark:
        "benchmarks/summarize_evaluation.tsv"
    conda:
        "../envs/workflow.yaml"
    params:
        settings=evaluate_settings,
        speed=lambda wildcards, input: f"--speed {input.speed}" if input.speed else "",
    shell:
        "python $SCRIPTS/summarize_evaluation.py --trials {input.trials:q} {params.speed} "
        "--corpus {input.corpus:q} --settings {params.settings:q} --out {output:q} 2>&1 | tee {log:q}"


rule sweep_evaluation:
    """Try other chains and trees: which would be the fastest at the serving concurrency?"""
    input:
        prompts="evaluation/prompts.jsonl",
        draft="draft/model.safetensors",
        config="draft/config.json",
        head="target/head.safetensors",
        model=TARGET_MODEL,
    output:
        "evaluation/sweep.json",
    log:
        "logs/sweep_evaluation.log",
    benchmark:
        "benchmarks/sweep_evaluation.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.generate_threads if SERVED_BY_SGLANG else CONFIG.resources.evaluate_threads
    resources:
        gpu=CONFIG.target_gpus,
        mem_mb=CONFIG.resources.generate_mem_mb if SERVED_BY_SGLANG else CONFIG.resources.evaluate_mem_mb,
    params:
        settings=evaluate_settings,
    shell:
        "python $SCRIPTS/sweep_evaluation.py --prompts {input.prompts:q} --head {input.head:q} --threads {threads} "
        "--settings {params.settings:q} --out {output:q} &> {log:q}"
