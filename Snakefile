"""eyas: raises EAGLE-3 draft models, from ten datasets to a measured speedup.

What there is to build, stage by stage:

    prepared    prepared/<dataset>/prompts.jsonl (B*) or tokenized_data.jsonl (A*)
    generated   responses/<dataset>/tokenized_data.jsonl: the target's answers, token for token
    corpus      corpus/{train,heldout}.parquet, and draft_vocab/map.safetensors, the tokens that the draft can propose
    captured    hidden_states/{train,heldout}/<shard>.safetensors: the target's states on the corpus
    trained     draft/{model.safetensors,config.json}: the draft, as SGLang serves it
    evaluated   evaluation/summary.json: how much faster the target is with the draft
    deployed    deploy/: draft, model card, the server's command, a check
    all         every file of every dataset, and the report's pages

Of its own accord no run does these:

    sweep       evaluation/sweep.json: which chain or tree of drafts is the fastest
    scaling     scaling/summary.json: drafts on parts of the corpus, and what more data would bring
    pushed      deploy/pushed.json: the draft on the Hub

To ask before or after: `probe` (the first rows of each dataset through its adapter), `plan` (tokens, disk,
hours), `tally` (the inventory).
"""

from snakemake.utils import min_version

min_version("9.27")


configfile: f"{workflow.basedir}/config/config.yaml"
configfile: f"{workflow.basedir}/config/datasets.yaml"


report: "rules/report/workflow.rst"


include: "rules/common.smk"
include: "rules/sources.smk"
include: "rules/prepare.smk"
include: "rules/generate.smk"
include: "rules/corpus.smk"
include: "rules/capture.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/scaling.smk"
include: "rules/deploy.smk"
include: "rules/inventory.smk"


onstart:
    check_gpus()
    link_folders(CONFIG.storage.places, Path.cwd())


rule all:
    """Every per-dataset file, and the pages of the report."""
    default_target: True
    input:
        # All files, also those in the middle: a missing one is noticed only when it is asked for.
        "target/tokenizer/manifest.json",
        expand("sources/{dataset}/manifest.json", dataset=DATASETS),
        PREPARED,
        expand(
            "prepared/{dataset}/{beside}",
            dataset=DATASETS,
            beside=["rejects.jsonl", "stats.json"],
        ),
        TARGET_MODEL,
        RESPONSES,
        expand(
            "responses/{dataset}/{beside}",
            dataset=PROMPT_DATASETS,
            beside=["rejects.jsonl", "stats.json"],
        ),
        CORPUS,
        VOCABULARY,
        STATES,
        DRAFT,
        EVALUATION,
        DEPLOYMENT,
        expand("reports/prepared/{dataset}.html", dataset=DATASETS),
        expand("reports/responses/{dataset}.html", dataset=PROMPT_DATASETS),
        "reports/corpus.html",
        "reports/training.html",
        "reports/tally.html",
        "reports/run.html",


rule prepared:
    """The first stage: prompts and token records of every dataset."""
    input:
        PREPARED,


rule generated:
    """The second stage: the target's answers to every prompt dataset."""
    input:
        RESPONSES,


rule corpus:
    """The third stage: one corpus of all token records, and the draft's vocabulary."""
    input:
        CORPUS,
        VOCABULARY,


rule captured:
    """The fourth stage: the target's hidden states on the corpus."""
    input:
        STATES,


rule trained:
    """The fifth stage: the draft."""
    input:
        DRAFT,


rule evaluated:
    """The sixth stage: whether the draft makes serving faster."""
    input:
        EVALUATION,


rule deployed:
    """The last stage: what is copied to a host, or pushed to the Hub."""
    input:
        DEPLOYMENT,


rule sweep:
    """Which chain or tree of drafts is the fastest."""
    input:
        SWEEP,


rule scaling:
    """What more data would bring, by drafts trained on parts of it."""
    input:
        SCALING,


rule pushed:
    """The draft on the Hub."""
    input:
        "deploy/pushed.json",
