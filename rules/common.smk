"""Constants, target lists, input and resource functions. No rules.

Needs the merged configuration; makes CONFIG (checked) and what the rules share.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, f"{workflow.basedir}/scripts")

from eyas.adapters.base import check_adapters
from eyas import config as configuration
from eyas.differences import differences
from eyas.errors import EyasError
from eyas.rebuild import is_no_shard, lacks_files, remade_when, remade_when_blank
from eyas.storage import link_folders
from eyas.tally import settings_fingerprint

try:
    CONFIG = configuration.parse(config)
    check_adapters(CONFIG)
    link_folders(CONFIG.storage.places, Path.cwd(), make=False)  # the rest when a run starts: a dry run makes nothing
except EyasError as error:
    raise WorkflowError(str(error)) from None

DATASETS = CONFIG.names()
PROMPT_DATASETS = CONFIG.names("prompts")
TOKENIZED_DATASETS = CONFIG.names("tokenized_data")
BENCHMARKS = CONFIG.names("benchmark")
PREPARED_BENCHMARKS = [f"prepared/{d}/prompts.jsonl" for d in BENCHMARKS]
PREPARED = [f"prepared/{d}/prompts.jsonl" for d in PROMPT_DATASETS] + PREPARED_BENCHMARKS
PREPARED += [f"prepared/{d}/tokenized_data.jsonl" for d in TOKENIZED_DATASETS]
SHARDED = [d for d in DATASETS if CONFIG.preparation(d).shards > 1]
RESPONSES = [f"responses/{d}/tokenized_data.jsonl" for d in PROMPT_DATASETS]

TRAINED_ON = CONFIG.names("prompts", "tokenized_data")
RECORDS = [f"{'responses' if d in PROMPT_DATASETS else 'prepared'}/{d}/tokenized_data.jsonl" for d in TRAINED_ON]
CORPUS = ["corpus/train.parquet", "corpus/heldout.parquet", "corpus/stats.json"]
VOCABULARY = ["draft_vocab/map.safetensors", "draft_vocab/coverage.json"]
STATES = [
    f"hidden_states/{split}/{k:05}-of-{count:05}.safetensors"
    for split, count in CONFIG.capture.counts.items()
    for k in range(count)
    if split == "heldout" or CONFIG.capture.window is None  # in a window they come and go
]
DRAFT = [f"draft/{name}" for name in ("model.safetensors", "config.json", "metrics.jsonl", "training.json")]

# The engines that the draft is tried with.
SERVED_BY_SGLANG = CONFIG.target.engine == "sglang"
ENGINES = CONFIG.engines()
TRIALS = [f"evaluation/{engine}.jsonl" for engine in ENGINES]
EVALUATION = ["evaluation/summary.json", "reports/evaluation.html"]
SWEEP = ["evaluation/sweep.json", "reports/sweep.html"]
SCALING = ["scaling/summary.json", "reports/scaling.html"]
DEPLOYMENT = [f"deploy/{name}" for name in ("draft/model.safetensors", "launch_server.sh", "check")]

# What the target's engine needs: converted weights; no file when the engine loads them itself.
TARGET_MODEL = [f"{CONFIG.target.model}/manifest.json"] if CONFIG.target.weights is not None else []
# Of more nodes than one, train_draft.py asks for the tasks itself: to the Slurm plugin such a job is an MPI job.
TRAIN_DEVICES = {"gpu": CONFIG.train_gpus * CONFIG.train.nodes}
if CONFIG.train.nodes > 1:
    TRAIN_DEVICES |= {"nodes": CONFIG.train.nodes, "tasks": CONFIG.train.nodes, "mpi": "srun"}

# Threads of torch that wait spin for some 50 µs and then sleep: without a bound they cost five times their work on shared
# cores, without any spin a quarter of the rate on free ones. libgomp reads it when it is loaded: a script is too late.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

# Every command runs the interpreter that runs Snakemake (unless conda brings another), on $SCRIPTS.
# A prefix replaces Snakemake's own, so the strict mode stands here again.
shell.prefix(
    f"set -euo pipefail; export SCRIPTS='{workflow.basedir}/scripts'; "
    + (
        ""
        if workflow.deployment_settings.deployment_method
        else f"export PATH='{os.path.dirname(sys.executable)}':\"$PATH\"; "
    )
)


wildcard_constraints:
    dataset="|".join(DATASETS),


def one_of(names):
    """A wildcard constraint: one of the names, or nothing at all when there are none."""
    return "|".join(names) or "(?!)"


def source_settings(wildcards):
    """JSON that scripts/fetch_source.py reads."""
    sources = [s.model_dump(mode="json") for s in CONFIG.dataset(wildcards.dataset).sources]
    return json.dumps({"dataset": wildcards.dataset, "sources": sources})


def prepare_settings(wildcards):
    """JSON of all that decides what prepared/<dataset>/ holds."""
    return json.dumps(CONFIG.prepare_settings(wildcards.dataset))


def shards_of(wildcards):
    """What the shards of one dataset hand over; nothing when it is prepared in one job."""
    count = CONFIG.preparation(wildcards.dataset).shards
    folder = f"prepared/{wildcards.dataset}/shards"
    return [f"{folder}/{k:05}-of-{count:05}" for k in range(count)] if wildcards.dataset in SHARDED else []


def shard_threads(wildcards):
    """Threads of a job that reads one shard: a capped one leaves the encoding to the job that merges."""
    return CONFIG.resources.prepare_threads if CONFIG.preparation(wildcards.dataset).cap is None else 1


def shard_is_old(folder):
    """Whether a shard, left by a run that failed before it was merged, was read under other settings than today's."""
    try:
        settings = json.loads((folder / "counts.json").read_bytes())["settings"]
    except (OSError, ValueError, KeyError):
        return True
    return bool(differences(settings, CONFIG.prepare_settings(folder.parent.parent.name)))


