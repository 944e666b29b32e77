"""How the Kubernetes API is reached, and as whom: a kubeconfig's current context, or what a cluster gives to a pod.

Read anew after every fault, so a token that was renewed in its file is found.
"""

import base64
import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_USER_KEYS = ("token", "tokenFile", "client-certificate", "client-key")


class NoAccess(Exception):
    """The credentials can't be read; the message says which, and what was expected."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API is and what it is told. `prefix` comes before each path; without `tls` it is plain HTTP."""

    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None
    server_name: str
    token: str | None


def read_access(kubeconfig: str | None, environment: Mapping[str, str], service_account: Path) -> Access:
    """Return the access that the kubeconfig gives; without one, the pod's own. Raises NoAccess."""
    try:
        if kubeconfig:
            return _of_kubeconfig(Path(kubeconfig))
        return _of_pod(environment, service_account)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        source = f"the kubeconfig {kubeconfig}" if kubeconfig else f"the pod's own in {service_account}"
        raise NoAccess(f"no access to the Kubernetes API by {source}: {type(error).__name__}: {error}") from error


def _of_pod(environment: Mapping[str, str], folder: Path) -> Access:
    host, port = environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    return Access(host, port, "", tls, host, (folder / "token").read_text().strip())


def _of_kubeconfig(path: Path) -> Access:
    content = yaml.safe_load(path.read_text())
    context = _named(content, "contexts", content["current-context"])["context"]
    cluster = _named(content, "clusters", context["cluster"])["cluster"]
    user = _named(content, "users", context["user"]).get("user") or {} if context.get("user") else {}
    unknown = [key for key in user if key.removesuffix("-data") not in _USER_KEYS]
    if unknown:
        known = ", ".join(_USER_KEYS)
        raise ValueError(f"its user has {', '.join(unknown)}; the router reads {known}, and what ends in -data")
    server = urlsplit(cluster["server"])
    if server.hostname is None:
        raise ValueError(f"its server is {cluster['server']!r}; expected https://HOST:PORT")
    is_tls = server.scheme == "https"
    port = server.port or (443 if is_tls else 80)
    name = cluster.get("tls-server-name") or server.hostname
    tls = _tls(cluster, user, path.parent) if is_tls else None
    return Access(server.hostname, port, server.path.rstrip("/"), tls, name, _token(user, path.parent))


def _named(content: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    for entry in content.get(kind) or ():
        if entry["name"] == name:
            return dict(entry)
    raise ValueError(f"it has no {name!r} in {kind}")


def _token(user: Mapping[str, Any], folder: Path) -> str | None:
    if "token" in user:
        return str(user["token"]).strip()
    return (folder / user["tokenFile"]).read_text().strip() if "tokenFile" in user else None


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=_content(cluster, "certificate-authority", folder))
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = _content(user, "client-certificate", folder), _content(user, "client-key", folder)
    if certificate and key:
        with _private_file(certificate + "\n" + key) as pair:
            context.load_cert_chain(pair)
    return context


def _content(section: Mapping[str, Any], name: str, folder: Path) -> str | None:
    """Return what stands under NAME-data, or in the file that NAME says."""
    if f"{name}-data" in section:
        return base64.b64decode(section[f"{name}-data"], validate=True).decode("ascii")
    return (folder / section[name]).read_text() if name in section else None


@contextlib.contextmanager
def _private_file(content: str) -> Iterator[str]:
    """Keep content in a file for a moment: OpenSSL takes a key from nowhere else."""
    number, path = tempfile.mkstemp()
    try:
        with os.fdopen(number, "w") as file:
            file.write(content)
        yield path
    finally:
        os.unlink(path)
