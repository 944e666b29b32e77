"""The few requests that the command makes to an API server: the local fleet's, or one that a kubeconfig names."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.config import ConfigException

from pagefleet_contract.names import API_VERSION, KIND, LABEL_COMPONENT, LABEL_SERVICE, PLURAL
from pagefleet_local.errors import FleetError

Object = dict[str, Any]
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_JSON = "application/json"
_TIMEOUT_SECONDS = 30.0
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class Cluster:
    def __init__(self, kubeconfig: Path) -> None:
        if not kubeconfig.exists():
            raise FleetError(
                f"there is no {kubeconfig}; start a fleet with `pagefleet up`, or name a cluster with --kubeconfig"
            )
        configuration = client.Configuration()
        try:
            if not isinstance(yaml.safe_load(kubeconfig.read_text()), dict):
                raise FleetError(f"{kubeconfig} is no kubeconfig; `kubectl config view --minify --raw` prints one")
            config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        except (ConfigException, yaml.YAMLError, UnicodeDecodeError, OSError) as error:
            raise FleetError(f"{kubeconfig} is no kubeconfig: {' '.join(str(error).split())}") from error
        # A fleet that is down should be said to be so at once.
        configuration.retries = urllib3.Retry(total=0)
        if _is_this_machine(str(configuration.host)):
            configuration.proxy = None  # the environment's can't reach it
        self._api = client.ApiClient(configuration)
        self._server = str(configuration.host)

    def services(self, namespace: str | None, name: str | None = None) -> Object:
        """Return one service, or the list of a namespace; of all namespaces if None."""
        return self._json("GET", _services(namespace, name), KIND if name else f"{KIND}List")

    def table(self, namespace: str | None, name: str | None = None) -> Object:
        """Return what `services` does as the table that the API server makes of it."""
        return self._json("GET", _services(namespace, name), "Table", accept=_TABLE)

    def scale(self, namespace: str, name: str, replicas: int) -> None:
        self._json("PATCH", f"{_services(namespace, name)}/scale", "Scale", body={"spec": {"replicas": replicas}})

    def delete(self, namespace: str, name: str) -> None:
        self._json("DELETE", _services(namespace, name), "Status", KIND)

    def front_door(self, namespace: str, name: str) -> Object | None:
        """Return the Service that clients of the service talk to, if it is there."""
        try:
            return self._json("GET", f"/api/v1/namespaces/{_segment(namespace)}/services/{_segment(name)}", "Service")
        except NotFound:
            return None

    def front_doors(self, namespace: str | None) -> list[Object]:
        """Return the Services of a namespace; of all namespaces if None. Those of services are among them."""
        where = "" if namespace is None else f"/namespaces/{_segment(namespace)}"
        found: list[Object] = self._json("GET", f"/api/v1{where}/services", "ServiceList")["items"]
        return found

    def pods(self, namespace: str, service: str, component: str | None = None) -> list[Object]:
        """Return the service's pods, by name."""
        wanted = {LABEL_SERVICE: _segment(service)} | ({LABEL_COMPONENT: component} if component else {})
        selector = ",".join(f"{label}={value}" for label, value in wanted.items())
        query = {"labelSelector": selector}
        found = self._json("GET", f"/api/v1/namespaces/{_segment(namespace)}/pods", "PodList", query=query)
        return sorted(found["items"], key=lambda pod: str(pod["metadata"]["name"]))

    def nodes(self) -> list[Object]:
        found: list[Object] = self._json("GET", "/api/v1/nodes", "NodeList")["items"]
        return found

    def log_lines(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a pod's log, for as long as it is followed."""
        with self._answer("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query, timeout=None) as response:
            pending = b""
            for piece in response.stream(1 << 16, decode_content=True):
                *lines, pending = (pending + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
            if pending:
                yield pending.decode(errors="replace")

    def _json(
        self,
        method: str,
        path: str,
        *kinds: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        accept: str = _JSON,
    ) -> Object:
        """Return the answer, which is an object of one of these kinds."""
        with self._answer(method, path, query or {}, body, accept) as response:
            content = response.read()
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("kind") not in kinds:
            raise FleetError(
                f"{self._server} answers, but not as an API server does: {_beginning(content)}; is it the server that"
                " the kubeconfig should name?"
            )
        return found

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None = None,
        accept: str = _JSON,
        timeout: float | None = _TIMEOUT_SECONDS,
    ) -> Iterator[urllib3.HTTPResponse]:
        headers = {"Accept": accept} | ({"Content-Type": "application/merge-patch+json"} if body else {})
        request = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        wrong = f"nothing answers at {self._server}"
        try:
            with self._api.call_api(*request, _request_timeout=timeout).response as response:
                wrong = f"{self._server} broke off in the middle of an answer"
                if response.status >= 400:
                    raise _refusal(response.status, response.read())
                yield response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise FleetError(f"{wrong}; if it is the local fleet, `pagefleet up` starts it") from error


class NotFound(FleetError):
    """The API server knows no such object."""


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host.startswith("127.")


def _services(namespace: str | None, name: str | None) -> str:
    where = "" if namespace is None else f"/namespaces/{_segment(namespace)}"
    return f"/apis/{API_VERSION}{where}/{PLURAL}" + ("" if name is None else f"/{_segment(name)}")


def _segment(name: str) -> str:
    """Return what somebody typed as a part of a path: an empty one would mean everything that is there."""
    if not _NAME.fullmatch(name):
        raise FleetError(f"{name!r} is no name of a service or namespace: lower-case letters, digits and dashes")
    return name


def _refusal(status: int, body: bytes) -> FleetError:
    try:
        said = json.loads(body)
        message, details = said["message"], said.get("details") or {}
    except (ValueError, KeyError, TypeError):
        return FleetError(f"the API server answered {status}: {_beginning(body)}")
    if status != 404:
        return FleetError(str(message))
    if "name" not in details:  # no object is missing, but the kind itself
        return NotFound("the cluster knows no InferenceService; install the chart, or `pagefleet up` for a local fleet")
    return NotFound(f"{details['name']} not found: {message}; `pagefleet get -A` lists what there is")


def _beginning(content: bytes) -> str:
    return " ".join(content[:300].decode(errors="replace").split()) or "nothing"
