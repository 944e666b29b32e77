"""The commands about fleets: the local one goes up and down, and services are looked at and changed anywhere.

What takes long to import is imported where it is used: help must answer at once.
"""

import os
import re
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pagefleet_cli.console import Console
from pagefleet_cli.options import AllNamespaces, Kubeconfig, Namespace, OnlyServices, Service, Services, State, Timeout

if TYPE_CHECKING:
    from pagefleet_cli.cluster import Cluster
    from pagefleet_local.fleet import Fleet
    from pagefleet_local.fleet_folder import FleetFolder

# The most that Kubernetes' Scale holds. The definition allows fewer; the API server says how many.
_MOST_REPLICAS = 2**31 - 1


class Output(StrEnum):
    TABLE, WIDE, JSON, YAML, NAME = "table", "wide", "json", "yaml", "name"


class Component(StrEnum):
    ENGINE, ROUTER = "engine", "router"


def register(app: typer.Typer) -> None:
    """Add the commands, in the order in which a person meets them."""
    passes_on = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    for command in (up, get, wait, logs, scale, delete, down, kubeconfig):
        app.command()(command)
    app.command(context_settings=passes_on, add_help_option=False, options_metavar="[--state FOLDER] [ARGS...]")(
        kubectl
    )
    app.command()(crd)


def _checked_resources(resources: list[str] | None) -> list[str] | None:
    for each in resources or []:
        if not re.fullmatch(r"[a-z0-9.-]+/[A-Za-z0-9._-]+=\d{1,9}", each):
            raise typer.BadParameter(f"{each!r} is not NAME=COUNT, such as nvidia.com/gpu=8")
    return resources


def up(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Manifests to apply.")] = None,
    state: State = None,
    binaries: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where kube-apiserver, etcd and so on are; built if not given."),
    ] = None,
    pretend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COUNT",
            help="Offer a resource without a device, for models that are only played; kept till given anew.",
            callback=_checked_resources,
        ),
    ] = None,
    timeout: Timeout = 900,
) -> None:
    """Start the fleet on this machine, apply the files, and wait until their services are ready; without files, until
    those are that it had."""
    console, folder = Console(), _folder(state)
    option = "" if state is None else f" --state {state}"
    try:
        _bring_up(folder, files or [], binaries, pretend or None, timeout, console)
    except KeyboardInterrupt:
        console.done(f"broken off; what was started runs on: `pagefleet down{option}` ends it, `up` goes on")
        raise typer.Exit(130) from None
    print(f"  kubectl --kubeconfig {folder.kubeconfig} get inferenceservices --all-namespaces")
    print(f"  pagefleet down{option}      # stops it all; `pagefleet up{option}` goes on from there")


def _bring_up(
    folder: "FleetFolder",
    files: list[str],
    binaries: Path | None,
    pretend: list[str] | None,
    timeout: int,
    console: Console,
) -> None:
    from pagefleet_cli.awaiting import judge_here, place, until_ready
    from pagefleet_cli.cluster import Cluster
    from pagefleet_cli.services import curl, local_url, running, settled

    began = time.monotonic()
    applied = _fleet(folder, console).up(files, binaries, pretend)
    cluster = Cluster(folder.kubeconfig)
    places = [place(each) for each in (applied if files else running(cluster.services(None)))]
    for service in until_ready(places, cluster.services, judge_here(cluster), timeout, console):
        url = local_url(cluster, *place(service)) if service["spec"]["replicas"] else None
        told = settled(service, None)
        console.done(f"{told}, {time.monotonic() - began:.1f} s after the start" if url else told)
        if url:
            print(f"{url}\n  {curl(url, service)}", flush=True)


