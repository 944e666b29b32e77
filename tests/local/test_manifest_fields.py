"""Files are looked at before a fleet is started for them."""

from pathlib import Path

import pytest

from pagefleet_local.manifest_fields import check_fields

_SERVICE = "apiVersion: pagefleet.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: chat}\nspec: "


@pytest.mark.parametrize(
    "text",
    [
        _SERVICE + "{replicas: 2026-13-45}",
        _SERVICE + "{replicas: !!int two}",
        _SERVICE + "[" * 3000 + "]" * 3000,
        "\t{",
    ],
    ids=["no date", "no number", "deep", "no YAML"],
)
def test_what_python_cannot_read_is_left_to_kubectl(tmp_path: Path, text: str) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text(text)
    check_fields(file)
