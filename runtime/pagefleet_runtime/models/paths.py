"""What lies at a path of this machine: a model that can be loaded safely, or why not. Knows nothing of downloads and
imports nothing heavy, so that a wrong path is found before anything starts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pagefleet_runtime.errors import ModelRefused

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_WHAT_A_MODEL_IS = "give a Hugging Face directory or a .gguf file, or hf://OWNER/NAME for a model of the hub"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A folder with config.json, safetensors and a tokenizer."""

    path: Path


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path


ModelSource = ModelDirectory | GgufFile


def local_path(uri: str) -> Path | None:
    """Return the path that a file:// URI or a plain path names; None for what is elsewhere."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme != "file":
        return None
    path = Path(rest if separator else uri)
    try:
        return path.expanduser()
    except RuntimeError:  # ~NAME of nobody here: a folder may be called so
        return path


def examine_path(path: Path, uri: str) -> ModelSource:
    """Return what lies at `path`. Raises ModelRefused where it isn't a model that can be loaded safely."""
    try:
        return _examined(path, uri)
    except OSError as error:
        raise ModelRefused(f"model {uri!r}: {path} can't be read: {error.strerror}") from error


def _examined(path: Path, uri: str) -> ModelSource:
    if not path.exists():
        hub = f"for the hub's model write hf://{uri}" if _HUB_NAME.fullmatch(uri) else _WHAT_A_MODEL_IS
        raise ModelRefused(f"model {uri!r}: {path} doesn't exist; {hub}")
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
