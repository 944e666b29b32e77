"""Access: the operator's paths open to the operator's key alone."""

from pathlib import Path

import pytest

from pagefleet_contract.engine import ServingSettings
from pagefleet_runtime.auth import AccessKeys
from pagefleet_runtime.errors import RequestRefused


def written(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def operator_status(keys: AccessKeys, header: str | None) -> int:
    try:
        keys.check_operator(header)
    except RequestRefused as refused:
        return refused.refusal.status
    return 200


def test_the_operators_paths_open_to_the_operators_key_alone(tmp_path: Path) -> None:
    settings = ServingSettings(
        api_keys_file=written(tmp_path / "keys", "alice=one\n"),
        operator_key_file=written(tmp_path / "operator", "boss\n"),
    )
    keys = AccessKeys.load(settings)
    statuses = [operator_status(keys, header) for header in ("Bearer boss", "Bearer one", "Bearer x", None)]
    assert statuses == [200, 403, 403, 401]


def test_without_an_operators_key_nobody_gets_in_and_is_told_why() -> None:
    keys = AccessKeys.load(ServingSettings())
    with pytest.raises(RequestRefused, match="--serving-operator-key-file"):
        keys.check_operator("Bearer x")
