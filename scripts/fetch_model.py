"""Convert the target's weights from a .gguf file to the folder that the engine loads (target.model).

    python scripts/fetch_model.py

Only for targets with `target.weights`: others are loaded from where `target.model` says.
"""

from pathlib import Path

from eyas.commands import add_target, log_to_stderr, parser_of, run_command, target_of
from eyas.errors import EyasError
from eyas.records import write_json
from eyas.sources import fetch, files_of
from eyas.target.weights import model_from_gguf


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_target(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
    target = target_of(args)
    if target.weights is None:
        raise EyasError(f"target.weights is null: {target.model} is loaded as it is, and nothing is to be converted")
    folder = Path(target.model)
    downloads = folder.with_name(f"{folder.name}.downloads")
    manifest = fetch([target.weights], downloads)
    files = files_of(manifest, downloads / "manifest.json")
    if [f.suffix for f in files] != [".gguf"]:
        raise EyasError(f"target.weights: expected one .gguf file, found {len(files)} files: correct `files`")
    model_from_gguf(files[0], folder)
    made = sorted(f for f in folder.iterdir() if f.is_file() and f.name != "manifest.json")
    listed = [{"path": f.name, "name": f.name, "source": 0, "bytes": f.stat().st_size} for f in made]
    write_json(folder / "manifest.json", {"sources": manifest["sources"], "files": listed})
    return 0


if __name__ == "__main__":
    run_command(main)
