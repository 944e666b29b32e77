"""The server program: parses its flags, starts the engine process and HTTP, ends both in order.

Nothing heavy is imported before the flags have been checked: help and errors answer at once.
"""

import logging
import os
import sys
from collections.abc import Sequence

from pagefleet_contract.api_keys import KeyFileRefused
from pagefleet_contract.flags import ConfigRefused, ServeOptions, parse_serve
from pagefleet_contract.listening import PortRefused, bound_socket, listen_host, raise_file_limit
from pagefleet_runtime.errors import RuntimeFault

PROGRAM = "pagefleet serve"
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Return the exit code: 0 after a drain, 1 where serving failed, 2 for wrong flags."""
    try:
        options = parse_serve(sys.argv[1:] if arguments is None else arguments, PROGRAM)
    except ConfigRefused as refused:
        for line in refused.lines:
            print(f"{PROGRAM}: {line}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    try:
        return _serve(options)
    except (RuntimeFault, KeyFileRefused, PortRefused) as fault:
        print(f"{PROGRAM}: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # Ctrl-C before the loop could take it


def _serve(options: ServeOptions) -> int:
    from pagefleet_runtime.auth import AccessKeys

    keys = AccessKeys.load(options.config.serving)
    listener = bound_socket(listen_host(options.host, os.environ), options.port)
    most_files = raise_file_limit()
    with listener:
        import uvloop

        from pagefleet_runtime.serving import serve

        # Not `uvloop.run`: it would wait for threads that still import or read what nobody needs any more.
        return uvloop.new_event_loop().run_until_complete(serve(options.config, keys, listener, most_files))
