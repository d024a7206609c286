"""What an adapter is: a module that turns one dataset's rows into conversations.

A module `eyas.adapters.NAME` holds
  COLUMNS               the columns it needs, as a tuple; None to be given whole rows
  Options               a pydantic model of its options in config/datasets.yaml (may be left out)
  conversation(row, options) -> Conversation      raises Rejected with a reason
and, where a dataset needs it,
  check_columns(columns, file)                    raises EyasError when a table cannot be read
  preselect(batch, options) -> Preselection       decides on a whole Arrow batch without making rows
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from eyas.config import Config, Strict
from eyas.errors import EyasError

if TYPE_CHECKING:
    import numpy as np

NOT_ADAPTERS = {"base", "turns", "sampling"}


class Rejected(Exception):
    """A row that is not kept: `reason` is counted, `detail` says what was found."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class Filtered(Rejected):
    """A sound row that the configuration does not want (a score below the minimum).

    Counted like Rejected, but not held against the dataset's limit of damaged rows.
    """


@dataclass
class Conversation:
    """One row, understood.

    messages: as eyas.adapters.turns makes them. tools: JSON-schema tools, or None. key: rows with equal keys
    are repeats of one another (None: the content decides). meta: small facts that travel with the prompt.
    """

    messages: list[dict]
    tools: list[dict] | None = None
    key: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass
class Preselection:
    """What `preselect` says of a batch of n rows.

    turned_down: (reason, is a filter, row numbers in the batch, values to show) for each reason.
    rows: row numbers left, int64 [m]. order: their place in the sample, uint64 [m], by content alone.
    """

    turned_down: list[tuple[str, bool, "np.ndarray", list]]
    rows: "np.ndarray"
    order: "np.ndarray"


class NoOptions(Strict):
    """The options of an adapter that has none."""


@dataclass(frozen=True)
class Adapter:
    """A loaded adapter module with its checked options."""

    name: str
    module: ModuleType
    options: BaseModel

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.module.COLUMNS

    @property
    def check_columns(self) -> Callable | None:
        return getattr(self.module, "check_columns", None)

    @property
    def preselects(self) -> bool:
        return hasattr(self.module, "preselect")

    def preselect(self, batch) -> Preselection:
        return self.module.preselect(batch, self.options)

    def conversation(self, row: Any) -> Conversation:
        if not isinstance(row, dict):
            raise Rejected("not_an_object", f"the row is {type(row).__name__}: {str(row)[:80]}")
        return self.module.conversation(row, self.options)


def adapter_names() -> list[str]:
    package = importlib.import_module("eyas.adapters")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in NOT_ADAPTERS)


def load_adapter(name: str, options: dict | None = None, *, dataset: str = "") -> Adapter:
    """Import an adapter and check its options; EyasError names the dataset's key and what is valid."""
    where = f"datasets.{dataset}." if dataset else ""
    if name not in adapter_names():
        raise EyasError(
            f"{where}adapter: there is no scripts/eyas/adapters/{name}.py; known: {', '.join(adapter_names())}"
        )
    module = importlib.import_module(f"eyas.adapters.{name}")
    model = getattr(module, "Options", NoOptions)
    try:
        return Adapter(name, module, model.model_validate(options or {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"])
        valid = ", ".join(model.model_fields) or "none"
        raise EyasError(f"{where}options.{key}: {first['msg']} (valid options: {valid})") from None


def check_adapters(config: Config) -> None:
    """Load every dataset's adapter with its options, so that a typo fails before hours are spent."""
    for name, dataset in config.datasets.items():
        load_adapter(dataset.adapter, dataset.options, dataset=name)