def generate_settings(wildcards):
    """JSON of all that responses/<dataset>/ is made with."""
    return json.dumps(CONFIG.generate_settings(wildcards.dataset))


def target_settings(wildcards):
    """JSON of the config's target."""
    return CONFIG.target.model_dump_json()


def corpus_settings(wildcards):
    """JSON of all that corpus/ is made with besides the records."""
    return json.dumps(CONFIG.corpus_settings())


def vocabulary_settings(wildcards):
    """JSON of all that draft_vocab/ is made with besides the corpus."""
    return json.dumps(CONFIG.vocabulary_settings())


def capture_settings(wildcards):
    """JSON of all that hidden_states/ is made with besides the corpus."""
    return json.dumps(CONFIG.capture_settings())


def train_settings(wildcards):
    """JSON of all that draft/ is made with besides the states."""
    return json.dumps(CONFIG.train_settings())


def part_settings(wildcards):
    """JSON of all that a draft on a part of the corpus is made with."""
    return json.dumps(CONFIG.part_settings(int(wildcards.part)))


def evaluate_settings(wildcards):
    """JSON of all that evaluation/ is made with besides the draft and the prompts."""
    return json.dumps(CONFIG.evaluate_settings())


def deploy_settings(wildcards):
    """JSON of all that deploy/ is made with besides the draft and what was measured."""
    return json.dumps(CONFIG.deploy_settings())


def whole_config(wildcards):
    """JSON of the whole configuration."""
    return CONFIG.model_dump_json()


def prepared_file(wildcards):
    """The records of one dataset."""
    return f"prepared/{wildcards.dataset}/{CONFIG.dataset(wildcards.dataset).produces}.jsonl"


def going_on(wildcards):
    """No file: where jobs share an allocation, one that fails leaves the others, as it does everywhere.

    Snakemake does not pass --keep-going on to an allocation, and reads it once it has asked for the input files.
    """
    if workflow.remote_exec:
        workflow.execution_settings.keep_going = True
    return []


def check_gpus():
    """Refuse to start where Snakemake would not count GPUs, or would clip what a rule asks for, both in silence."""
    if workflow.non_local_exec or workflow.remote_exec:
        return  # the cluster counts
    asked = {job.rule.name: gpus_of(job.rule) for job in workflow.dag.needrun_jobs()}
    most = max(asked, key=asked.get, default=None)
    cap = workflow.global_resources.get("gpu").value
    if most is None or (cap or 0) >= asked[most]:
        return
    raise WorkflowError(
        f"rule {most} asks for {asked[most]} GPUs, this run has "
        + ("no count of them" if cap is None else f"{cap} (resources: gpu)")
        + f": use a profile of your host (--profile profiles/blackwell), or --resources gpu={asked[most]} when the "
        "host has them, or fewer in the configuration (target.sglang.gpus, train.gpus)"
    )


def gpus_of(rule):
    """What a rule asks for, before Snakemake clips it."""
    return rule.resources.get("gpu").value or 0  # a resource without a value when it asks for none


def tally_is_old(path):
    """Whether the inventory was counted under other settings than today's."""
    try:
        return json.loads(path.read_bytes())["settings_fingerprint"] != settings_fingerprint(CONFIG)
    except (ValueError, KeyError):
        return True


def command_prefix(argv):
    """`snakemake` with the profile of this run, for the commands that messages name."""
    for flag, value in zip(argv, argv[1:]):
        if flag == "--profile":
            return f"snakemake --profile {value}"
    return "snakemake"


COMMAND = command_prefix(sys.argv)
