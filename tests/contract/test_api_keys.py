"""Keys: who a header belongs to, what a file and a mounted Secret may hold, and what happens when they change."""

import os
from pathlib import Path

import pytest

from pagefleet_contract.api_keys import ApiKeys, KeyFileRefused, digest_line, key_digest, parse_keys


def written(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def mounted(folder: Path, version: str, entries: dict[str, str]) -> Path:
    """Write a Secret as the kubelet mounts it: a folder per version, a link to the one in force, a link per entry."""
    data = folder / f"..{version}"
    data.mkdir(parents=True)
    for name, content in entries.items():
        (data / name).write_text(content, "utf-8")
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..data_tmp").symlink_to(data.name)
    os.replace(folder / "..data_tmp", folder / "..data")
    return folder


def test_lines_are_keys_with_or_without_a_name() -> None:
    (first, second, third) = parse_keys("# people\nalice=secret-1\n\n  secret-2  \nc2VjcmV0==\n")
    assert (first.tenant, first.digest) == ("alice", key_digest("secret-1"))
    assert second.digest == key_digest("secret-2") and "secret" not in second.tenant
    assert third.digest == key_digest("c2VjcmV0==")


def test_a_digest_stands_for_its_key_and_gives_the_same_name() -> None:
    clear = parse_keys("secret\nalice=secret\n")
    digests = parse_keys(f"{digest_line('secret')}\nalice=sha256:{key_digest('secret').hex().upper()}\n")
    assert digests == clear


def test_a_digest_is_no_key_itself(tmp_path: Path) -> None:
    keys = ApiKeys.load(written(tmp_path / "keys", f"alice={digest_line('secret')}\n"))
    assert keys.tenant_of("Bearer secret") == "alice"
    assert keys.tenant_of(f"Bearer {digest_line('secret')}") is None


@pytest.mark.parametrize("line", ["sha256:", "sha256:abc", f"alice=sha256:{'0' * 63}", f"sha256:{'g' * 64}"])
def test_half_a_digest_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(KeyFileRefused, match="expected 64 of hex"):
        ApiKeys.load(written(tmp_path / "keys", line))


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


def test_a_mounted_secret_has_a_tenant_per_entry(tmp_path: Path) -> None:
    folder = mounted(tmp_path / "keys", "1", {"alice": "one\n", "bob": f"{digest_line('two')}", "carol": "a=b"})
    keys = ApiKeys.load(folder)
    assert [keys.tenant_of(f"Bearer {key}") for key in ("one", "two", "a=b", "b")] == ["alice", "bob", "carol", None]


def test_a_mounted_secret_is_read_again_when_the_kubelet_swaps_it(tmp_path: Path) -> None:
    folder = mounted(tmp_path / "keys", "1", {"alice": "one"})
    keys = ApiKeys.load(folder)
    mounted(folder, "2", {"alice": "two", "bob": "three"})
    assert [keys.tenant_of(f"Bearer {key}") for key in ("one", "two", "three")] == [None, "alice", "bob"]


def test_a_plain_folder_is_read_again_when_an_entry_changes(tmp_path: Path) -> None:
    (tmp_path / "alice").write_text("one")
    keys = ApiKeys.load(tmp_path)
    (tmp_path / "alice").write_text("other")
    (tmp_path / "bob").write_text("two")
    assert [keys.tenant_of(f"Bearer {key}") for key in ("one", "other", "two")] == [None, "alice", "bob"]


def test_an_empty_folder_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("secret")
    with pytest.raises(KeyFileRefused, match="a file per tenant"):
        ApiKeys.load(tmp_path)
