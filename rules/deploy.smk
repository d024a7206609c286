"""deploy/: the draft with its model card, the server's command, a check of the running server.

Needs draft/, evaluation/summary.json and corpus/.
"""


rule deploy_draft:
    """Put together what is copied to a host, or pushed to the Hub; no draft in the command when it is slower."""
    input:
        draft="draft/model.safetensors",
        training="draft/training.json",
        summary="evaluation/summary.json",
        corpus="corpus/heldout.parquet",
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
