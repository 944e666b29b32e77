"""Keys and certificates of one fleet: made once, kept from `down` to `up`, renewed before they end.

Three authorities, because each says something else: who may use the API, who is the API's aggregation front, and who
may read the store. A certificate is written anew when what is asked of it has changed or its end is near; its key
stays.
"""

import base64
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFETIME = timedelta(days=3650)
LIFETIME = timedelta(days=365)
RENEWED_BEFORE_END = timedelta(days=60)
# A clock that was set back a little must not make a new certificate invalid.
_BACKDATED = timedelta(minutes=5)

_SERVER = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
_CLIENT = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
_BOTH = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority of one folder; it issues what its folder lacks."""

    folder: Path
    name: str
    now: datetime

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def server(self, name: str, common_name: str, alternative_names: Sequence[str]) -> Pair:
        """Return the pair of a server that is reached by these names and addresses."""
        return self._issue(name, _subject(common_name), _SERVER, alternative_names)

    def client(self, name: str, common_name: str, group: str | None = None) -> Pair:
        """Return the pair of a client: Kubernetes reads user and group from its subject."""
        return self._issue(name, _subject(common_name, group), _CLIENT, ())

    def member(self, name: str, common_name: str, alternative_names: Sequence[str]) -> Pair:
        """Return the pair of a program that serves and calls with the same certificate (etcd's peers)."""
        return self._issue(name, _subject(common_name), _BOTH, alternative_names)

    def _issue(self, name: str, subject: x509.Name, usage: x509.ExtendedKeyUsage, names: Sequence[str]) -> Pair:
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        alternative_names = x509.SubjectAlternativeName([_general_name(each) for each in names]) if names else None
        authority = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        if _serves(pair, authority, subject, usage, alternative_names, self.now):
            return pair
        key = _kept_key(pair.key)
        builder = (
            _builder(subject, authority.subject, key, self.now, LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(usage, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(_kept_key(self.key).public_key()), critical=False
            )
        )
        if alternative_names:
            builder = builder.add_extension(alternative_names, critical=False)
        _write(pair.certificate, builder.sign(_kept_key(self.key), hashes.SHA256()).public_bytes(_PEM))
        return pair


_PEM = serialization.Encoding.PEM


def authority(folder: Path, name: str, now: datetime | None = None) -> Authority:
    """Return the authority of that name, made or renewed where it has to be; renewed, it keeps its key."""
    made = Authority(folder, name, now or datetime.now(UTC))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if made.certificate.exists():
        held = x509.load_pem_x509_certificate(made.certificate.read_bytes())
        if held.not_valid_after_utc - made.now > LIFETIME:  # it must outlive what it will issue
            return made
    key, subject = _kept_key(made.key), _subject(f"pagefleet {name}")
    certificate = (
        _builder(subject, subject, key, made.now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(made.certificate, certificate.public_bytes(_PEM))
    return made


def signing_key(folder: Path, name: str) -> Pair:
    """Return the pair that signs service account tokens: the public key stands where others have a certificate."""
    pair = Pair(folder / f"{name}.pub", folder / f"{name}.key")
    if not pair.key.exists():
        _write(pair.key, _private_bytes(rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    public = serialization.load_pem_private_key(pair.key.read_bytes(), None).public_key()
    _write(pair.certificate, public.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return pair


def write_kubeconfig(file: Path, server: str, authority_certificate: Path, user: Pair, context: str) -> Path:
    """Write a kubeconfig that needs no other file."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [
            {"name": context, "cluster": {"server": server, "certificate-authority-data": _data(authority_certificate)}}
        ],
        "users": [
            {
                "name": context,
                "user": {"client-certificate-data": _data(user.certificate), "client-key-data": _data(user.key)},
            }
        ],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
    }
    _write(file, yaml.safe_dump(content, sort_keys=False).encode())
    return file


def _data(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _serves(
    pair: Pair,
    authority: x509.Certificate,
    subject: x509.Name,
    usage: x509.ExtendedKeyUsage,
    alternative_names: x509.SubjectAlternativeName | None,
    now: datetime,
) -> bool:
    """Say whether the certificate that is there is the one that is asked for, and will be for a while."""
    if not (pair.certificate.exists() and pair.key.exists()):
        return False
    held = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    try:
        held.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    try:
        held_names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        held_names = None
    return (
        held.subject == subject
        and held.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value == usage
        and held_names == alternative_names
        and held.not_valid_before_utc <= now < held.not_valid_after_utc - RENEWED_BEFORE_END
    )


def _subject(common_name: str, group: str | None = None) -> x509.Name:
    organisation = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*organisation, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _kept_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key of the file, made if there is none."""
    if file.exists():
        key = serialization.load_pem_private_key(file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key
    key = ec.generate_private_key(ec.SECP256R1())
    _write(file, _private_bytes(key))
    return key


def _private_bytes(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(file: Path, content: bytes) -> None:
    """Put the content in place at once, readable by the user alone."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    new.replace(file)
