"""The access to the API: a kubeconfig in its usual forms, a pod's own, and words for what can't be read."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagefleet_local import pki
from pagefleet_router.credentials import NoAccess, read_access

NOWHERE = Path("/nowhere")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pki.Authority:
    return pki.authority(tmp_path_factory.mktemp("keys"), "ca")


def kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any] | None) -> str:
    context = {"cluster": "c"} if user is None else {"cluster": "c", "user": "u"}
    content = {
        "current-context": "here",
        "contexts": [{"name": "there", "context": {}}, {"name": "here", "context": context}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_a_token_file_and_an_authority_file_are_found_beside_the_kubeconfig(
    tmp_path: Path, keys: pki.Authority
) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_bytes(keys.certificate.read_bytes())
    cluster = {"server": "https://[fd00::1]:6443/prefix/", "certificate-authority": "ca.crt"}
    access = read_access(kubeconfig(tmp_path, cluster, {"tokenFile": "token"}), {}, NOWHERE)
    assert (access.host, access.port, access.prefix, access.token) == ("fd00::1", 6443, "/prefix", "secret")
    assert access.tls is not None and access.tls.verify_mode == ssl.CERT_REQUIRED
    assert [found["subject"] for found in access.tls.get_ca_certs()] == [((("commonName", "pagefleet ca"),),)]


def test_a_client_certificate_may_stand_in_the_kubeconfig(tmp_path: Path, keys: pki.Authority) -> None:
    pair = keys.client("someone", "someone")
    user = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)}
    cluster = {"server": "https://api", "certificate-authority-data": data(keys.certificate), "tls-server-name": "kube"}
    access = read_access(kubeconfig(tmp_path, cluster, user), {}, NOWHERE)
    assert (access.port, access.server_name, access.token) == (443, "kube", None)


def test_a_kubeconfig_without_a_user_and_without_tls_is_one_too(tmp_path: Path) -> None:
    access = read_access(kubeconfig(tmp_path, {"server": "http://127.0.0.1:8001"}, None), {}, NOWHERE)
    assert (access.port, access.tls, access.token) == (8001, None, None)


def test_without_a_kubeconfig_it_is_what_the_cluster_gives_to_a_pod(tmp_path: Path, keys: pki.Authority) -> None:
    (tmp_path / "token").write_text("pods")
    (tmp_path / "ca.crt").write_bytes(keys.certificate.read_bytes())
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for given in (None, ""):
        access = read_access(given, environment, tmp_path)
        assert (access.host, access.port, access.token, access.prefix) == ("10.96.0.1", 443, "pods", "")


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({"server": "https://x"}, {"exec": {"command": "aws"}}, "its user has exec; the router reads token"),
        ({"server": "https://x"}, {"tokenFile": "gone"}, "No such file"),
        ({"server": "nonsense"}, {}, "expected https://HOST:PORT"),
        ({"server": "https://x", "certificate-authority-data": "%"}, {}, "no access"),
        ({}, {}, "KeyError: 'server'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], said: str) -> None:
    with pytest.raises(NoAccess, match=said):
        read_access(kubeconfig(tmp_path, cluster, user), {}, NOWHERE)


def test_a_kubeconfig_that_is_none_and_a_pod_without_an_account_are_named(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("- 1")
    with pytest.raises(NoAccess, match="the kubeconfig"):
        read_access(str(tmp_path / "kubeconfig"), {}, NOWHERE)
    with pytest.raises(NoAccess, match="the pod's own in /nowhere: KeyError: 'KUBERNETES_SERVICE_HOST'"):
        read_access(None, {}, NOWHERE)