def get(
    services: OnlyServices = None,
    namespace: Namespace = "default",
    all_namespaces: AllNamespaces = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="How they are shown.")] = Output.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on with what changes.")] = False,
    state: State = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show services."""
    from pagefleet_cli.printing import as_json, as_names, as_yaml

    if services and all_namespaces:
        raise typer.BadParameter("name services or --all-namespaces, not both")
    cluster, where = _cluster(state, kubeconfig), None if all_namespaces else namespace
    if output in (Output.TABLE, Output.WIDE):
        wide = output is Output.WIDE
        _show_tables(cluster, where, services or [], wide=wide, watch=watch, here=wide and kubeconfig is None)
        return
    if watch:
        raise typer.BadParameter("--watch shows a table: leave --output out, or give table or wide")
    names: list[str | None] = [*services] if services else [None]
    found = [cluster.services(where, name) for name in names]
    shown = found[0] if len(found) == 1 else {"apiVersion": "v1", "kind": "List", "items": found}
    print({Output.JSON: as_json, Output.YAML: as_yaml, Output.NAME: as_names}[output](shown))


def _end_by_the_signal() -> None:
    """Let Ctrl-C end what would go on for ever, and has nothing to leave in order, by the signal itself.

    Python's own exception is lost where it comes while an object is taken down.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _show_tables(
    cluster: "Cluster", where: str | None, names: list[str], *, wide: bool, watch: bool, here: bool
) -> None:
    """Print the services; `here`, with the addresses that this machine reaches."""
    from pagefleet_cli.printing import as_table, changed_lines
    from pagefleet_cli.services import table, tables, with_local_urls

    def shown(found: dict[str, Any]) -> dict[str, Any]:
        return with_local_urls(cluster, where, found) if here else found

    first = table(cluster, where, names)
    if not first["rows"]:
        print(f"no services in {'any namespace' if where is None else where}", file=sys.stderr)
    if not watch:
        if first["rows"]:
            print(as_table(shown(first), wide=wide, with_namespace=where is None))
        return
    _end_by_the_signal()
    seen = (shown(each) for each in tables(cluster, where, names, first))
    for line in changed_lines(seen, wide=wide, with_namespace=where is None):
        print(line, flush=True)


