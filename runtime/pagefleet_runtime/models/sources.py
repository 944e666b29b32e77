"""From a model's URI to something on this machine: a Hugging Face directory or a GGUF file."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pagefleet_contract.engine import ModelSettings
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.hub import download_snapshot
from pagefleet_runtime.models.packages import locate_in_package
from pagefleet_runtime.models.s3 import Progress, download_prefix
from pagefleet_runtime.models.s3_client import S3Access

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A folder with config.json, safetensors and a tokenizer."""

    path: Path


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path


ModelSource = ModelDirectory | GgufFile


def resolve_source(settings: ModelSettings, cache: Path, progress: Progress) -> ModelSource:
    """Return what the URI names, downloaded or joined into `cache` where needed; a download tells `progress` how far
    it is. Raises ModelRefused."""
    scheme, separator, rest = settings.uri.partition("://")
    if not separator:
        return examine_path(Path(settings.uri).expanduser(), settings.uri)
    match scheme:
        case "file":
            return examine_path(Path(rest).expanduser(), settings.uri)
        case "package":
            return examine_path(locate_in_package(rest, cache), settings.uri)
        case "hf":
            return examine_path(download_snapshot(rest, settings.revision), settings.uri)
        case "s3":
            return examine_path(download_prefix(rest, cache, S3Access.of(os.environ), progress), settings.uri)
        case "pvc":
            raise ModelRefused(
                f"model.uri is {settings.uri!r}, which names a volume claim of a cluster: an InferenceService may have "
                "it, and its pods see a folder. Outside of one give the folder's path"
            )
    raise ModelRefused(
        f"model.uri is {settings.uri!r}; the runtime reads hf://OWNER/NAME, s3://BUCKET/PREFIX, file://PATH, "
        "package://DISTRIBUTION[/PATH], simulated://NAME and plain paths"
    )


def examine_path(path: Path, uri: str) -> ModelSource:
    """Return what lies at `path`. Raises ModelRefused where it isn't a model that can be loaded safely."""
    if not path.exists():
        raise ModelRefused(
            f"model {uri!r}: {path} doesn't exist; give a Hugging Face directory or a .gguf file, "
            "or hf://OWNER/NAME for a model of the hub"
        )
    if path.is_file():
        return _examine_file(path, uri)
    names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    ggufs = [name for name in names if name.endswith(".gguf")]
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return ModelDirectory(path)
    if len(ggufs) == 1:
        return GgufFile(path / ggufs[0])
    raise ModelRefused(f"model {uri!r}: {path} {_what_is_wrong(names, ggufs)}")


def _examine_file(path: Path, uri: str) -> ModelSource:
    if path.suffix == ".gguf":
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ModelRefused(f"model {uri!r}: {path} begins with {magic!r}, so it isn't a GGUF file")
        return GgufFile(path)
    if path.suffix in _PICKLE_SUFFIXES:
        raise ModelRefused(f"model {uri!r}: {_pickle_message([path.name])}")
    raise ModelRefused(
        f"model {uri!r}: {path} is a file but no .gguf; give a .gguf file, or the directory that holds config.json "
        "and the .safetensors files"
    )


def _what_is_wrong(names: Iterable[str], ggufs: list[str]) -> str:
    pickles = [name for name in names if name.endswith(_PICKLE_SUFFIXES)]
    if ggufs:
        return f"holds {len(ggufs)} GGUF files ({', '.join(ggufs)}); give the path of one of them"
    if pickles:
        return f"has no .safetensors. {_pickle_message(pickles)}"
    if "config.json" in names:
        return "has config.json but no .safetensors file with weights"
    found = ", ".join(list(names)[:10]) or "nothing"
    return f"has no config.json with .safetensors and no .gguf file; it holds {found}"


def _pickle_message(names: list[str]) -> str:
    return (
        f"The weights are pickle files ({', '.join(names)}), which can run any code when they are read, so they are "
        "never loaded. Convert them once where you trust them: load the model with transformers and call "
        "save_pretrained(NEW_DIRECTORY), then serve that directory"
    )
