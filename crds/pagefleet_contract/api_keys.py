"""API keys: who a request's `Authorization: Bearer KEY` belongs to, read from a file or from a mounted Secret.

Only digests are kept. What is read is read again when it changes.
"""

import hashlib
import hmac
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

DIGEST_PREFIX = "sha256:"

_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
# The kubelet renames this link when the content of a mounted Secret or ConfigMap changes, and only then.
_MOUNTED_DATA = "..data"

logger = logging.getLogger(__name__)


class KeyFileRefused(Exception):
    """A key file can't be read, holds no key, or a digest that is none; start-up ends with the message."""


@dataclass(frozen=True, slots=True)
class TenantKey:
    """One key as we keep it: whose it is, and its SHA-256."""

    tenant: str
    digest: bytes


def key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def digest_line(key: str) -> str:
    """Return what a key file may hold instead of the key: it lets the key in and doesn't give it away."""
    return DIGEST_PREFIX + key_digest(key).hex()


def bearer_token(header: str | None) -> str | None:
    """Return the token of an `Authorization: Bearer TOKEN` header, or None where there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def parse_keys(text: str) -> tuple[TenantKey, ...]:
    """Return the keys of a file: lines `KEY` or `NAME=KEY`, where `sha256:HEX` may stand for the key.

    Empty lines and lines that begin with # are skipped. A key without a name gets one made from its digest. Equals
    signs at the end belong to the key (base64). Raises KeyFileRefused for a digest that is none.
    """
    return tuple(_parse_line(line) for line in _content_lines(text))


def parse_tenant_keys(tenant: str, text: str) -> tuple[TenantKey, ...]:
    """Return one tenant's keys, one a line: an entry of a mounted Secret. Several lines let a key be changed in peace.

    Raises KeyFileRefused for a digest that is none.
    """
    return tuple(TenantKey(tenant, _digest_of(line)) for line in _content_lines(text))


def _content_lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]


def _parse_line(line: str) -> TenantKey:
    name, separator, key = line.partition("=")
    if separator and key.strip("="):
        return TenantKey(name.strip(), _digest_of(key.strip()))
    digest = _digest_of(line)
    return TenantKey(f"key-{digest.hex()[:8]}", digest)


def _digest_of(key: str) -> bytes:
    if not key.startswith(DIGEST_PREFIX):
        return key_digest(key)
    text = key.removeprefix(DIGEST_PREFIX)
    # Taken as a key in clear, a digest with a letter too few would open the door to whoever reads the file.
    if not _DIGEST.fullmatch(text):
        raise KeyFileRefused(
            f"a line begins with {DIGEST_PREFIX} and {len(text)} characters follow; expected 64 of hex"
        )
    return bytes.fromhex(text)


class ApiKeys:
    """The keys at one path: a file, or a folder in which each entry's name is the tenant and its content the key.

    Without a path nothing is asked for, and everybody is the tenant with the empty name.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: object = None
        self._keys: tuple[TenantKey, ...] = ()

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None) -> Self:
        """Read the keys. Raises KeyFileRefused where they can't be read or where there is none."""
        keys = cls(None if path is None else Path(path))
        if keys._path is not None:
            keys._read(keys._path)
        return keys

    @property
    def required(self) -> bool:
        """Whether a request must carry a key."""
        return self._path is not None

    def tenant_of(self, header: str | None) -> str | None:
        """Return whose key the Authorization header carries, or None where it is missing or unknown.

        Looks whether the keys have changed. Compares with every key, in time that doesn't depend on what is right.
        """
        if self._path is None:
            return ""
        self._refresh(self._path)
        given = key_digest(bearer_token(header) or "")
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, given):
                found = key.tenant
        return found

    def _refresh(self, path: Path) -> None:
        # Keys that are gone or empty for a moment must not lock everybody out: the old ones stay in force.
        try:
            if _version(path) != self._version:
                self._read(path)
        except (OSError, KeyFileRefused) as error:
            logger.error("the keys of %s stay as they were: %s", path, error)

    def _read(self, path: Path) -> None:
        try:
            self._version = _version(path)
            keys = _read_folder(path) if path.is_dir() else parse_keys(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileRefused(f"key file {path} can't be read: {error}") from error
        except KeyFileRefused as error:
            raise KeyFileRefused(f"key file {path}: {error}") from error
        if not keys:
            raise KeyFileRefused(f"{path} holds no key; {_HOW_TO_FOLDER if path.is_dir() else _HOW_TO_FILE}")
        self._keys = keys


_HOW_TO_FILE = "write one per line, as KEY or NAME=KEY"
_HOW_TO_FOLDER = "a folder of keys has a file per tenant, with the tenant's name and the key in it"


def _read_folder(folder: Path) -> tuple[TenantKey, ...]:
    return tuple(key for path in _entries(folder) for key in parse_tenant_keys(path.name, path.read_text("utf-8")))


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file())


def _version(path: Path) -> object:
    """Return a value that changes when what is read changes."""
    if not path.is_dir():
        return _file_version(path)
    data = path / _MOUNTED_DATA
    if data.is_symlink():
        return os.readlink(data)
    return tuple((entry.name, _file_version(entry)) for entry in _entries(path))


def _file_version(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
