"""The corpus: all token records in one order, split into what trains and what judges; the draft's vocabulary.

Needs the token records of every dataset with their statistics (prepared/ of A*, responses/ of B*).
"""


rule build_corpus:
    """Put all datasets' token records into one corpus: hashed order, no repeats, split by prompt."""
    input:
        remade_when_blank("corpus/train.parquet", "corpus/heldout.parquet", "corpus/stats.json"),
        RECORDS,
        [f"{os.path.dirname(path)}/stats.json" for path in RECORDS],
    output:
        ensure("corpus/train.parquet", non_empty=True),
        "corpus/heldout.parquet",
        "corpus/rejects.jsonl",
        "corpus/stats.json",
    log:
        "logs/build_corpus.log",
    benchmark:
        "benchmarks/build_corpus.tsv"
    conda:
        "../envs/workflow.yaml"
    threads: CONFIG.resources.prepare_threads
    resources:
        mem_mb=CONFIG.resources.prepare_mem_mb,
    params:
        settings=corpus_settings,
    shell:
        "python $SCRIPTS/build_corpus.py --output-dir corpus --threads {threads} "
        "--settings {params.settings:q} &> {log:q}"


rule build_vocabulary:
    """Choose the tokens that the draft can propose."""
    input:
        remade_when_blank("draft_vocab/map.safetensors", "draft_vocab/coverage.json"),
        "corpus/train.parquet",
        "corpus/heldout.parquet",
    output:
        ensure("draft_vocab/map.safetensors", non_empty=True),
        "draft_vocab/coverage.json",
    log:
        "logs/build_vocabulary.log",
    benchmark:
        "benchmarks/build_vocabulary.tsv"
    conda:
        "../envs/workflow.yaml"
    params:
        settings=vocabulary_settings,
    shell:
        "python $SCRIPTS/build_vocabulary.py --corpus corpus --output-dir draft_vocab "
        "--settings {params.settings:q} &> {log:q}"
