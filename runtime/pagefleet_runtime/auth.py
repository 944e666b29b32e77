"""API keys: who a request's `Authorization: Bearer KEY` belongs to. Files are read again when they change."""

import hashlib
import hmac
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pagefleet_contract.engine import ServingSettings
from pagefleet_runtime.errors import Refusal, RequestRefused, RuntimeFault

logger = logging.getLogger(__name__)


class KeyFileRefused(RuntimeFault):
    """A key file can't be read or holds no key; start-up ends with the message."""


def parse_keys(text: str) -> tuple[tuple[str, str], ...]:
    """Return (tenant, key) for each line `KEY` or `NAME=KEY`; empty lines and lines that begin with # are skipped.

    A key without a name gets a name made from its digest. Equals signs at the end belong to the key (base64).
    """
    keys = []
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        name, separator, key = line.partition("=")
        if not separator or not key.strip("="):
            name, key = f"key-{hashlib.sha256(line.encode()).hexdigest()[:8]}", line
        keys.append((name.strip(), key.strip()))
    return tuple(keys)


def bearer_token(header: str | None) -> str | None:
    """Return the token of an `Authorization: Bearer TOKEN` header, or None where there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class ApiKeys:
    """The keys of one file. Without a file nothing is asked for, and everybody is the tenant with the empty name."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: tuple[int, ...] = ()
        self._keys: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def load(cls, file: str | None) -> Self:
        """Read the file. Raises KeyFileRefused where it can't be read or holds no key."""
        keys = cls(None if file is None else Path(file))
        if keys._path is not None:
            keys._read(keys._path)
        return keys

    @property
    def required(self) -> bool:
        """Whether a request must carry a key."""
        return self._path is not None

    def tenant_of(self, header: str | None) -> str | None:
        """Return whose key the Authorization header carries, or None where it is missing or unknown.

        Looks whether the file has changed. Compares with every key, in time that doesn't depend on what is right.
        """
        if self._path is None:
            return ""
        self._refresh(self._path)
        given = _digest(bearer_token(header) or "")
        found = None
        for tenant, digest in self._keys:
            if hmac.compare_digest(digest, given):
                found = tenant
        return found

    def _refresh(self, path: Path) -> None:
        # A file that is gone or empty for a moment must not lock everybody out: the old keys stay in force.
        try:
            if _file_version(path) != self._version:
                self._read(path)
        except (OSError, KeyFileRefused) as error:
            logger.error("the keys of %s stay as they were: %s", path, error)

    def _read(self, path: Path) -> None:
        try:
            self._version = _file_version(path)
            keys = parse_keys(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileRefused(f"key file {path} can't be read: {error}") from error
        if not keys:
            raise KeyFileRefused(f"key file {path} holds no key; write one per line, as KEY or NAME=KEY")
        self._keys = tuple((tenant, _digest(key)) for tenant, key in keys)


def _file_version(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """The two kinds of keys: the tenants' for the API, the operator's for /pagefleet/v1/…"""

    api: ApiKeys
    operator: ApiKeys

    @classmethod
    def load(cls, settings: ServingSettings) -> Self:
        """Read both files. Raises KeyFileRefused."""
        return cls(ApiKeys.load(settings.api_keys_file), ApiKeys.load(settings.operator_key_file))

    def check_operator(self, header: str | None) -> None:
        """Raise RequestRefused unless the Authorization header carries the operator's key."""
        if not self.operator.required:
            raise RequestRefused(Refusal(403, "no_operator_key", _NO_OPERATOR_KEY))
        if bearer_token(header) is None:
            raise RequestRefused(Refusal(401, "missing_key", "send the operator's key as `Authorization: Bearer KEY`"))
        if self.operator.tenant_of(header) is None:
            raise RequestRefused(
                Refusal(403, "not_the_operator", "this key is not the operator's; tenants' keys don't open this path")
            )


_NO_OPERATOR_KEY = (
    "this path is closed because the server has no operator key; "
    "start it with --serving-operator-key-file FILE (serving.operatorKeyFile)"
)
