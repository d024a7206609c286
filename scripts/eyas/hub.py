"""Files of a model, from a folder or from the Hub's own cache (where a server of that model finds them, too)."""

from pathlib import Path

from eyas.errors import EyasError, first_line


def model_file(model: str, name: str, revision: str | None, key: str, *, required: bool = True) -> Path | None:
    """Where file `name` of a model lies on this machine; downloaded when it is a repository's and not there yet.

    model: a folder, or owner/name on the Hub. key: of the configuration, for messages. None when there is no such file
    and it is not required.
    """
    folder = Path(model)
    if folder.is_dir():
        path, problem = folder / name, "no such file"
        if path.is_file():
            return path
    else:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import RemoteEntryNotFoundError

        try:
            return Path(hf_hub_download(model, name, revision=revision))
        except RemoteEntryNotFoundError:
            problem = "the repository has no such file"
        except Exception as error:  # network, access, name: many kinds, and all end here
            raise EyasError(
                f"{model}/{name}: cannot be downloaded ({first_line(error)}): correct {key}, log in (HF_TOKEN), or "
                "name a folder that has the files"
            ) from None
    if required:
        raise EyasError(f"{model}/{name}: {problem}: {key} must name a model in safetensors files")
    return None
