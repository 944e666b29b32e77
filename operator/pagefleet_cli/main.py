"""The `pagefleet` command: one word per thing that a person does. What it starts are programs of their own."""

import os
import sys
from importlib.metadata import version as distribution_version
from typing import Annotated, NoReturn

import typer

from pagefleet_cli import fleet_commands
from pagefleet_cli.console import printable
from pagefleet_local.errors import FleetError

app = typer.Typer(
    name="pagefleet",
    help="Serve language models from a paged KV cache, one server or a fleet of them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options before the command."""


# The server's flags are made from its settings, and it checks them: everything after `serve` is handed over as it is.
@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
    options_metavar="[MODEL_URI] [OPTIONS]",
)
def serve(context: typer.Context) -> NoReturn:
    """Serve a model over the OpenAI API; `pagefleet serve --help` lists every flag."""
    # -P: a file in the working directory must not stand in for a module.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pagefleet_runtime", *context.args])


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"pagefleet {distribution_version('pagefleet')}")


fleet_commands.register(app)


def main() -> None:
    try:
        app()
    except FleetError as error:
        sys.exit(f"pagefleet: {printable(str(error))}")
