"""The files that `up` is given, read whole before anything is started for them: what they hold, and what they can't.

What only the API server knows, such as the types of other kinds' fields, is left to it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pagefleet_contract.names import API_VERSION, GROUP, KIND
from pagefleet_local.errors import FleetError
from pagefleet_local.manifest_fields import unknown_fields

_ENDINGS = (".json", ".yaml", ".yml")  # what kubectl takes of a folder
_DEFAULT_NAMESPACE = "default"
# kubectl's YAML is libyaml's, which takes tabs where Python's own doesn't.
_SYNTAX = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Document:
    place: str
    content: Any


def manifest_files(given: Sequence[str]) -> list[str]:
    """Return the files, those of folders one by one. Raise FleetError with all that is wrong with them."""
    files = [file for each in given for file in ([each] if _is_elsewhere(each) else _files_of(Path(each)))]
    documents: list[Document] = []
    faults: list[str] = []
    for file in files:
        if not _is_elsewhere(file):
            try:
                documents += _documents(Path(file))
            except FleetError as error:
                faults.append(str(error))
    faults += [fault for document in documents if (fault := _fault_of(document))]
    faults += _twice(documents)
    if faults:
        raise FleetError("\n".join(faults))
    return files


def _is_elsewhere(file: str) -> bool:
    return file == "-" or file.startswith(("http://", "https://"))


def _files_of(path: Path) -> list[str]:
    if not path.exists():
        raise FleetError(f"there is no file {path}; name a manifest, such as examples/quickstart.yaml")
    if not path.is_dir():
        return [str(path)]
    found = sorted(str(file) for file in path.iterdir() if file.suffix in _ENDINGS and file.is_file())
    if not found:
        raise FleetError(f"the folder {path} holds no manifest: no file that ends with {', '.join(_ENDINGS)}")
    return found


def _documents(file: Path) -> list[Document]:
    """Return what the file holds. What Python can't read and kubectl may is none of it."""
    try:
        text = file.read_text("utf-8")
        contents = _json_values(text) or _yaml_values(file, text)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: no text, or 2026-13-45, which looks like a date
        return []
    held = [(number, content) for number, content in enumerate(contents, 1) if content is not None]
    if not held:
        raise FleetError(f"{file} is empty; it should hold a manifest")
    places = [f"{file}" if len(contents) == 1 else f"{file}, document {number}" for number, _ in held]
    return [each for place, (_, content) in zip(places, held, strict=True) for each in _items(Document(place, content))]


def _json_values(text: str) -> list[Any]:
    """Return the values of a file of JSON, one after the other; none if it isn't one."""
    decoder, values, rest = json.JSONDecoder(), [], text.strip()
    while rest.startswith("{"):
        try:
            value, end = decoder.raw_decode(rest)
        except ValueError:
            return []
        values.append(value)
        rest = rest[end:].lstrip()
    return [] if rest else values


def _yaml_values(file: Path, text: str) -> list[Any]:
    try:
        for _ in yaml.parse(text, Loader=_SYNTAX):
            pass
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise FleetError(f"{file} is no YAML: {where}{error.problem}") from error
    return list(yaml.safe_load_all(text))


def _items(document: Document) -> Iterator[Document]:
    content = document.content
    if (
        isinstance(content, dict)
        and str(content.get("kind")).endswith("List")
        and isinstance(content.get("items"), list)
    ):
        for number, item in enumerate(content["items"], 1):
            yield Document(f"{document.place}, item {number}", item)
    else:
        yield document


def _fault_of(document: Document) -> str | None:
    content = document.content
    if not isinstance(content, dict):
        return f"{document.place} is no manifest: it holds {_shown(content)} where apiVersion and kind should be"
    missing = [name for name in ("apiVersion", "kind") if not isinstance(content.get(name), str)]
    if missing:
        return f"{document.place} is no manifest: it has no {' and no '.join(missing)}"
    version, kind = content["apiVersion"], content["kind"]
    if version.partition("/")[0] != GROUP:
        return None
    if (version, kind) != (API_VERSION, KIND):
        return f"{document.place} has {version} {kind}; what there is of {GROUP} is {API_VERSION} {KIND}"
    fields = unknown_fields(content)
    return f"{document.place}: {'; '.join(fields)}" if fields else None


def _shown(content: Any) -> str:
    return "a list" if isinstance(content, list) else f"{str(content)[:40]!r}"


def _twice(documents: Sequence[Document]) -> Iterator[str]:
    """Yield which services are given twice: the later one would win, and nobody would know. A file that is named twice
    says the same both times."""
    places: dict[tuple[str, str], str] = {}
    for document in documents:
        name = _service_name(document.content)
        if name is None:
            continue
        first = places.setdefault(name, document.place)
        if first != document.place:
            yield f"{KIND} {name[1]} of namespace {name[0]} is both in {first} and in {document.place}; rename one"


def _service_name(content: Any) -> tuple[str, str] | None:
    """Return namespace and name of a service."""
    if not isinstance(content, dict) or (content.get("apiVersion"), content.get("kind")) != (API_VERSION, KIND):
        return None
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return None
    return str(metadata.get("namespace") or _DEFAULT_NAMESPACE), str(metadata["name"])
