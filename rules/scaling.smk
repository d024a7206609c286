"""Does more data help? Drafts trained on parts of the corpus, with equal settings, and what they gain.

Needs what training and evaluation need; the whole corpus's draft is the one in draft/.
"""

PARTS = [str(part) for part in CONFIG.scaling.parts]
PART_TRIALS = [f"scaling/1-of-{part}/{ENGINES[0]}.jsonl" for part in PARTS]


use rule train_draft as train_on_part with:
    output:
        ensure("scaling/1-of-{part}/draft/model.safetensors", non_empty=True),
        "scaling/1-of-{part}/draft/config.json",
        "scaling/1-of-{part}/draft/metrics.jsonl",
        "scaling/1-of-{part}/draft/training.json",
    log:
        "logs/train_on_part/{part}.log",
    benchmark:
        "benchmarks/train_on_part/{part}.tsv"
    wildcard_constraints:
        part=one_of(PARTS),
    params:
        settings=part_settings,
        folder=subpath(output[0], parent=True),
        threads=lambda wildcards, threads: max(1, threads // max(1, CONFIG.train.gpus)),


use rule evaluate_here as evaluate_part_here with:
    input:
        prompts="evaluation/prompts.jsonl",
        draft="scaling/1-of-{part}/draft/model.safetensors",
        config="scaling/1-of-{part}/draft/config.json",
        head="target/head.safetensors",
        model=TARGET_MODEL,
    output:
        ensure("scaling/1-of-{part}/{engine}.jsonl", non_empty=True),
    log:
        "logs/evaluate_part_here/{part}-{engine}.log",
    benchmark:
        "benchmarks/evaluate_part_here/{part}-{engine}.tsv"
    wildcard_constraints:
        part=one_of(PARTS),
        engine="walk",


use rule evaluate_sglang as evaluate_part_on_sglang with:
    input:
        prompts="evaluation/prompts.jsonl",
        draft="scaling/1-of-{part}/draft/model.safetensors",
        config="scaling/1-of-{part}/draft/config.json",
        model=TARGET_MODEL,
    output:
        trials=ensure("scaling/1-of-{part}/sglang.jsonl", non_empty=True),
        speed="scaling/1-of-{part}/speed.json",
    log:
        "logs/evaluate_part_on_sglang/{part}.log",
    benchmark:
        "benchmarks/evaluate_part_on_sglang/{part}.tsv"
    wildcard_constraints:
        part=one_of(PARTS),


rule fit_scaling:
    """The acceptance length against the tokens trained on: a fit, its uncertainty, what the next doubling would bring."""
    input:
        trials=[*PART_TRIALS, f"evaluation/{ENGINES[0]}.jsonl"],
        training=[*(f"scaling/1-of-{part}/draft/training.json" for part in PARTS), "draft/training.json"],
    output:
        "scaling/summary.json",
    log:
        "logs/fit_scaling.log",
    conda:
        "../envs/workflow.yaml"
    shell:
        "python $SCRIPTS/fit_scaling.py --trials {input.trials:q} --training {input.training:q} "
        "--out {output:q} 2>&1 | tee {log:q}"
