"""What a run measures: a line of JSON each, TensorBoard, and Weights & Biases by option."""

from pathlib import Path

import orjson

from eyas.errors import EyasError

FILE = "metrics.jsonl"
LISTS = ("losses", "accuracy", "joint")  # one number a step of the training-time test


class Metrics:
    """Writes in `folder` when it is the first process; a run that goes on drops what was measured after its step."""

    def __init__(self, folder: Path, writes: bool, wandb_project: str | None):
        self.folder, self.writes, self.project = folder, writes, wandb_project
        self.evaluated = -1  # the step of the last judgement
        self.file = self.board = self.wandb = None

    def open(self, step: int) -> None:
        """Go on after `step`."""
        path = self.folder / FILE
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        self.evaluated = max((line["step"] for line in kept if line["kind"] == "heldout"), default=-1)
        if not self.writes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in kept))
        self.file = open(path, "ab")  # noqa: SIM115 (closed in `close`)
        from torch.utils.tensorboard import SummaryWriter

        self.board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step + 1)
        if self.project:
            try:
                import wandb
            except ImportError:
                raise EyasError("train.wandb: the package wandb is not installed: pip install wandb") from None
            self.wandb = wandb.init(project=self.project, id=self.folder.name, resume="allow", dir=str(self.folder))

    def write(self, kind: str, values: dict) -> None:
        """kind: train or heldout; values with `step`; numbers, lists of LISTS, or nested by dataset."""
        step = values["step"]
        if kind == "heldout":
            self.evaluated = step
        if not self.writes:
            return
        self.file.write(orjson.dumps({"kind": kind, **values}, option=orjson.OPT_APPEND_NEWLINE))
        self.file.flush()
        flat = {f"{kind}/{key}": value for key, value in values.items() if isinstance(value, int | float)}
        flat |= {f"{kind}/{key}/{i + 1}": x for key in LISTS for i, x in enumerate(values.get(key, ()))}
        for key, value in flat.items():
            self.board.add_scalar(key, value, step)
        if self.wandb:
            self.wandb.log(flat, step=step)

    def close(self) -> None:
        for open_one in (self.file, self.board):
            if open_one is not None:
                open_one.close()
        if self.wandb:
            self.wandb.finish()


def read_metrics(path: Path) -> list[dict]:
    """The lines of a metrics file; a last line that was cut in the writing is left out."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [orjson.loads(line) for line in lines if line.endswith(b"\n")]
