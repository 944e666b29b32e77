"""The router program: reads its flags and settings, listens, serves."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from pagefleet_contract.api_keys import ApiKeys, KeyFileRefused
from pagefleet_contract.flags import ConfigRefused, read_config_file
from pagefleet_contract.listening import PortRefused, bound_socket, listen_host, raise_file_limit
from pagefleet_contract.names import ENV_LISTEN_ADDRESS, HTTP_PORT
from pagefleet_contract.near_names import fault_text
from pagefleet_contract.router import RouterConfig

PROGRAM = "pagefleet-router"
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Return the exit code: 0 after a drain, 1 where serving failed, 2 for wrong settings."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    try:
        config = load_config(Path(given.config))
        keys = ApiKeys.load(given.api_keys_file)
        listener = bound_socket(listen_host(given.host, os.environ), given.port)
    except (ConfigRefused, KeyFileRefused) as refused:
        for line in str(refused).splitlines():
            print(f"{PROGRAM}: {line}", file=sys.stderr)
        return 2
    except PortRefused as refused:
        print(f"{PROGRAM}: {refused}", file=sys.stderr)
        return 1
    with listener:
        import uvloop

        from pagefleet_router.credentials import SERVICE_ACCOUNT, read_access
        from pagefleet_router.serving import serve

        access = partial(read_access, os.environ.get("KUBECONFIG"), os.environ, SERVICE_ACCOUNT)
        serving = serve(config, keys, access, listener, raise_file_limit())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serving)


def load_config(path: Path) -> RouterConfig:
    """Return the settings of a file. Raises ConfigRefused."""
    try:
        return RouterConfig.model_validate(read_config_file(path))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise ConfigRefused([f"--config {path}: {fault_text(RouterConfig, fault)}" for fault in faults]) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="The front door of one InferenceService: finds its replicas and passes requests on."
    )
    parser.add_argument("--config", metavar="FILE", required=True, help="YAML or JSON file with the settings")
    parser.add_argument(
        "--api-keys-file", metavar="PATH", help="file or folder with the tenants' keys; without it the API is open"
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", help=f"address to listen on [default: ${ENV_LISTEN_ADDRESS}, or 127.0.0.1]"
    )
    parser.add_argument(
        "--port", metavar="N", type=int, default=HTTP_PORT, help=f"port to listen on [default: {HTTP_PORT}]"
    )
    return parser
