"""deploy/: the draft with its model card, the server's command, a check of the running server.

Needs draft/, evaluation/summary.json and corpus/.
"""


rule deploy_draft:
    """Put together what is copied to a host, or pushed to the Hub; no draft in the command when it is slower."""
    input:
        remade_when_blank("deploy/draft/model.safetensors", "deploy/draft/config.json", "deploy/launch_server.sh"),
        draft="draft/model.safetensors",
        training="draft/training.json",
        summary="evaluation/summary.json",
        prompts="evaluation/prompts.jsonl",
        stats="corpus/stats.json",
    output:
        "deploy/draft/model.safetensors",
        "deploy/draft/config.json",
        "deploy/draft/README.md",
        "deploy/launch_server.sh",
        "deploy/check",
        "deploy/prompts.json",
    log:
        "logs/deploy_draft.log",
    benchmark:
        "benchmarks/deploy_draft.tsv"
    conda:
        "../envs/workflow.yaml"
    params:
        settings=deploy_settings,
    shell:
        "python $SCRIPTS/deploy_draft.py --output-dir deploy --settings {params.settings:q} &> {log:q}"


rule push_draft:
    """Push the draft to the Hub; needs a token (HF_TOKEN, or `hf auth login`) and nothing else."""
    input:
        "deploy/draft/model.safetensors",
        "deploy/draft/config.json",
        "deploy/draft/README.md",
    output:
        "deploy/pushed.json",
    log:
        "logs/push_draft.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        settings=deploy_settings,
    shell:
        "python $SCRIPTS/push_draft.py --settings {params.settings:q} --out {output:q} 2>&1 | tee {log:q}"
