"""What there is: probes before a run, the inventory after it, a page of the report for each dataset.

Needs prepared/; makes reports/. `probe` and `tally` are questions: they have no output and run whenever asked.
"""


rule describe_prepared:
    """A page on one dataset: where its rows went, lengths, reasons for rejects, examples."""
    input:
        remade_when_blank("reports/prepared/{dataset}.html"),
        records=prepared_file,
        stats="prepared/{dataset}/stats.json",
        rejects="prepared/{dataset}/rejects.jsonl",
        tokenizer="target/tokenizer/manifest.json",
    output:
        report(
            "reports/prepared/{dataset}.html",
            caption="report/prepared.rst",
            category="3 Prepared",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "logs/describe_prepared/{dataset}.log",
    benchmark:
        "benchmarks/describe_prepared/{dataset}.tsv"
    conda:
        "../envs/workflow.yaml"
    params:
        folder=subpath(input.stats, parent=True),
    shell:
        "python $SCRIPTS/describe_records.py --records-dir {params.folder:q} --tokenizer target/tokenizer "
        "--out {output:q} &> {log:q}"


use rule describe_prepared as describe_responses with:
    input:
        remade_when_blank("reports/responses/{dataset}.html"),
        records="responses/{dataset}/tokenized_data.jsonl",
        stats="responses/{dataset}/stats.json",
        rejects="responses/{dataset}/rejects.jsonl",
        tokenizer="target/tokenizer/manifest.json",
    output:
        report(
            "reports/responses/{dataset}.html",
            caption="report/responses.rst",
            category="4 Answers",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "logs/describe_responses/{dataset}.log",
    benchmark:
        "benchmarks/describe_responses/{dataset}.tsv"


rule describe_corpus:
    """A page on what the draft is trained on: corpus, draft vocabulary, hidden states."""
    input:
        remade_when_blank("reports/corpus.html"),
        corpus="corpus/stats.json",
        vocabulary="draft_vocab/coverage.json",
        states=[path.replace(".safetensors", ".json") for path in STATES],
    output:
        report("reports/corpus.html", caption="report/corpus.rst", category="5 Corpus"),
    log:
        "logs/describe_corpus.log",
    benchmark:
        "benchmarks/describe_corpus.tsv"
    conda:
        "../envs/workflow.yaml"
    shell:
        "python $SCRIPTS/describe_corpus.py --corpus {input.corpus:q} --vocabulary {input.vocabulary:q} "
        "--states {input.states:q} --out {output:q} &> {log:q}"


rule describe_training:
    """A page on the training: losses, accuracies, simulated acceptance length, rates."""
    input:
        remade_when_blank("reports/training.html"),
        metrics="draft/metrics.jsonl",
        summary="draft/training.json",
    output:
        report("reports/training.html", caption="report/training.rst", category="6 Training"),
    log:
        "logs/describe_training.log",
    benchmark:
        "benchmarks/describe_training.tsv"
    conda:
        "../envs/workflow.yaml"
    shell:
        "python $SCRIPTS/describe_training.py --metrics {input.metrics:q} --summary {input.summary:q} "
        "--out {output:q} &> {log:q}"


rule describe_evaluation:
    """A page on the evaluation: the verdict, acceptance by position and dataset, the cost of a step."""
    input:
        remade_when_blank("reports/evaluation.html"),
        summary="evaluation/summary.json",
    output:
        report("reports/evaluation.html", caption="report/evaluation.rst", category="7 Evaluation"),
    log:
        "logs/describe_evaluation.log",
    benchmark:
        "benchmarks/describe_evaluation.tsv"
    conda:
        "../envs/workflow.yaml"
    shell:
        "python $SCRIPTS/describe_evaluation.py --summary {input.summary:q} --out {output:q} &> {log:q}"


use rule describe_evaluation as describe_sweep with:
    input:
        remade_when_blank("reports/sweep.html"),
        summary="evaluation/sweep.json",
    output:
        report("reports/sweep.html", caption="report/sweep.rst", category="7 Evaluation"),
    log:
        "logs/describe_sweep.log",
    benchmark:
        "benchmarks/describe_sweep.tsv"


use rule describe_evaluation as describe_scaling with:
    input:
        remade_when_blank("reports/scaling.html"),
        summary="scaling/summary.json",
    output:
        report("reports/scaling.html", caption="report/scaling.rst", category="7 Evaluation"),
    log:
        "logs/describe_scaling.log",
    benchmark:
        "benchmarks/describe_scaling.tsv"


rule describe_run:
    """The report's first page: the whole run, from data to speedup, and what it cost."""
    input:
        remade_when_blank("reports/run.html"),
        expand("prepared/{dataset}/stats.json", dataset=DATASETS),
        expand("responses/{dataset}/stats.json", dataset=PROMPT_DATASETS),
        CORPUS,
        VOCABULARY,
        STATES,
        DRAFT,
        "evaluation/summary.json",
        DEPLOYMENT,
    output:
        report("reports/run.html", caption="report/run.rst", category="1 The run"),
    log:
        "logs/describe_run.log",
    benchmark:
        "benchmarks/describe_run.tsv"
    conda:
        "../envs/workflow.yaml"
    params:
        config=whole_config,
    shell:
        "python $SCRIPTS/describe_run.py --config {params.config:q} --out {output:q} &> {log:q}"


rule tally_records:
    """The inventory as a page; remade when a file or the settings have changed, so that it tells the truth."""
    input:
        remade_when("counted-under-other-settings", tally_is_old, "reports/tally.json"),
        PREPARED,
        expand("prepared/{dataset}/stats.json", dataset=DATASETS),
        RESPONSES,
        expand("responses/{dataset}/stats.json", dataset=PROMPT_DATASETS),
    output:
        json="reports/tally.json",
        html=report("reports/tally.html", caption="report/tally.rst", category="2 Inventory"),
    log:
        "logs/tally_records.log",
    benchmark:
        "benchmarks/tally_records.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.prepare_threads
    params:
        config=whole_config,
        command=COMMAND,
    shell:
        "python $SCRIPTS/tally_records.py --config {params.config:q} --command-prefix {params.command:q} "
        "--threads {threads} --json {output.json:q} --html {output.html:q} &> {log:q}"


rule tally:
    """Count the valid records of every dataset now, and list what is missing, damaged or stale."""
    log:
        "logs/tally.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.prepare_threads
    params:
        config=whole_config,
        command=COMMAND,
    shell:
        "python $SCRIPTS/tally_records.py --config {params.config:q} --command-prefix {params.command:q} "
        "--threads {threads} 2> {log:q} | tee -a {log:q}"


rule probe:
    """Run the first rows of every dataset through its adapter: yields and reasons, before hours are spent."""
    input:
        tokenizer="target/tokenizer/manifest.json",
    log:
        "logs/probe.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        config=whole_config,
    shell:
        "python $SCRIPTS/probe_datasets.py --config {params.config:q} 2> {log:q} | tee -a {log:q}"


rule plan:
    """Estimate tokens, disk and hours of the whole run; fails when the states do not fit on the disk."""
    input:
        tokenizer="target/tokenizer/manifest.json",
    log:
        "logs/plan.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        config=whole_config,
    shell:
        "python $SCRIPTS/plan_run.py --config {params.config:q} 2> {log:q} | tee -a {log:q}"
