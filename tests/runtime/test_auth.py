"""Keys: who a header belongs to, and what happens when the file changes."""

import os
from pathlib import Path

import pytest

from pagefleet_contract.engine import ServingSettings
from pagefleet_runtime.auth import AccessKeys, ApiKeys, KeyFileRefused, parse_keys
from pagefleet_runtime.errors import RequestRefused


def written(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_lines_are_keys_with_or_without_a_name() -> None:
    (first, second, third) = parse_keys("# people\nalice=secret-1\n\n  secret-2  \nc2VjcmV0==\n")
    assert first == ("alice", "secret-1")
    assert second[1] == "secret-2" and "secret" not in second[0]
    assert third[1] == "c2VjcmV0=="


def test_without_a_file_everybody_may_come() -> None:
    keys = ApiKeys.load(None)
    assert not keys.required and keys.tenant_of(None) == "" and keys.tenant_of("Bearer x") == ""


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        ("Bearer one", "alice"),
        ("bearer  one ", "alice"),
        ("Bearer two", "bob"),
        ("Bearer onee", None),
        ("Bearer ", None),
        ("Basic one", None),
        ("one", None),
        (None, None),
    ],
)
def test_a_key_names_its_tenant(tmp_path: Path, header: str | None, tenant: str | None) -> None:
    keys = ApiKeys.load(written(tmp_path / "keys", "alice=one\nbob=two\n"))
    assert keys.tenant_of(header) == tenant


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = ApiKeys.load(written(file, "alice=one\n"))
    os.replace(written(tmp_path / "new", "alice=two\n"), file)
    assert keys.tenant_of("Bearer one") is None
    assert keys.tenant_of("Bearer two") == "alice"


def test_a_file_that_goes_away_locks_nobody_out(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = ApiKeys.load(written(file, "alice=one\n"))
    file.unlink()
    assert keys.tenant_of("Bearer one") == "alice"


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_a_file_without_a_key_is_refused_at_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeyFileRefused, match="holds no key"):
        ApiKeys.load(written(tmp_path / "keys", text))


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
