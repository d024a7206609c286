"""The typed configuration: what config/*.yaml may say, and what each mistake is told.

The models are strict: a key that does not exist is an error that names the nearest valid one.
Snakemake merges the YAML files (and `--config`) into one dict; `parse` checks it. A script that is
run by hand reads the same files with `load`.
"""

import difflib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eyas.errors import EyasError

ROOT = Path(__file__).resolve().parents[2]
# Keys of `target` that decide how text becomes tokens.
TOKENIZING = {"name", "tokenizer", "trust_remote_code", "chat_format", "expected_tokens"}
# Settings of a dataset that travel to its job but decide nothing of what it holds: a change makes nothing stale.
DECIDES_NOTHING = (
    *("max_rejected", "target.name", "target.sglang", "target.weights"),
    *("sampling.concurrency", "sampling.tries", "sampling.max_failed"),
)
DEFAULT_CONFIGFILES = (ROOT / "config/config.yaml", ROOT / "config/datasets.yaml")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Strict):
    """Where files come from: exactly one of a Hub repository, a local folder, a Python package."""

    repo: str | None = Field(None, description="Hub repository, as owner/name.")
    repo_type: Literal["dataset", "model"] = Field("dataset", description="Kind of Hub repository.")
    revision: str = Field(
        "main", description="Commit (best), tag or branch of `repo`; what it resolves to is recorded."
    )
    folder: str | None = Field(
        None, description="Local folder that holds the files; relative to the working directory."
    )
    package: str | None = Field(None, description="Installed Python package (import name) that carries the files.")
    config: str | None = Field(
        None, description="Configuration of the dataset on the Hub; stands for {config} in `files`."
    )
    files: tuple[str, ...] = Field(min_length=1, description="File names or patterns (* ? []) inside the source.")

    @model_validator(mode="after")
    def one_place(self) -> "Source":
        places = [key for key in ("repo", "folder", "package") if getattr(self, key)]
        if len(places) != 1:
            found = " and ".join(places) or "none of them"
            raise ValueError(
                f"a source names exactly one of repo, folder, package; found {found} "
                "(in a config file laid over another, set the one below to null)"
            )
        if self.config is None and any("{config}" in f for f in self.files):
            raise ValueError("`files` says {config} but the source has no `config`: name one, e.g. config: all")
        return self

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(f.replace("{config}", self.config or "") for f in self.files)

    @property
    def place(self) -> str:
        """The source in words, for messages."""
        if self.repo:
            return f"{self.repo} ({self.repo_type}) at {self.revision}"
        return f"folder {self.folder}" if self.folder else f"package {self.package}"


