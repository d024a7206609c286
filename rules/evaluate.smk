"""Does the draft make serving faster? evaluation/ from draft/ and the held-out samples of corpus/.

Needs draft/, corpus/, target/head.safetensors and the target's weights. What the reference tried is kept in
state/evaluation/, which no rule declares: a run that was killed goes on.
"""


rule evaluate_walk:
    """Answer held-out prompts with and without the draft in one process: the reference for every other engine."""
    input:
        remade_when_blank("evaluation/walk.jsonl"),
        corpus="corpus/heldout.parquet",
        draft="draft/model.safetensors",
        config="draft/config.json",
        head="target/head.safetensors",
        model=TARGET_MODEL,
    output:
        ensure("evaluation/walk.jsonl", non_empty=True),
    log:
        "logs/evaluate_walk.log",
    benchmark:
        "benchmarks/evaluate_walk.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.evaluate_threads
    resources:
        mem_mb=CONFIG.resources.evaluate_mem_mb,
    params:
        settings=evaluate_settings,
    shell:
        "python $SCRIPTS/evaluate_walk.py --corpus {input.corpus:q} --head {input.head:q} --threads {threads} "
        "--settings {params.settings:q} --out {output:q} &> {log:q}"


rule evaluate_sglang:
    """Ask a server with the draft, then one without it: acceptance, and the speed by concurrency."""
    input:
        remade_when_blank("evaluation/sglang.jsonl"),
        corpus="corpus/heldout.parquet",
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
        gpu=TARGET_GPUS,
        mem_mb=CONFIG.resources.generate_mem_mb,
    params:
        settings=evaluate_settings,
    shell:
        "python $SCRIPTS/evaluate_sglang.py --corpus {input.corpus:q} --settings {params.settings:q} "
        "--out {output.trials:q} --speed {output.speed:q} &> {log:q}"


rule summarize_evaluation:
    """All figures and the verdict; fails when the draft gains nothing, and says what was checked."""
    input:
        trials=TRIALS,
        metrics="draft/metrics.jsonl",
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
    shell:
        "python $SCRIPTS/summarize_evaluation.py --trials {input.trials:q} --settings {params.settings:q} "
        "--out {output:q} 2>&1 | tee {log:q}"
