"""Keys and certificates: kept as long as they serve, renewed in time, and what they say of their holders."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pagefleet_local import pki

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_everything_is_kept_from_one_day_to_the_next(tmp_path: Path) -> None:
    for now in (NOW, NOW + timedelta(days=1)):
        authority = pki.authority(tmp_path, "ca", now)
        authority.server("server", "server", ["127.0.0.1", "localhost"])
        authority.client("client", "somebody", "somewhere")
        pki.signing_key(tmp_path, "tokens")
        if now == NOW:
            first = contents(tmp_path)
    assert contents(tmp_path) == first


def test_kubernetes_reads_user_and_group_from_the_subject(tmp_path: Path) -> None:
    pair = pki.authority(tmp_path, "ca", NOW).client("node", "system:node:one", "system:nodes")
    subject = certificate(pair.certificate).subject
    assert [(each.oid, each.value) for each in subject] == [
        (NameOID.ORGANIZATION_NAME, "system:nodes"),
        (NameOID.COMMON_NAME, "system:node:one"),
    ]


def test_a_certificate_near_its_end_is_renewed_and_its_key_stays(tmp_path: Path) -> None:
    pair = pki.authority(tmp_path, "ca", NOW).client("client", "somebody")
    before, key = certificate(pair.certificate), pair.key.read_bytes()
    late = before.not_valid_after_utc - pki.RENEWED_BEFORE_END + timedelta(seconds=1)
    pki.authority(tmp_path, "ca", late).client("client", "somebody")
    after = certificate(pair.certificate)
    assert after.not_valid_after_utc > before.not_valid_after_utc and pair.key.read_bytes() == key


def test_an_authority_always_outlives_what_it_issues(tmp_path: Path) -> None:
    now = NOW
    first = pki.authority(tmp_path, "ca", now).certificate.read_bytes()
    while pki.authority(tmp_path, "ca", now).certificate.read_bytes() == first:
        pair = pki.authority(tmp_path, "ca", now).client("client", "somebody")
        authority = certificate(tmp_path / "ca.crt")
        assert certificate(pair.certificate).not_valid_after_utc <= authority.not_valid_after_utc
        now += timedelta(days=100)
    # The key stayed: what the old one issued is still proven by the new one.
    certificate(pair.certificate).verify_directly_issued_by(certificate(tmp_path / "ca.crt"))


@pytest.mark.parametrize("names", [["127.0.0.1"], ["127.0.0.1", "localhost", "10.96.0.1"]])
def test_other_names_need_another_certificate(tmp_path: Path, names: list[str]) -> None:
    authority = pki.authority(tmp_path, "ca", NOW)
    before = authority.server("server", "server", ["127.0.0.1", "localhost"]).certificate.read_bytes()
    after = authority.server("server", "server", names)
    assert after.certificate.read_bytes() != before
    found = certificate(after.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(each.value) for each in found} == set(names)


def test_what_another_authority_issued_is_replaced(tmp_path: Path) -> None:
    pki.authority(tmp_path, "ca", NOW).client("client", "somebody")
    for file in ("ca.crt", "ca.key"):
        (tmp_path / file).unlink()
    authority = pki.authority(tmp_path, "ca", NOW)
    pair = authority.client("client", "somebody")
    certificate(pair.certificate).verify_directly_issued_by(certificate(authority.certificate))


def test_servers_and_clients_cannot_stand_in_for_each_other(tmp_path: Path) -> None:
    authority = pki.authority(tmp_path, "ca", NOW)
    usages = {
        name: list(certificate(pair.certificate).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        for name, pair in (
            ("server", authority.server("server", "x", ["localhost"])),
            ("client", authority.client("client", "x")),
        )
    }
    assert usages == {"server": [ExtendedKeyUsageOID.SERVER_AUTH], "client": [ExtendedKeyUsageOID.CLIENT_AUTH]}


def test_keys_are_the_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    pair = pki.authority(folder, "ca", NOW).client("client", "somebody")
    pki.signing_key(folder, "tokens")
    pki.write_kubeconfig(folder / "kubeconfig", "https://127.0.0.1:1", pair.certificate, pair, "fleet")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.name for file in folder.iterdir() if file.stat().st_mode & 0o077} == set()


def test_a_kubeconfig_needs_no_other_file(tmp_path: Path) -> None:
    authority = pki.authority(tmp_path, "ca", NOW)
    pair = authority.client("client", "somebody")
    file = pki.write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", authority.certificate, pair, "fleet")
    assert str(tmp_path) not in file.read_text()
    assert yaml.safe_load(file.read_text())["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
