"""What the node is told at its start; `--help` lists it."""

import argparse
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.node.log_server import LogAccess
from pagefleet_local.node.machine import MAX_PODS, Capacity, machine_cpus, machine_gpus, machine_memory
from pagefleet_local.node.quantities import quantity


@dataclass(frozen=True)
class RunOptions:
    kubeconfig: Path
    name: str
    state: Path
    address_range: str
    kubelet_port: int
    log_access: LogAccess
    images: tuple[str, ...]
    cache: Path | None
    capacity: Capacity


@dataclass(frozen=True)
class StopOptions:
    state: Path
    grace_seconds: float


def parse(arguments: Sequence[str]) -> RunOptions | StopOptions:
    """Read the command line; ends the program with a sentence where it can't be followed."""
    parser = argparse.ArgumentParser(prog="python -m pagefleet_local.node", description="The process node.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(
        commands.add_parser(
            "run",
            help="run the pods that are bound to a node as processes of this Python environment; isolates nothing",
        )
    )
    _add_stop(commands.add_parser("stop", help="end the processes of all pods of a node that is not running"))
    found = parser.parse_args(arguments)
    if found.command == "stop":
        return StopOptions(found.state.resolve(), found.grace_seconds)
    return RunOptions(
        kubeconfig=found.kubeconfig,
        name=found.name,
        state=found.state.resolve(),
        address_range=found.address_range,
        kubelet_port=found.kubelet_port,
        log_access=LogAccess(found.tls_cert, found.tls_key, found.client_ca, found.client_name),
        images=tuple(found.image),
        cache=found.cache.resolve() if found.cache else None,
        capacity=Capacity(
            cpus=found.cpus or machine_cpus(),
            memory=found.memory or machine_memory(),
            gpus=machine_gpus() if found.gpus == "auto" else tuple(filter(None, found.gpus.split(","))),
            extended=dict(found.resource),
        ),
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kubeconfig", type=Path, required=True, help="of user system:node:NAME in group system:nodes")
    add("--name", required=True, help="the Node's name")
    add("--state", type=Path, required=True, help="folder for pods' records, volumes and logs")
    add("--address-range", type=_pod_range, default="127.1.0.0/16", help="loopback addresses of pods (%(default)s)")
    add("--kubelet-port", type=int, default=0, help="port on 127.0.0.1 for the API server to ask for logs; 0: any")
    add("--tls-cert", type=Path, required=True, help="serving certificate for 127.0.0.1")
    add("--tls-key", type=Path, required=True)
    add("--client-ca", type=Path, required=True, help="authority of the certificate that the API server shows")
    add("--client-name", required=True, help="the common name in that certificate; nobody else gets logs")
    add("--image", action="append", default=[], help="image that this environment stands for; repeatable")
    add(
        "--cache",
        type=Path,
        help="folder that stands for each emptyDir at the cache's mount path; absent: each its own",
    )
    add("--cpus", type=_quantity, help="what pods may ask for; absent: all of the machine's")
    add("--memory", type=_quantity, help="likewise")
    add("--gpus", default="auto", help="auto: those that nvidia-smi tells; else their ids with commas, or nothing")
    resource_help = "extended resource that pods may ask for, with no device behind it; repeatable"
    add("--resource", action="append", default=[], type=_resource, metavar="NAME=COUNT", help=resource_help)


def _add_stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", type=Path, required=True, help="the node's folder")
    parser.add_argument("--grace-seconds", type=float, default=30, help="at most, between SIGTERM and SIGKILL")


def _quantity(text: str) -> str:
    try:
        quantity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _loopback(text: str) -> str:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not network.is_loopback:
        raise argparse.ArgumentTypeError(f"{text} does not lie in 127.0.0.0/8")
    return text


def _pod_range(text: str) -> str:
    if ipaddress.ip_network(_loopback(text)).num_addresses < MAX_PODS + 2:
        raise argparse.ArgumentTypeError(f"{text} is too small for {MAX_PODS} pods; use a /23 or larger")
    return text


def _resource(text: str) -> tuple[str, str]:
    name, _, count = text.partition("=")
    if not name or not count:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COUNT, such as nvidia.com/gpu=2")
    return name, _quantity(count)