class Sglang(Strict):
    """The SGLang server that answers: one that eyas starts, or one that runs already (`url`)."""

    python: str = Field("python", description="Interpreter that has SGLang; relative to the working directory.")
    version: str = Field("0.5.23", description="SGLang's version that is expected there; another one is refused.")
    url: str | None = Field(None, description="A server that runs already, e.g. http://host:30000; none is started.")
    flags: dict[str, bool | int | float | str | list[str]] = Field(
        default_factory=dict,
        description="Flags of sglang.launch_server without dashes; true for a switch. Checked by its own parser.",
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the server.")
    gpus: int = Field(8, ge=0, description="GPUs of one copy of the target (tp times pp); 0 for a CPU server.")
    replicas: int = Field(
        1, ge=1, description="Copies of a small target side by side; the server spreads requests over them (dp-size)."
    )
    ready_timeout_s: float = Field(3600, gt=0, description="How long loading may take until the first real answer.")
    idle_s: float = Field(120, ge=0, description="The server ends so long after its last client.")
    restarts: int = Field(3, ge=0, description="A server that dies is started again, so often in the window at most.")
    restart_window_s: float = Field(3600, gt=0, description="The window in which restarts are counted.")

    @property
    def deciding(self) -> dict:
        """What makes one server another, as plain JSON."""
        return self.model_dump(mode="json", include={"python", "version", "flags", "env", "gpus", "replicas"})

    @property
    def all_gpus(self) -> int:
        """GPUs that the server takes on its host."""
        return self.gpus * self.replicas


class Target(Strict):
    """The model that the draft imitates."""

    name: str = Field(description="Name for messages and reports.")
    model: str = Field(description="What the engine loads: a Hub repository, or a folder (from the working directory).")
    weights: Source | None = Field(
        None, description="A .gguf file that is converted to the folder `model`; null when `model` is there already."
    )
    engine: Literal["sglang", "transformers"] = Field(
        "sglang", description="`sglang`: a server, for real work; `transformers`: embedded, for small targets."
    )
    sglang: Sglang = Sglang()
    tokenizer: Source = Field(
        description="Files of the tokenizer and its chat template; a lone .gguf file is converted."
    )
    trust_remote_code: bool = Field(
        False, description="Whether the tokenizer's own Python code may run (Kimi needs it)."
    )
    chat_format: Literal["kimi", "template"] = Field(
        "template",
        description="`kimi`: the structure written in eyas/chat/kimi.py; `template`: read off the chat template.",
    )
    expected_tokens: dict[str, int] = Field(
        default_factory=dict,
        description="Token → id that the loaded tokenizer must agree with; a wrong backend is refused.",
    )

    @property
    def own_trial(self) -> Literal["sglang", "walk"]:
        """The engine that the draft is tried with before any witness: the one that serves, else the reference."""
        return "sglang" if self.engine == "sglang" else "walk"


class Preparation(Strict):
    """How a dataset becomes records; each key can be set for all (`prepare:`) or for one dataset."""

    cap: int | None = Field(
        None, ge=1, description="Keep at most so many rows, chosen by a hash of their content; null: all."
    )
    max_tokens: int = Field(8192, ge=16, description="Longer prompts or records are counted as too_long, never cut.")
    turns: Literal["first_user", "last_user"] = Field(
        "first_user",
        description="Prompts: context up to the first user turn with text, or all turns up to the last user turn.",
    )
    loss_mask: Literal["assistant", "after_first_user"] = Field(
        "assistant",
        description="Tokenized sets: train the assistant's tokens, or each token after the first user message.",
    )
    max_rejected: float = Field(0.05, ge=0, le=1, description="A larger share of damaged rows fails the dataset.")
    min_yield: float = Field(
        0.5, ge=0, le=1, description="`snakemake probe` fails a dataset that keeps a smaller share of rows."
    )
    shards: int = Field(
        1, ge=1, le=10000, description="Jobs that share the reading of the source files; the result is the same."
    )


class Dataset(Strict):
    """One dataset: where it comes from, which adapter reads it, what it becomes."""

    adapter: Name = Field(description="Module in scripts/eyas/adapters that reads its rows.")
    produces: Literal["prompts", "tokenized_data"] = Field(
        description="`prompts`: the target must still answer; `tokenized_data`: already the target's words."
    )
    sources: tuple[Source, ...] = Field(min_length=1, description="The files it is made of, in order.")
    benchmark: bool = Field(
        False, description="A public set that judges the draft: its prompts are asked in the evaluation, never trained."
    )
    license: str | None = Field(None, description="As its page on the Hub says; the model card names it.")
    options: dict[str, Any] = Field(default_factory=dict, description="The adapter's own options (see its module).")
    prepare: dict[str, Any] = Field(
        default_factory=dict, description="Keys of `prepare:` that differ for this dataset."
    )
    generate: dict[str, Any] = Field(
        default_factory=dict, description="Keys of `generate:` that differ for this dataset."
    )

    @property
    def kind(self) -> str:
        """What becomes of it: `prompts` that are answered, `tokenized_data`, or a `benchmark`."""
        return "benchmark" if self.benchmark else self.produces

    @model_validator(mode="after")
    def benchmarks_are_prompts(self) -> "Dataset":
        if self.benchmark and self.produces != "prompts":
            raise ValueError("a benchmark set is asked, not trained on: produces: prompts")
        return self


class Generation(Strict):
    """How the target answers; each key can be set for all (`generate:`) or for one dataset."""

    temperature: float = Field(1.0, ge=0, description="0: greedy. Kimi-K2.5: 1.0 thinking, 0.6 instant.")
    top_p: float = Field(0.95, gt=0, le=1, description="Nucleus sampling: the smallest set of tokens that has it.")
    max_new_tokens: int = Field(4096, ge=1, description="An answer is cut after so many tokens (and counted as cut).")
    thinking: bool = Field(True, description="Whether the target thinks before it answers, where its format has that.")
    seed: int = Field(0, ge=0, description="Of the sampling; each prompt's own seed is drawn from it and its id.")
    keep_cut: bool = Field(True, description="Keep answers cut by max_new_tokens; false: count them as rejects.")
    concurrency: int = Field(160, ge=1, description="Prompts in flight at once.")
    tries: int = Field(5, ge=1, description="A prompt that fails so often is set aside.")
    max_failed: float = Field(0.02, ge=0, le=1, description="A larger share of prompts set aside fails the dataset.")


class Corpus(Strict):
    """How the token records of all datasets become what the draft is trained and judged on."""

    max_tokens: int = Field(4096, ge=16, description="Longer samples are cut here, where trainable tokens remain.")
    heldout: float = Field(
        0.01, ge=0, lt=1, description="Share of prompts, chosen by their hash, that only judge and never train."
    )


class DraftVocabulary(Strict):
    """Which tokens the draft can propose."""

    size: int = Field(32000, ge=1, description="So many tokens, those that are trained on most often.")
    ladder: tuple[int, ...] = Field(
        (4000, 8000, 16000, 32000, 64000), description="Sizes whose coverage is reported besides."
    )


class Capture(Strict):
    """How the target's hidden states are captured."""

    shards: int = Field(64, ge=1, description="Files that the training states are spread over; one job each.")
    heldout_shards: int = Field(1, ge=1, description="The same of the held-out states.")
    layers: tuple[int, int, int] | None = Field(
        None,
        description="Low, mid and high layer, as indexes into Hugging Face's output_hidden_states; null: 2, n//2, n-3.",
    )
    concurrency: int = Field(64, ge=1, description="Samples in flight at once.")
    flags: dict[str, bool | int | float | str | list[str]] = Field(
        default_factory=dict, description="Flags of the capturing server that differ from target.sglang.flags."
    )
    dtype: Literal["bf16", "fp8"] = Field(
        "bf16", description="`fp8`: half the disk, each number off by up to 1/16 (see eyas/states_encoding.py)."
    )
    min_agreement: float = Field(
        0.8, ge=0, le=1, description="Least share of greedy answers' tokens that lm_head must propose from the states."
    )
    min_agreement_sampled: float = Field(
        0.2, ge=0, le=1, description="The same of sampled answers, and of texts that were not generated here."
    )
    max_quarantined: float = Field(
        0.005, ge=0, le=1, description="A larger share of samples with unsound states fails the shard."
    )
    window: int | None = Field(
        None, ge=2, description="Keep at most so many training shards on the disk: captured ahead, trained on, dropped."
    )

    @property
    def counts(self) -> dict[str, int]:
        """split → shards"""
        return {"train": self.shards, "heldout": self.heldout_shards}


class DraftModel(Strict):
    """The draft's sizes; null: as the target has it."""

    intermediate_size: int | None = Field(None, ge=1, description="Width of its MLP.")
    num_attention_heads: int | None = Field(None, ge=1, description="Heads of its attention.")
    num_key_value_heads: int | None = Field(None, ge=1, description="Heads that share keys and values.")
    head_dim: int | None = Field(None, ge=2, description="Width of one head.")
    max_position_embeddings: int | None = Field(None, ge=16, description="The longest context that it is served with.")
    rope_theta: float | None = Field(None, gt=0, description="Base of its rotary positions.")
    rope_scaling: dict[str, Any] | None = Field(
        None, description="Their scaling, as in a Llama config.json; {rope_type: default} for none."
    )
    fc_norm: bool = Field(False, description="A norm of each aux state before fc (EAGLE-3.1).")
    warm_start: str | None = Field(
        None,
        description="A draft to start from, in SGLang's form: a folder, or a repository on the Hub. Its sizes and its "
        "vocabulary are taken over.",
    )
    warm_start_revision: str | None = Field(None, description="Commit, tag or branch of a draft on the Hub.")


class Training(Strict):
    """How the draft is trained."""

    steps: int = Field(7, ge=1, description="Steps of the training-time test: how far ahead the draft learns to look.")
    step_weights: tuple[float, ...] | None = Field(
        None, description="Weight of each step's loss; null: 0.8 to the power of the step."
    )
    supervision: Literal["predicted_token", "next_token", "position"] = Field(
        "predicted_token",
        description="Which positions count: those whose predicted token is trained on; or, as other projects have it, "
        "by the mask of the token before (`next_token`, speculators) or of two before (`position`, SpecForge).",
    )
    loss: Literal["kl", "hard", "lk"] = Field(
        "kl",
        description="`kl`: the target's distribution; `hard`: the next token, for greedy answers, needs no teacher; "
        "`lk`: the acceptance rate itself.",
    )
    train_lm_head: bool = Field(True, description="false: lm_head stays the target's rows.")
    scale_aux: bool = Field(True, description="Divide each aux state by its size; folded into fc at export.")
    epochs: int = Field(1, ge=1, description="Passes over the corpus.")
    max_minutes: float | None = Field(
        None, gt=0, description="Training ends after so many minutes, and the rates fall accordingly; null: no limit."
    )
    batch_tokens: int = Field(8192, ge=16, description="Tokens that one GPU works on at once; samples are packed.")
    batches_per_step: int = Field(8, ge=1, description="Such batches for one optimizer step, over all GPUs.")
    optimizer: Literal["adamw", "muon"] = Field("adamw", description="`muon`: for the matrices, AdamW for the rest.")
    lr: float = Field(1e-4, gt=0, description="AdamW's peak rate.")
    muon_lr: float = Field(0.01, gt=0, description="Muon's peak rate.")
    lm_head_lr: float | None = Field(None, gt=0, description="Peak rate of lm_head; null: lr.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="Of AdamW.")
    weight_decay: float = Field(0.0, ge=0, description="Of both optimizers.")
    clip: float = Field(0.5, gt=0, description="Largest norm of the gradient.")
    warmup: float = Field(0.02, ge=0, lt=1, description="Share of the training in which the rates rise.")
    min_lr: float = Field(0.1, ge=0, le=1, description="What is left of the rates at the end (cosine).")
    max_loss_ratio: float = Field(
        3.0, gt=1, description="A loss so many times the usual one stops the training before the step is taken."
    )
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Of the products; weights are fp32. auto: bf16 where it is fast."
    )
    seed: int = Field(0, ge=0, description="Of the first weights and of the order.")
    gpus: int = Field(1, ge=0, description="GPUs of a node, one process each (torchrun); 0: the CPU.")
    nodes: int = Field(1, ge=1, description="Nodes, each with so many GPUs; more than one under Slurm alone.")
    sharding: Literal["ddp", "fsdp"] = Field("ddp", description="`fsdp`: for a draft that one GPU cannot hold.")
    log_every: int = Field(20, ge=1, description="Optimizer steps between two lines of metrics.")
    evaluate_every: int = Field(500, ge=1, description="Optimizer steps between two judgements on held-out samples.")
    checkpoint_minutes: float = Field(10, gt=0, description="A killed run loses so many minutes at most.")
    verify_at_start: bool = Field(
        True, description="Read all shards and compare their checksums first; false: as they are read."
    )
    wandb: str | None = Field(None, description="Project on Weights & Biases; null: none.")


class Sweep(Strict):
    """What `snakemake sweep` tries: every chain with every topk."""

    chains: tuple[int, ...] = Field((1, 2, 3, 4, 5, 6, 7), min_length=1, description="Values of evaluate.chain.")
    topk: tuple[int, ...] = Field(
        (1, 4), min_length=1, description="Values of evaluate.topk; trees (above 1) are SGLang's alone."
    )
    prompts: int = Field(40, ge=1, description="Prompts that each is tried on, from the datasets in turn.")


class Evaluation(Strict):
    """How it is found out whether the draft makes serving faster."""

    prompts: int = Field(40, ge=1, description="Prompts of each dataset (held out) and benchmark set, at most.")
    max_prompt_tokens: int = Field(4096, ge=1, description="Longer prompts are passed over.")
    max_new_tokens: int = Field(512, ge=2, description="An answer is cut after so many tokens.")
    temperature: float = Field(0.0, ge=0, description="0: greedy, and the answers must be those without a draft.")
    chain: int = Field(3, ge=1, description="Tokens ahead that the draft proposes at each step (SGLang's num-steps).")
    topk: int = Field(1, ge=1, description="Branches of each token: 1 is a chain, more a tree (SGLang's eagle-topk).")
    draft_tokens: int | None = Field(
        None, ge=2, description="Tokens of a tree that the target verifies at once; null: 1 + chain × topk."
    )
    concurrency: tuple[int, ...] = Field(
        (1, 2, 4, 8, 16), min_length=1, description="Answers at once at which the speed is measured, on a server."
    )
    serving_concurrency: int = Field(
        1, ge=1, description="Answers at once that the server will have, one of `concurrency`: the verdict is for it."
    )
    witnesses: tuple[Literal["walk", "llamacpp"], ...] = Field(
        (),
        description="Engines that try the draft beside the target's own, on a machine that can run the target without "
        "SGLang: `walk`, the reference in one process; `llamacpp`, llama.cpp by xllamacpp.",
    )
    witness_prompts: int | None = Field(
        None, ge=1, description="Prompts of each dataset that witnesses are asked; null: all."
    )
    max_gap: float = Field(
        0.3,
        gt=0,
        lt=1,
        description="Serving gains less than the training simulated; a share of the gain that is lost beyond this is "
        "told as a finding.",
    )
    flags: dict[str, Any] = Field(
        default_factory=dict,
        description="Flags of a server with the draft, where they differ from target.sglang.flags.",
    )
    min_acceptance: float = Field(1.05, ge=1, description="At a smaller acceptance length the evaluation fails.")
    sweep: Sweep = Sweep()

    @model_validator(mode="after")
    def fits_together(self) -> "Evaluation":
        if self.serving_concurrency not in self.concurrency:
            raise ValueError(
                f"serving_concurrency is {self.serving_concurrency}, which `concurrency` ({self.concurrency}) lacks: "
                "the verdict is for a concurrency that was measured"
            )
        if self.topk == 1 and self.draft_tokens not in (None, self.chain + 1):
            raise ValueError(
                f"draft_tokens is {self.draft_tokens}: a chain has chain + 1 = {self.chain + 1}: leave the key out"
            )
        return self

    @property
    def sampling(self) -> Generation:
        return Generation(temperature=self.temperature, max_new_tokens=self.max_new_tokens, top_p=1)


class Scaling(Strict):
    """Whether more data would help: drafts trained on parts of the corpus, with equal settings."""

    parts: tuple[int, ...] = Field(
        (8, 4, 2), min_length=2, description="A draft is trained on 1/8, 1/4, 1/2 of the samples, beside the whole."
    )

    @model_validator(mode="after")
    def are_parts(self) -> "Scaling":
        if min(self.parts) < 2 or len(set(self.parts)) < len(self.parts):
            raise ValueError("parts are denominators above 1, each once: 8 stands for 1/8 of the samples")
        return self


class Deployment(Strict):
    """Where the draft is pushed."""

    repo: str | None = Field(
        None, description="Repository on the Hub, owner/name; null: the token's owner / the target's name with -eagle3."
    )
    private: bool = Field(True, description="Whether a repository that does not exist yet is made a private one.")


# Settings of the training that do not decide what comes of it: a run goes on when they change.
DECIDES_NO_TRAINING = (
    *("gpus", "nodes", "log_every", "evaluate_every", "checkpoint_minutes"),
    *("verify_at_start", "max_loss_ratio", "wandb"),
)


class Storage(Strict):
    """Large folders of the working directory that lie elsewhere, by absolute paths; null: here."""

    sources: str | None = Field(None, description="Downloads.")
    hidden_states: str | None = Field(None, description="States: 57 kB a token for Kimi-K2.5.")
    state: str | None = Field(None, description="Journals, checkpoints, servers' logs.")
    draft: str | None = Field(None, description="The draft.")
    scaling: str | None = Field(None, description="Drafts on parts of the corpus.")

    @property
    def places(self) -> dict[str, str]:
        """name → folder, of those that lie elsewhere"""
        return self.model_dump(exclude_none=True)


class Resources(Strict):
    """What a rule asks of the machine."""

    prepare_threads: int = Field(2, ge=1, description="Worker processes (one thread each) that tokenize one dataset.")
    prepare_mem_mb: int = Field(4000, ge=500, description="Memory that one prepare job asks for, in MB.")
    generate_threads: int = Field(1, ge=1, description="Threads of one generate job; those of an embedded engine.")
    capture_threads: int = Field(8, ge=1, description="Threads of one capture job: they look at what was captured.")
    capture_mem_mb: int = Field(8000, ge=500, description="Memory that one capture job asks for, in MB.")
    generate_mem_mb: int = Field(4000, ge=500, description="Memory that one generate job asks for, in MB.")
    evaluate_threads: int = Field(8, ge=1, description="Threads of the reference that the draft is tried with.")
    evaluate_mem_mb: int = Field(16000, ge=500, description="Memory that this trial asks for, in MB.")
    train_threads: int = Field(8, ge=1, description="Threads of the training, shared by its processes.")
    train_mem_mb: int = Field(16000, ge=500, description="Memory that the training asks for, in MB.")


class Config(Strict):
    target: Target
    prepare: Preparation = Preparation()
    generate: Generation = Generation()
    corpus: Corpus = Corpus()
    draft_vocabulary: DraftVocabulary = DraftVocabulary()
    capture: Capture = Capture()
    draft: DraftModel = DraftModel()
    train: Training = Training()
    evaluate: Evaluation = Evaluation()
    scaling: Scaling = Scaling()
    deploy: Deployment = Deployment()
    probe_rows: int = Field(300, ge=1, description="Rows of each dataset that `snakemake probe` reads.")
    resources: Resources = Resources()
    storage: Storage = Storage()
    datasets: dict[Name, Dataset] = Field(
        min_length=1, description="Name → dataset; the name is the folder of its files."
    )

    @model_validator(mode="after")
    def keys_of_each_dataset(self) -> "Config":
        for name in self.datasets:
            self.preparation(name)
            self.generation(name)
        return self

    @model_validator(mode="after")
    def one_node_captures_and_trains(self) -> "Config":
        if self.train.nodes > 1 and self.capture.window is not None:
            raise ValueError(
                f"train.nodes is {self.train.nodes} and capture.window {self.capture.window}: with a window one node "
                "captures and trains: set train.nodes to 1, or capture.window to null"
            )
        return self

    def dataset(self, name: str) -> Dataset:
        if name not in self.datasets:
            raise EyasError(
                f"datasets: there is no {name!r}{_nearest(name, self.datasets)}; known: {', '.join(self.datasets)}"
            )
        return self.datasets[name]

    def preparation(self, name: str) -> Preparation:
        """`prepare:` with the dataset's own keys laid over it."""
        return self._of_dataset(name, "prepare", Preparation)

    def generation(self, name: str) -> Generation:
        """`generate:` with the dataset's own keys laid over it."""
        return self._of_dataset(name, "generate", Generation)

    def _of_dataset(self, name: str, key: str, model: type[BaseModel]):
        own = getattr(self.datasets[name], key)
        try:
            return model.model_validate({**getattr(self, key).model_dump(), **own})
        except ValidationError as error:
            raise ValueError(f"datasets.{name}.{key}: {_explain(error, model)}") from error

    def names(self, *kinds: Literal["prompts", "tokenized_data", "benchmark"]) -> list[str]:
        """Names of the datasets in the config's order, of some kinds or of all; benchmark sets are a kind of theirs."""
        return [n for n, d in self.datasets.items() if not kinds or d.kind in kinds]

    def engines(self) -> list[str]:
        """What the draft is tried with: the target's own engine, then the witnesses."""
        return list(dict.fromkeys([self.target.own_trial, *self.evaluate.witnesses]))

    @property
    def target_gpus(self) -> int:
        """GPUs of a job that asks the target: those of its server, when eyas starts one."""
        return self.target.sglang.all_gpus if self.target.engine == "sglang" and self.target.sglang.url is None else 0

    @property
    def train_gpus(self) -> int:
        """GPUs of a training on each node. With a window it captures, too, side by side or in turns (the leases)."""
        return max(self.train.gpus, 0 if self.capture.window is None else self.target_gpus)

    def prepare_settings(self, name: str) -> dict:
        """Everything that decides what `prepared/<name>/` holds, as plain JSON.

        It travels to the job, is recorded in stats.json, and tells a stale file from a current one.
        """
        dataset, preparation = self.dataset(name), self.preparation(name)
        settings = {
            "dataset": name,
            **dataset.model_dump(mode="json", include={"adapter", "produces", "options", "sources"}),
            **preparation.model_dump(mode="json", exclude={"min_yield", "shards"}),
            "target": self.target.model_dump(mode="json", include=TOKENIZING),
        }
        settings.pop("loss_mask" if dataset.produces == "prompts" else "turns")
        return settings

    def generate_settings(self, name: str) -> dict:
        """Everything that `responses/<name>/` is made with, as plain JSON."""
        return {
            "dataset": name,
            "sampling": self.generation(name).model_dump(mode="json"),
            "target": self.target.model_dump(mode="json"),
        }

    def corpus_settings(self) -> dict:
        """Everything that `corpus/` is made with besides the records, as plain JSON."""
        trained = self.names("prompts", "tokenized_data")
        of_datasets = {"datasets": trained, "tokenized": self.names("tokenized_data")}
        return {**self.corpus.model_dump(mode="json"), **of_datasets}

    def vocabulary_settings(self) -> dict:
        """Everything that `draft_vocab/` is made with besides the corpus, as plain JSON."""
        warm_start = self.draft.model_dump(mode="json", include={"warm_start", "warm_start_revision"})
        return {**self.draft_vocabulary.model_dump(mode="json"), **warm_start}

    def capture_settings(self) -> dict:
        """Everything that `hidden_states/` is made with besides the corpus, as plain JSON."""
        return {
            "capture": self.capture.model_dump(mode="json"),
            "target": self.target.model_dump(mode="json"),
            "greedy": [n for n in self.names("prompts") if self.generation(n).temperature == 0],
        }

    def train_settings(self) -> dict:
        """Everything that `draft/` is made with besides the states, as plain JSON."""
        return {**self.model_dump(mode="json", include={"draft", "train"}), **self.capture_settings()}

    def part_settings(self, part: int) -> dict:
        """The same for a draft that is trained on one part of so many."""
        return {**self.train_settings(), "part": part}

    def evaluate_settings(self) -> dict:
        """Everything that `evaluation/` is made with besides the draft and the data, as plain JSON."""
        thinking = {name: self.generation(name).thinking for name in self.names("benchmark")}
        of_datasets = {"benchmarks": thinking, "tokenized": self.names("tokenized_data")}
        return {**self.model_dump(mode="json", include={"evaluate", "target"}), **of_datasets}

    def deploy_settings(self) -> dict:
        """Everything that `deploy/` is made with besides the draft and what was measured, as plain JSON."""
        licenses = {name: dataset.license for name, dataset in self.datasets.items()}
        return {**self.evaluate_settings(), "deploy": self.deploy.model_dump(mode="json"), "licenses": licenses}


def parse(raw: dict) -> Config:
    """Check a merged configuration dict; EyasError lists every mistake with its remedy."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise EyasError(f"the configuration is not valid:\n{_explain(error, Config)}") from None


def load(configfiles: list[Path] | None = None) -> Config:
    """Read and merge YAML files (later ones win, key by key), as Snakemake does."""
    merged: dict = {}
    for path in configfiles or DEFAULT_CONFIGFILES:
        try:
            layer = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            raise EyasError(f"{path}: no such config file") from None
        except yaml.YAMLError as error:
            raise EyasError(f"{path}: not valid YAML: {error}") from None
        _merge(merged, layer)
    return parse(merged)


def schema() -> dict:
    """The JSON schema of a config file (config/schema.json is generated from it).

    Nothing is required at the top: a file may hold a part, and the parts are merged before they are checked.
    """
    whole = Config.model_json_schema()
    del whole["required"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def _merge(below: dict, above: dict) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _merge(below[key], value)
        else:
            below[key] = value


def _nearest(key: str, valid) -> str:
    close = difflib.get_close_matches(key, list(valid), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    lines = []
    for e in error.errors():
        where = ".".join(str(p) for p in e["loc"]) or "config"
        if e["type"] == "extra_forbidden":
            keys = _fields_at(model, e["loc"][:-1])
            lines.append(f"  {where}: no such key{_nearest(str(e['loc'][-1]), keys)}; valid: {', '.join(keys)}")
        else:
            message = e["msg"].removeprefix("Value error, ")
            found = (
                ""
                if e["type"] == "missing" or isinstance(e["input"], dict | BaseModel)
                else f" (found {json.dumps(e['input'], default=str)})"
            )
            lines.append(f"  {where}: {message}{found}")
    return "\n".join(lines)


def _fields_at(model: type[BaseModel], loc: tuple) -> list[str]:
    """Valid keys of the model that stands at `loc` below `model`."""
    for part in loc:
        if not isinstance(part, str) or part not in model.model_fields:
            continue  # an index, or the name of a dataset
        for candidate in _models_in(model.model_fields[part].annotation):
            model = candidate
    return list(model.model_fields)


def _models_in(annotation) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in getattr(annotation, "__args__", ()) for m in _models_in(a)]
