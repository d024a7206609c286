"""Write the page of the configuration's keys, from what its models say of each.

python scripts/write_config_reference.py docs/configuration.md
"""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from eyas.adapters.base import adapter_names
from eyas.commands import parser_of, run_command
from eyas.config import schema
from eyas.records import whole_file

HEAD = """\
<!-- Written by `make schema` from scripts/eyas/config.py: edit the descriptions there. -->

# Configuration

Every key, what it may hold, and what it holds when it is left out. `config/config.yaml` and `config/datasets.yaml` are
the configuration of bare commands, with the reasons for the values chosen there. Another file is laid over them, key by
key, by `--configfile`; single keys by `--config 'train={epochs: 3}'`. A key that does not exist is an error that names
the nearest one. Editors check and complete a file whose first line names `config/schema.json`.

A dataset can differ from `prepare` and `generate` in keys of the same names under its own entry in `datasets`.
"""
KINDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def reference(whole: dict) -> str:
    """The page in Markdown; whole: as config.schema gives it."""
    models, loose = whole["$defs"], {}
    parts = [HEAD]
    for key, own in whole["properties"].items():
        if name := _model_of(own):
            parts += _sections(key, models[name], models)
        elif "patternProperties" in own:
            (each,) = own["patternProperties"].values()
            parts += _sections(f"{key}.NAME", models[_model_of(each)], models)
        else:
            loose[key] = own
    parts += ["## Other keys\n", _table({"properties": loose})]
    parts += ["## A source\n", f"{models['Source']['description']}\n", _table(models["Source"])]
    parts += ["## Options of adapters\n", "Under `datasets.NAME.options`; adapters that are not here have none.\n"]
    for name, options in _options():
        parts += [f"### `{name}`\n", _table(options)]
    return "\n".join(parts)


def _sections(path: str, model: dict, models: dict) -> Iterator[str]:
    """A model's section, then those of the models within it; a source has one section for all places."""
    yield f"## `{path}`\n"
    yield f"{model['description']}\n"
    within = {key: name for key, own in model["properties"].items() if (name := _model_of(own)) not in (None, "Source")}
    plain = {key: own for key, own in model["properties"].items() if key not in within}
    yield _table({**model, "properties": plain})
    for key, name in within.items():
        yield from _sections(f"{path}.{key}", models[name], models)


def _options() -> Iterator[tuple[str, dict]]:
    """(adapter, schema of its options) of those that have some."""
    for name in adapter_names():
        if options := getattr(import_module(f"eyas.adapters.{name}"), "Options", None):
            yield name, options.model_json_schema()


def _table(model: dict) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, own in model["properties"].items():
        default = "needed" if key in model.get("required", ()) else f"`{json.dumps(own.get('default', {}))}`"
        rows.append(f"| `{key}` | {kind(own)} | {default} | {own['description'].replace('|', '&#124;')} |")
    return "\n".join(rows) + "\n"


def kind(own: dict) -> str:
    """What a key may hold, in words; own: its schema."""
    if _model_of(own) == "Source":
        return "[source](#a-source)"
    if "anyOf" in own:
        return ", or ".join(dict.fromkeys(map(kind, own["anyOf"])))
    if "enum" in own:
        return " or ".join(f"`{value}`" for value in own["enum"])
    if own["type"] == "array" and "prefixItems" in own:
        return f"{len(own['prefixItems'])} × {kind(own['prefixItems'][0])}"
    if own["type"] == "array":
        fewest = f", {own['minItems']} or more" if "minItems" in own else ""
        return f"list of {kind(own['items'])}{fewest}"
    if own["type"] == "object":
        values = own.get("additionalProperties")
        return f"name → {kind(values)}" if isinstance(values, dict) else "name → value"
    bounds = [f"{sign} {own[key]:g}" for key, sign in BOUNDS.items() if key in own]
    return " ".join([KINDS[own["type"]], ", ".join(bounds)]).strip()


def _model_of(own: dict) -> str | None:
    """Name of the model that a key holds."""
    return own["$ref"].rpartition("/")[2] if "$ref" in own else None


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("out", type=Path, help="where to write it")
    out = parser.parse_args(argv).out
    with whole_file(out) as file:
        file.write(reference(schema()).encode())
    return 0


if __name__ == "__main__":
    run_command(main)