def wait(
    services: Services,
    namespace: Namespace = "default",
    timeout: Timeout = 600,
    state: State = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Wait until services are ready with their newest spec."""
    from pagefleet_cli.awaiting import place, until_ready
    from pagefleet_cli.readiness import readiness
    from pagefleet_cli.services import local_url, settled

    cluster, console = _cluster(state, kubeconfig), Console()
    places = [(namespace, name) for name in services]
    for service in until_ready(places, cluster.services, readiness, timeout, console):
        console.clear()
        url = None if kubeconfig else local_url(cluster, *place(service))
        print(settled(service, url), flush=True)


def logs(
    service: Service,
    namespace: Namespace = "default",
    component: Annotated[Component, typer.Option("--component", "-c", help="Whose logs.")] = Component.ENGINE,
    pod: Annotated[str | None, typer.Option(help="Only this pod's.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    tail: Annotated[int | None, typer.Option(help="Only so many last lines.", min=0)] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the container before its restart.")] = False,
    state: State = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what a service's pods have written."""
    from pagefleet_cli import services
    from pagefleet_local.errors import FleetError

    cluster = _cluster(state, kubeconfig)
    found = cluster.pods(namespace, service, component)
    pods = [each for each in found if pod is None or each["metadata"]["name"] == pod]
    if not pods:
        cluster.services(namespace, service)  # says so if there is no such service
        names = ", ".join(each["metadata"]["name"] for each in found) or "none"
        raise FleetError(f"{service} has no {component} pod{f' {pod}' if pod else ''}; there are: {names}")
    if not any(services.has_started(each) for each in pods):
        raise FleetError(f"no container of {pod or service} has started; see `pagefleet get {service}`")
    query = ({"tailLines": str(tail)} if tail is not None else {}) | ({"previous": "true"} if previous else {})
    if follow:
        _end_by_the_signal()
    for line in services.logs(cluster, namespace, pods, query, follow=follow):
        print(line, flush=follow)


def scale(
    service: Service,
    count: Annotated[
        int | None, typer.Argument(metavar="REPLICAS", help="How many replicas.", min=0, max=_MOST_REPLICAS)
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", help="The same, as kubectl takes it.", min=0, max=_MOST_REPLICAS)
    ] = None,
    namespace: Namespace = "default",
    state: State = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change the number of replicas; it stays until somebody changes it again."""
    given = [number for number in (count, replicas) if number is not None]
    if len(given) != 1:
        raise typer.BadParameter(f"say once how many: `pagefleet scale {service} 2`, or with `--replicas 2`")
    from pagefleet_cli.printing import counted

    (wanted,) = given
    _cluster(state, kubeconfig).scale(namespace, service, wanted)
    told = counted(wanted, "replica")
    print(f"{service} goes to {told}; `pagefleet wait {service}` waits for {'it' if wanted == 1 else 'them'}")


def delete(
    services: Services,
    namespace: Namespace = "default",
    wait: Annotated[bool, typer.Option(help="Return when their pods are gone.")] = True,
    timeout: Timeout = 900,
    state: State = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Delete services. Their running requests finish first, within the drain timeout."""
    from pagefleet_cli.services import wait_until_gone

    cluster, console, deadline = _cluster(state, kubeconfig), Console(), time.monotonic() + timeout
    for name in services:
        cluster.delete(namespace, name)
    for name in services:
        if wait:
            wait_until_gone(cluster, namespace, name, max(deadline - time.monotonic(), 0.001), console)
            console.clear()
        print(f"{name} deleted", flush=True)


def down(
    state: State = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove its data: services, keys, logs.")] = False,
) -> None:
    """Stop the local fleet. What it is stays: `pagefleet up` goes on from there."""
    folder, console = _folder(state), Console()
    ran = _fleet(folder, console).down()
    console.clear()
    print(f"stopped {', '.join(ran)}" if ran else f"nothing ran in {folder.path}")
    if purge:
        folder.purge()
        print(f"removed {folder.path}")


def kubeconfig(state: State = None) -> None:
    """Print the path of the local fleet's kubeconfig: `export KUBECONFIG=$(pagefleet kubeconfig)`."""
    print(_started(state).kubeconfig)


def kubectl(context: typer.Context, state: State = None) -> NoReturn:
    """Run kubectl on the local fleet: `[--state FOLDER] get pods -A`."""
    from pagefleet_local.tools import KUBECTL

    commands = _fleet(_started(state), Console()).commands()
    program = str(commands.tools[KUBECTL])
    os.execve(program, [program, *context.args], os.environ | {"KUBECONFIG": str(commands.kubeconfig)})


def crd() -> None:
    """Print the CustomResourceDefinition of InferenceService: `pagefleet crd | kubectl apply -f -`."""
    import yaml

    from pagefleet_contract.crd import custom_resource_definition

    print(yaml.safe_dump(custom_resource_definition(), sort_keys=False), end="")


def _folder(state: Path | None) -> "FleetFolder":
    from pagefleet_local.fleet_folder import FleetFolder
    from pagefleet_local.folders import state_folder

    return FleetFolder((state or state_folder(os.environ)).absolute())


def _started(state: Path | None) -> "FleetFolder":
    """Return the folder of a fleet that has been up."""
    from pagefleet_local.errors import FleetError

    folder = _folder(state)
    if not folder.kubeconfig.exists():
        raise FleetError(f"there is no {folder.kubeconfig}; `pagefleet up` makes it")
    return folder


def _fleet(folder: "FleetFolder", console: Console) -> "Fleet":
    from pagefleet_local.fleet import Fleet
    from pagefleet_local.folders import cache_folder

    return Fleet(folder, cache_folder(os.environ), os.environ, console)


def _cluster(state: Path | None, kubeconfig: Path | None) -> "Cluster":
    from pagefleet_cli.cluster import Cluster

    return Cluster(kubeconfig or _folder(state).kubeconfig)
