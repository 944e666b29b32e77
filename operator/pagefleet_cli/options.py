"""The options that several commands share, and what they stand for."""

from pathlib import Path
from typing import Annotated

import typer

State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FOLDER",
        help="The local fleet's folder.  [default: $PAGEFLEET_STATE, else ~/.local/state/pagefleet]",
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Another cluster than the local fleet."),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="The services' namespace.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")]
Timeout = Annotated[int, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.", min=1)]
Service = Annotated[str, typer.Argument(metavar="SERVICE", help="Name of the service.")]


def _each_once(names: list[str] | None) -> list[str]:
    return list(dict.fromkeys(names or []))


Services = Annotated[list[str], typer.Argument(metavar="SERVICE", help="Names of services.", callback=_each_once)]
OnlyServices = Annotated[list[str] | None, typer.Argument(metavar="SERVICE", help="Only these.", callback=_each_once)]
