"""The server program: parses its flags, starts the engine process and HTTP, ends both in order.

Nothing heavy is imported before the flags have been checked: help and errors answer at once.
"""

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagefleet_contract.api_keys import KeyFileRefused
from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.flags import ConfigRefused, ServeOptions, parse_serve
from pagefleet_contract.known_models import is_simulated
from pagefleet_contract.listening import PortRefused, bound_socket, listen_host, raise_file_limit
from pagefleet_runtime.errors import RuntimeFault

if TYPE_CHECKING:
    from pagefleet_runtime.protocol import EngineInfo
    from pagefleet_runtime.serving import Parts
    from pagefleet_runtime.text.tokenizer import Tokenizer

PROGRAM = "pagefleet serve"
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Return the exit code: 0 after a drain, 1 where serving failed, 2 for wrong flags.

    The last line on stderr says why it ended, where it wasn't told to: it becomes the pod's termination message.
    """
    try:
        options = parse_serve(sys.argv[1:] if arguments is None else arguments, PROGRAM)
    except ConfigRefused as refused:
        for line in refused.lines:
            _say(line)
        return 2
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    try:
        failure = _serve(options)
    except (RuntimeFault, KeyFileRefused, PortRefused) as fault:
        failure = str(fault)
    except KeyboardInterrupt:
        return 130  # Ctrl-C before the loop could take it
    if failure is None:
        return 0
    _say(failure)
    return 1


def _serve(options: ServeOptions) -> str | None:
    from pagefleet_runtime.auth import AccessKeys

    _refuse_at_once(options.config.model.uri)
    keys = AccessKeys.load(options.config.serving)
    listener = bound_socket(listen_host(options.host, os.environ), options.port)
    most_files = raise_file_limit()
    with listener:
        import uvloop

        from pagefleet_runtime.serving import serve

        # Not `uvloop.run`: it would wait for threads that still import or read what nobody needs any more.
        serving = serve(_parts(options.config), options.config, keys, listener, most_files)
        return uvloop.new_event_loop().run_until_complete(serving)


def _refuse_at_once(uri: str) -> None:
    """Raise ModelRefused for a model that plainly isn't on this machine: an engine takes seconds to say so."""
    from pagefleet_runtime.models.packages import installed_package
    from pagefleet_runtime.models.paths import examine_path, local_path

    path = local_path(uri)
    if path is not None:
        examine_path(path, uri)
    elif uri.startswith("package://"):
        installed_package(uri.removeprefix("package://"))


def _parts(config: EngineConfig) -> "Parts":
    """Return what this model needs: a process with torch, or a thread that only pretends."""
    from pagefleet_runtime.serving import Parts

    if is_simulated(config.model.uri):
        from pagefleet_runtime.engine_thread import ThreadLink
        from pagefleet_runtime.text.byte_tokenizer import byte_tokenizer

        return Parts(ThreadLink(config), lambda info: byte_tokenizer())

    from pagefleet_runtime.engine_link import ProcessLink

    return Parts(ProcessLink(config), _load_model_tokenizer)


def _load_model_tokenizer(info: "EngineInfo") -> "Tokenizer":
    from pagefleet_runtime.text.model_tokenizer import load_tokenizer  # while the engine loads the model

    return load_tokenizer(info.model_directory)


def _say(line: str) -> None:
    print(f"{PROGRAM}: {' '.join(line.split())}", file=sys.stderr, flush=True)
