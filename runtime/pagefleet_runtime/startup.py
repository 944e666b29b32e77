"""What happens around serving: the port, the limits, and what a person sees when the server is up."""

import errno
import json
import resource
import socket
from collections.abc import Sequence

from pagefleet_runtime.errors import RuntimeFault


class PortRefused(RuntimeFault):
    """The address can't be listened on; the message says what to do."""


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, not yet listening. Port 0 takes a free one. Raises PortRefused."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise PortRefused(f"--host {host}: {error.strerror}; give an address of this machine") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Binding alone doesn't collide with a socket that listens; listening does.
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise PortRefused(_port_message(host, port, error)) from error
    return listener


def _port_message(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; stop what uses it or give another with --port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} needs more rights than this process has; give one above 1023 with --port"
    return f"can't listen on {host} port {port}: {error.strerror}; give an address of this machine with --host"


def raise_file_limit() -> int:
    """Allow as many open files, so connections, as this process may ask for. Return the number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def base_url(listener: socket.socket) -> str:
    """Return the URL by which this machine reaches a bound socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def aligned_table(rows: Sequence[tuple[str, str]]) -> str:
    """Return rows of label and value as text, the values below each other."""
    width = max((len(label) for label, _ in rows), default=0)
    return "\n".join(f"  {label:<{width}}  {value}".rstrip() for label, value in rows)


def ready_lines(url: str, model_name: str, needs_key: bool) -> str:
    """Return what a person reads when the server is up: where it is, and a command that works."""
    body = {"model": model_name, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32}
    key = ' -H "Authorization: Bearer $API_KEY"' if needs_key else ""
    # An apostrophe in the name would end the shell's quotes.
    text = json.dumps(body, ensure_ascii=False).replace("'", r"'\''")
    return (
        f"pagefleet serves {model_name} at {url}/v1; try:\n"
        f"  curl -s {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{text}'"
    )
