"""Every InferenceService that stands in the repository for people to copy: example files and blocks in documents."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagefleet_contract.names import KIND

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```ya?ml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def samples() -> list[Any]:
    """Return the manifests as parameters, named by where they stand."""
    return [
        pytest.param(manifest, id=f"{path.relative_to(ROOT)}-{number}")
        for path in _files()
        for number, manifest in enumerate(_manifests(path))
    ]


def _files() -> list[Path]:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [*sorted((ROOT / "examples").glob("**/*.yaml")), *documents]


def _manifests(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text("utf-8")
    for block in _BLOCK.findall(text) if path.suffix == ".md" else [text]:
        for document in yaml.safe_load_all(block):
            if isinstance(document, dict) and document.get("kind") == KIND:
                yield document
