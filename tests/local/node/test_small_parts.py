"""Admission, quantities, addresses, devices and the command line of the process node."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_local.node.addresses import Addresses, AddressesUsedUp
from pagefleet_local.node.admission import refusal
from pagefleet_local.node.devices import Devices, DevicesUsedUp
from pagefleet_local.node.machine import listed_gpus
from pagefleet_local.node.options import RunOptions, StopOptions, parse
from pagefleet_local.node.quantities import quantity
from tests.e2e.cluster import Object
from tests.local.node.nodes import pod

TOKEN = {"name": "t", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}


@pytest.mark.parametrize(
    ("spec", "container", "part"),
    [
        ({"hostNetwork": True}, {}, "spec.hostNetwork"),
        ({"hostPID": True}, {}, "spec.hostPID"),
        ({"hostIPC": True}, {}, "spec.hostIPC"),
        ({"os": {"name": "windows"}}, {}, "windows"),
        ({"runtimeClassName": "gvisor"}, {}, "gvisor"),
        ({"hostAliases": [{}]}, {}, "hostAliases"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, {}, "volume h is a hostPath"),
        ({"volumes": [{"name": "n", "nfs": {}}]}, {}, "volume n is a nfs"),
        ({}, {"securityContext": {"privileged": True}}, "privileged"),
        ({}, {"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}, "NET_ADMIN"),
        ({}, {"volumeDevices": [{}]}, "volumeDevices"),
        ({}, {"volumeMounts": [{"name": "d", "mountPath": "/data"}]}, "use /pagefleet/data"),
        ({}, {"ports": [{"containerPort": 80, "hostPort": 80}]}, "hostPort 80"),
        ({}, {"livenessProbe": {"grpc": {"port": 1}}}, "livenessProbe.grpc"),
    ],
)
def test_what_asks_for_the_machine_or_for_what_is_not_there_is_refused(
    spec: Object, container: dict[str, Any], part: str
) -> None:
    found = refusal(pod("p", "ns", "true", spec=spec, **container))
    assert found is not None and part in found


def test_what_our_own_pods_ask_for_is_taken() -> None:
    spec = {
        "volumes": [
            {"name": "c", "configMap": {"name": "c"}},
            {"name": "s", "secret": {"secretName": "s"}},
            {"name": "e"},
            {"name": "v", "persistentVolumeClaim": {"claimName": "v"}},
            {"name": "t", "projected": {"sources": []}},
        ],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    container = {
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            TOKEN,
            {"name": "c", "mountPath": "/pagefleet/config"},
            {"name": "e", "mountPath": "/dev/shm"},
        ],
        "livenessProbe": {"httpGet": {"port": 1}},
    }
    assert refusal(pod("p", "ns", "true", spec=spec, **container)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("500m", "0.5"),
        ("250u", "0.00025"),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("1.5Gi", str(3 << 29)),
        ("2E", "2000000000000000000"),
        ("1e3", "1000"),
        ("-1", "-1"),
    ],
)
def test_quantities_are_exact(text: str, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "x", "1KB", "1 Gi", "Gi", "1ki"])
def test_what_is_no_quantity_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        quantity(text)


@given(st.lists(st.booleans(), max_size=60))
def test_no_address_is_given_twice_at_a_time(takes: list[bool]) -> None:
    addresses, held = Addresses("127.5.0.0/28"), list[str]()
    for take in takes:
        if take and len(held) < 14:
            held.append(addresses.take())
        elif held:
            addresses.give_back(held.pop(0))
        assert len(set(held)) == len(held)
        assert not {"127.5.0.0", "127.5.0.15"} & set(held)


def test_an_address_that_was_given_back_rests_before_it_comes_again() -> None:
    addresses = Addresses("127.5.0.0/29")
    first = addresses.take()
    addresses.give_back(first)
    assert first not in [addresses.take() for _ in range(5)]
    assert addresses.take() == first
    with pytest.raises(AddressesUsedUp, match="6 addresses"):
        addresses.take()


def test_addresses_that_pods_have_from_before_are_not_given() -> None:
    addresses = Addresses("127.5.0.0/29")
    addresses.keep(["127.5.0.1", "127.5.0.2"])
    assert addresses.take() == "127.5.0.3"
    assert addresses.take(wanted="127.5.0.5") == "127.5.0.5"
    assert addresses.take(wanted="127.5.0.5") == "127.5.0.4"
    assert addresses.take(wanted="10.0.0.1") == "127.5.0.6"


def test_each_gpu_belongs_to_one_container() -> None:
    devices = Devices(["a", "b", "c"])
    asks = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    taken = devices.take(pod("one", "ns", "true", **asks))
    assert taken == {"one": ("a", "b")}
    with pytest.raises(DevicesUsedUp, match=r"asks for 2 of nvidia.com/gpu; 1 are free"):
        devices.take(pod("two", "ns", "true", **asks))
    devices.give_back(taken)
    devices.keep({"old": ("c",)})
    assert devices.take(pod("two", "ns", "true", **asks)) == {"two": ("a", "b")}
    assert devices.take(pod("three", "ns", "true")) == {}


def test_a_pretended_gpu_is_given_to_nobody_and_refused_to_nobody() -> None:
    asks = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
    assert Devices([]).take(pod("one", "ns", "true", **asks)) == {}


@pytest.mark.parametrize(
    ("listing", "ids"),
    [
        ("", ()),
        ("No devices found.\n", ()),
        ("GPU 0: NVIDIA H200 (UUID: GPU-a)\nGPU 1: NVIDIA H200 (UUID: GPU-b)\n", ("GPU-a", "GPU-b")),
        (
            "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n"
            "  MIG 1g.5gb      Device  0: (UUID: MIG-c)\n"
            "  MIG 1g.5gb      Device  1: (UUID: MIG-d)\n"
            "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)\n",
            ("MIG-c", "MIG-d", "GPU-b"),
        ),
    ],
)
def test_gpus_are_those_that_the_driver_lists_and_a_divided_one_is_its_parts(
    listing: str, ids: tuple[str, ...]
) -> None:
    assert listed_gpus(listing) == ids


RUN = [
    "run",
    "--kubeconfig=/k",
    "--name=n",
    "--state=/s",
    "--tls-cert=/c",
    "--tls-key=/y",
    "--client-ca=/a",
    "--client-name=api",
]


def test_the_machine_s_own_resources_are_offered_unless_others_are_named() -> None:
    own = parse(RUN)
    assert isinstance(own, RunOptions) and int(own.capacity.cpus) > 0 and own.capacity.memory.endswith("Ki")
    named = parse(
        [*RUN, "--cpus=3", "--memory=8Gi", "--gpus=a,b", "--resource=amd.com/gpu=1", "--image=x", "--image=y"]
    )
    assert isinstance(named, RunOptions)
    assert named.images == ("x", "y")
    assert named.capacity.resources() == {
        "cpu": "3",
        "memory": "8Gi",
        "pods": "250",
        "nvidia.com/gpu": "2",
        "amd.com/gpu": "1",
    }


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--cpus=many", "is no quantity"),
        ("--address-range=10.0.0.0/16", "does not lie in 127.0.0.0/8"),
        ("--address-range=127.1.0.0/25", "too small"),
        ("--address-range=x", "does not appear to be"),
        ("--resource=gpu", "is not NAME=COUNT"),
    ],
)
def test_a_flag_that_cannot_be_followed_is_refused_in_words(
    flag: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([*RUN, flag])
    assert message in capsys.readouterr().err


def test_stop_needs_the_folder_only() -> None:
    stop = parse(["stop", "--state=/s", "--grace-seconds=3"])
    assert isinstance(stop, StopOptions) and (str(stop.state), stop.grace_seconds) == ("/s", 3)
