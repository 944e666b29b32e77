"""Kubernetes' own control plane on one address: etcd, API server, controller manager and scheduler as processes.

Ports, keys and data stay the same from stop to start. What runs on top of it (a process node, a kubelet, an operator)
isn't known here: a caller asks for clients' kubeconfigs and serving pairs by name.
"""

import contextlib
import ipaddress
import ssl
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagefleet_local import pki
from pagefleet_local.errors import FleetError
from pagefleet_local.ports import kept_ports, read_ports
from pagefleet_local.processes import Processes, Program
from pagefleet_local.waiting import attempts

ETCD, API_SERVER, CONTROLLERS, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
PROGRAMS = (ETCD, API_SERVER, CONTROLLERS, SCHEDULER)
# The API server shows this name to kubelets when it fetches logs; a node lets nobody else in.
KUBELET_CLIENT = "apiserver-kubelet-client"
ADMINISTRATORS = "system:masters"

_READY_SECONDS = 120
_STOP_SECONDS = {API_SERVER: 15.0, ETCD: 15.0, CONTROLLERS: 5.0, SCHEDULER: 5.0}
# A loopback address may not stand in an EndpointSlice: these controllers would only log a warning for each Service.
_ENDPOINT_CONTROLLERS = ("endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller")


@dataclass(frozen=True, slots=True)
class Network:
    """Where the API server listens and which addresses it hands out. The defaults need no rights on any machine."""

    address: str = "127.0.0.1"
    service_range: str = "127.64.0.0/16"
    pod_range: str | None = None  # given, the controllers give each node a part of it

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def api_service(self) -> str:
        """The first address of the range is that of the service `kubernetes`."""
        return str(ipaddress.ip_network(self.service_range)[1])


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The control plane of one folder. `start` and `stop` may be called by different commands, and again."""

    folder: Path
    binaries: Mapping[str, Path]  # the file of each of PROGRAMS
    network: Network = Network()
    # Without it a power cut can lose what was stored last, and a start is faster.
    durable: bool = True
    extra_arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def processes(self) -> Processes:
        return Processes(self.folder)

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def url(self) -> str:
        return f"https://{self.network.address}:{self.ports['api']}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def authority(self) -> Path:
        """The certificate that proves API server and nodes, and by which both know their clients."""
        return self.keys / "ca.crt"

    @property
    def ports(self) -> dict[str, int]:
        """By use; there once it has been started."""
        return read_ports(self._ports_file)

    @property
    def _ports_file(self) -> Path:
        return self.folder / "ports.json"

    def start(self) -> None:
        """Start what doesn't run yet and return when pods can be created."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stopped = [name for name in (ETCD, API_SERVER) if not self.processes.find(name)]
        ports = kept_ports(
            self._ports_file, {"api": API_SERVER in stopped, "etcd": ETCD in stopped, "etcd-peer": ETCD in stopped}
        )
        authority = pki.authority(self.keys, "ca")
        self._run(ETCD, self._etcd(ports))
        self._run(API_SERVER, self._api_server(authority, ports))
        self.kubeconfig_for("admin", "pagefleet-admin", ADMINISTRATORS, file=self.kubeconfig)
        self._wait("/readyz", "a ready API server", (ETCD, API_SERVER))
        # Only now: started earlier, the controller manager ends because its roles are not there yet.
        self._run(CONTROLLERS, self._controllers(authority))
        self._run(SCHEDULER, self._scheduler())
        # Pods are refused before it is there.
        self._wait("/api/v1/namespaces/default/serviceaccounts/default", "the default service account", PROGRAMS)

    def stop(self) -> None:
        """Stop what runs: those that write first, the store last."""
        for name in (SCHEDULER, CONTROLLERS, API_SERVER, ETCD):
            self.processes.stop(name, _STOP_SECONDS[name])

    def kubeconfig_for(self, name: str, user: str, group: str | None = None, *, file: Path | None = None) -> Path:
        """Return a kubeconfig for that user, with a certificate of its own."""
        pair = pki.authority(self.keys, "ca").client(name, user, group)
        return pki.write_kubeconfig(file or self.keys / f"{name}.conf", self.url, self.authority, pair, "pagefleet")

    def serving_pair(self, name: str, common_name: str, alternative_names: Sequence[str]) -> pki.Pair:
        """Return the pair of a server that the API server calls (a node's logs)."""
        return pki.authority(self.keys, "ca").server(name, common_name, alternative_names)

    def _run(self, name: str, arguments: Sequence[str]) -> None:
        command = [str(self.binaries[name]), *arguments, *self.extra_arguments.get(name, ())]
        self.processes.start(Program(name, command, {"HOME": str(self.folder), "PATH": "/usr/bin:/bin"}))

    def _etcd(self, ports: Mapping[str, int]) -> list[str]:
        # Of its own: whoever may use the API must not be able to read the store past it.
        authority = pki.authority(self.keys, "etcd-ca")
        pair = authority.member("etcd", "etcd", ["127.0.0.1", "localhost"])
        client, peer = f"https://127.0.0.1:{ports['etcd']}", f"https://127.0.0.1:{ports['etcd-peer']}"
        return [
            f"--data-dir={self.folder / 'etcd'}",
            "--log-level=warn",
            *([] if self.durable else ["--unsafe-no-fsync"]),
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            "--client-cert-auth",
            f"--trusted-ca-file={authority.certificate}",
            f"--cert-file={pair.certificate}",
            f"--key-file={pair.key}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--peer-client-cert-auth",
            f"--peer-trusted-ca-file={authority.certificate}",
            f"--peer-cert-file={pair.certificate}",
            f"--peer-key-file={pair.key}",
        ]

    def _api_server(self, authority: pki.Authority, ports: Mapping[str, int]) -> list[str]:
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        addresses = sorted({self.network.address, "127.0.0.1", self.network.api_service})
        serving = authority.server("apiserver", "kube-apiserver", [*names, "localhost", *addresses])
        kubelet_client = authority.client(KUBELET_CLIENT, KUBELET_CLIENT, ADMINISTRATORS)
        front = pki.authority(self.keys, "front-proxy-ca")
        front_client = front.client("front-proxy-client", "front-proxy-client")
        tokens = pki.signing_key(self.keys, "service-accounts")
        etcd = pki.authority(self.keys, "etcd-ca")
        etcd_client = etcd.client("etcd-client", "kube-apiserver")
        return [
            f"--etcd-servers=https://127.0.0.1:{ports['etcd']}",
            f"--etcd-cafile={etcd.certificate}",
            f"--etcd-certfile={etcd_client.certificate}",
            f"--etcd-keyfile={etcd_client.key}",
            f"--bind-address={self.network.address}",
            f"--advertise-address={self.network.address}",
            f"--secure-port={ports['api']}",
            *(["--endpoint-reconciler-type=none"] if self.network.is_loopback else []),
            f"--service-cluster-ip-range={self.network.service_range}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={authority.certificate}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--profiling=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={tokens.certificate}",
            f"--service-account-signing-key-file={tokens.key}",
            f"--kubelet-certificate-authority={authority.certificate}",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP",  # or logs and exec try to resolve the node's name
            f"--requestheader-client-ca-file={front.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={front_client.certificate}",
            f"--proxy-client-key-file={front_client.key}",
        ]

    def _controllers(self, authority: pki.Authority) -> list[str]:
        left_out = [f"-{name}" for name in _ENDPOINT_CONTROLLERS] if self.network.is_loopback else []
        pods = ["--allocate-node-cidrs=true", f"--cluster-cidr={self.network.pod_range}"]
        return [
            f"--kubeconfig={self.kubeconfig_for('controllers', 'system:kube-controller-manager')}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={pki.signing_key(self.keys, 'service-accounts').key}",
            f"--root-ca-file={authority.certificate}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.key}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--controllers={','.join(['*', *left_out])}",
            *(pods if self.network.pod_range else []),
        ]

    def _scheduler(self) -> list[str]:
        kubeconfig = self.kubeconfig_for("scheduler", "system:kube-scheduler")
        return [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"]

    def _wait(self, path: str, what: str, programs: Sequence[str]) -> None:
        """Return when the API server answers 200 there; raise when one of the programs has ended or time is up."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.keys / "admin.crt", self.keys / "admin.key")
        # A proxy of the user's environment cannot reach this machine's own addresses.
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        for _ in attempts(_READY_SECONDS):
            with contextlib.suppress(OSError):
                direct.open(f"{self.url}{path}", timeout=5).close()
                return
            if ended := [name for name in programs if not self.processes.find(name)]:
                raise FleetError(self._epitaph(ended[0]))
        raise FleetError(f"no {what} within {_READY_SECONDS} s; the logs are in {self.processes.logs}")

    def _epitaph(self, name: str) -> str:
        last = self.processes.tail_of(name, 1) or "it wrote nothing"
        return f"{name} ended at its start: {last}; its log is {self.processes.log_of(name)}"


@contextlib.contextmanager
def running(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Run a control plane for the length of a block, for tests and tools that throw it away."""
    try:
        control_plane.start()
        yield control_plane
    finally:
        control_plane.stop()
