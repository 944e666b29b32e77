"""The operator's command line: reads settings and root key, sets up the log, and turns ends into exit codes."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import kopf
import yaml
from pydantic import ValidationError
from pythonjsonlogger.json import JsonFormatter

from pagefleet_contract.listening import PortRefused, bound_socket, listen_host
from pagefleet_contract.names import ENV_POD_NAME, ENV_POD_NAMESPACE, OPERATOR_PORT
from pagefleet_contract.near_names import fault_text
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.discovery import ApiAbsent
from pagefleet_operator.faults import NotLeading
from pagefleet_operator.plan import plan
from pagefleet_operator.program import Identity, OperatorProgram, TaskEnded

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2  # arguments, settings or environment
EXIT_API_ABSENT = 3
EXIT_LEASE_LOST = 4

_ROOT_KEY_BYTES = 16  # fewer could be guessed


class StartRefused(Exception):
    """Something that is needed for the start is missing or wrong; the message says what to do."""


def main() -> None:
    arguments = _parser().parse_args()
    try:
        settings = read_settings(arguments.settings)
        root_key = read_root_key(arguments.root_key_file)
        identity = identity_from(os.environ)
    except StartRefused as error:
        print(f"pagefleet-operator: {error}", file=sys.stderr)
        raise SystemExit(EXIT_REFUSED) from None
    set_up_log(settings.log_level)
    host = listen_host(arguments.host, os.environ)
    with asyncio.Runner() as runner:
        code = runner.run(_run(settings, root_key, identity, host, arguments.port))
        if _something_is_left(runner):
            # kopf, when a watch of it has failed, can wait for its other watches for ever.
            logging.shutdown()
            os._exit(code)
    raise SystemExit(code)


async def _run(settings: OperatorSettings, root_key: bytes, identity: Identity, host: str, port: int) -> int:
    try:
        listener = bound_socket(host, port)
        # A request outlives the right to write by less than others wait for it.
        timeout = settings.lease_seconds / 3
        # Of the Lease, two tries must fit into the time for which one is trusted.
        async with ClusterApi(timeout) as api, ClusterApi(settings.lease_seconds / 5) as lease_api:
            await OperatorProgram(settings, root_key, identity, plan, api, lease_api).run(listener)
    except PortRefused as error:
        logger.error("%s", error)
        return EXIT_REFUSED
    except ApiAbsent as error:
        logger.error("%s", error)
        return EXIT_API_ABSENT
    except NotLeading as error:
        logger.error("the Lease is lost, so this process ends and is started again: %s", error)
        return EXIT_LEASE_LOST
    except kopf.LoginError as error:
        logger.error("the API server refuses this process's login, so it ends and is started again: %s", error)
        return EXIT_FAILED
    except TaskEnded as error:
        logger.error("%s", error)
        return EXIT_FAILED
    logger.info("ended as asked")
    return EXIT_OK


def _something_is_left(runner: asyncio.Runner) -> bool:
    return bool(asyncio.all_tasks(runner.get_loop()))


def read_settings(path: Path) -> OperatorSettings:
    """Raises StartRefused."""
    try:
        return OperatorSettings.model_validate(yaml.safe_load(path.read_text()) or {})
    except OSError as error:
        raise StartRefused(f"--settings {path}: {error.strerror}; give the file that the chart mounts") from error
    except yaml.YAMLError as error:
        raise StartRefused(f"--settings {path} is no YAML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise StartRefused(f"--settings {path}: {fault_text(OperatorSettings, first)}") from error


def read_root_key(path: Path) -> bytes:
    """Raises StartRefused."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise StartRefused(f"--root-key-file {path}: {error.strerror}; give the chart's mounted Secret") from error
    if len(key) < _ROOT_KEY_BYTES:
        raise StartRefused(f"--root-key-file {path} holds {len(key)} bytes; at least {_ROOT_KEY_BYTES} are needed")
    return key


def identity_from(environment: Mapping[str, str]) -> Identity:
    """Raises StartRefused."""
    missing = [name for name in (ENV_POD_NAME, ENV_POD_NAMESPACE) if not environment.get(name)]
    if missing:
        raise StartRefused(f"{' and '.join(missing)} must be set: the Lease is held under the pod's name")
    return Identity(environment[ENV_POD_NAME], environment[ENV_POD_NAMESPACE])


def set_up_log(level: str) -> None:
    """One JSON object a line, on standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(log_formatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("httpx2", "httpcore2", "kopf"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def log_formatter() -> logging.Formatter:
    return JsonFormatter(
        "{levelname}{name}{message}",
        style="{",
        rename_fields={"timestamp": "time", "levelname": "level", "name": "logger"},
        timestamp=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pagefleet-operator", description="Reconciles InferenceServices.")
    parser.add_argument("--settings", type=Path, required=True, metavar="FILE", help="the operator's settings, as YAML")
    parser.add_argument(
        "--root-key-file", type=Path, required=True, metavar="FILE", help="the key that each service's is made from"
    )
    parser.add_argument("--host", help="address to listen on; * is every address")
    parser.add_argument(
        "--port", type=int, default=OPERATOR_PORT, help="port of health and metrics; 0 takes a free one"
    )
    return parser
