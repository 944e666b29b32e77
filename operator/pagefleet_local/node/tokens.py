"""Service account tokens of pods: asked for as the kubelet asks, bound to the pod, and renewed before they end."""

from dataclasses import dataclass
from datetime import datetime

from pagefleet_local.node.api import Api
from pagefleet_local.node.pods import Manifest, name_of, namespace_of, uid_of
from pagefleet_local.node.volumes import TokenRequest

# Of its life, the share after which a token is asked for anew; the kubelet's.
_RENEWED_AFTER = 0.8


@dataclass(frozen=True)
class Token:
    value: bytes
    renew_at: float


async def request_token(api: Api, pod: Manifest, asked: TokenRequest, now: float) -> Token:
    account = pod["spec"].get("serviceAccountName") or "default"
    path = f"/api/v1/namespaces/{namespace_of(pod)}/serviceaccounts/{account}/token"
    bound = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod), "uid": uid_of(pod)}
    body: Manifest = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": [asked.audience] if asked.audience else [],
            "expirationSeconds": asked.lifetime_seconds,
            "boundObjectRef": bound,
        },
    }
    status = (await api.request("POST", path, body))["status"]
    ends = datetime.fromisoformat(status["expirationTimestamp"]).timestamp()
    return Token(status["token"].encode(), now + (ends - now) * _RENEWED_AFTER)


def kubeconfig(server: str, namespace: str, token_folder: str) -> Manifest:
    """Return the configuration by which a pod's program reaches the API server as its own service account."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pod",
        "clusters": [{"name": "pod", "cluster": {"server": server, "certificate-authority": f"{token_folder}/ca.crt"}}],
        "users": [{"name": "pod", "user": {"tokenFile": f"{token_folder}/token"}}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod", "namespace": namespace}}],
    }
