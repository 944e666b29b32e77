"""What containerd, kubelet, kube-proxy and the DNS server are told, as text: one node without a way out."""

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

NODE_NAME = "node1"
NODE_ADDRESS = "10.200.0.1"
GATEWAY = "10.200.0.254"  # a default route must exist; it leads nowhere
POD_RANGE, NODE_POD_RANGE, SERVICE_RANGE = "10.244.0.0/16", "10.244.0.0/24", "10.96.0.0/16"
CLUSTER_DOMAIN = "cluster.local"
PAUSE_IMAGE = "localhost/pagefleet-pause:bed"

# What the network looks like before anything runs: one bridge with the node's address, up because a port is.
NETWORK_COMMANDS = (
    "ip link set lo up",
    "ip link add node0 type bridge",
    f"ip address add {NODE_ADDRESS}/24 dev node0",
    "ip link set node0 up",
    "ip link add port0 type veth peer name port1",
    "ip link set port0 master node0 up",
    "ip link set port1 up",
    f"ip route add default via {GATEWAY} dev node0",
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where one node keeps everything: in its state folder."""

    state: Path

    @property
    def socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def volumes(self) -> Path:
        """For tests that need a persistent volume: a hostPath below it."""
        return self.state / "volumes"


def containerd(places: Places, plugins: Path, runc: str) -> str:
    state = places.state
    return dedent(f"""\
        version = 3
        root = "{state}/containerd/root"
        state = "{state}/containerd/state"
        [grpc]
        address = "{places.socket}"
        [plugins."io.containerd.cri.v1.images"]
        snapshotter = "overlayfs"
        [plugins."io.containerd.cri.v1.images".pinned_images]
        sandbox = "{PAUSE_IMAGE}"
        [plugins."io.containerd.cri.v1.runtime"]
        # Where root lacks CAP_SYS_RESOURCE, runc may not lower it and every sandbox would fail.
        restrict_oom_score_adj = true
        disable_apparmor = true
        [plugins."io.containerd.cri.v1.runtime".cni]
        bin_dirs = ["{plugins}"]
        conf_dir = "{state}/cni"
        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
        [plugins."io.containerd.internal.v1.opt"]
        path = "{state}/containerd/opt"
        """)


def pod_network(places: Places) -> str:
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(places.state / "addresses"),
            "ranges": [[{"subnet": NODE_POD_RANGE}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def kubelet(places: Places, authority: Path, certificate: Path, key: Path, control_group: str) -> str:
    state = places.state
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": control_group,
            "containerRuntimeEndpoint": f"unix://{places.socket}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "address": NODE_ADDRESS,
            "healthzBindAddress": "127.0.0.1",
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "podLogsDir": f"{state}/pod-logs",
            "volumePluginDir": f"{state}/volume-plugins",
            "clusterDNS": [NODE_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": "",
            # The images are what the test brought: none is collected, and a nearly full disk evicts nothing.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
        }
    )


def kube_proxy(kubeconfig: Path) -> str:
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "hostnameOverride": NODE_NAME,
            "clusterCIDR": POD_RANGE,
            "oomScoreAdj": 0,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }
    )


def dns(kubeconfig: Path) -> str:
    return dedent(f"""\
        {CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
            bind {NODE_ADDRESS}
            ready 127.0.0.1:8181
            errors
            kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
                kubeconfig {kubeconfig}
                ttl 1
            }}
        }}
        """)


def resolver() -> str:
    """The node's own /etc/resolv.conf: a test resolves what a pod resolves."""
    return f"nameserver {NODE_ADDRESS}\nsearch svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\noptions ndots:5\n"
