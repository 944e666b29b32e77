"""The address that a server listens on: which one, the bound socket, its URL, and what is said where it can't be."""

import errno
import resource
import socket
from collections.abc import Mapping

from pagefleet_contract.names import ENV_LISTEN_ADDRESS

# As a host: every address of this machine, of both families where it has them.
ALL_ADDRESSES = "*"


class PortRefused(Exception):
    """The address can't be listened on; the message says what to do."""


def listen_host(given: str | None, environment: Mapping[str, str]) -> str:
    """Return the host to listen on: what the flag says, else what the environment says, else loopback."""
    return given or environment.get(ENV_LISTEN_ADDRESS) or "127.0.0.1"


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, its backlog short until the server listens itself.

    Port 0 takes a free one; host `*` takes all addresses. Raises PortRefused.
    """
    if host == ALL_ADDRESSES:
        return _bound_everywhere(port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        found = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise PortRefused(f"--host {host}: {found}; give an address of this machine, or {ALL_ADDRESSES}") from error
    listener = socket.socket(family, kind, protocol)
    return _bind(listener, address, host, port)


def _bound_everywhere(port: int) -> socket.socket:
    try:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:  # a kernel without IPv6
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        return _bind(listener, ("0.0.0.0", port), ALL_ADDRESSES, port)
    return _bind(listener, ("::", port), ALL_ADDRESSES, port)


def _bind(listener: socket.socket, address: tuple[object, ...], host: str, port: int) -> socket.socket:
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


def base_url(listener: socket.socket) -> str:
    """Return the URL by which this machine reaches a bound socket."""
    host, port = listener.getsockname()[:2]
    if host == "::":
        only_ipv6 = listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        host = "::1" if only_ipv6 else "127.0.0.1"
    elif host == "0.0.0.0":
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_file_limit() -> int:
    """Allow as many open files, so connections, as this process may ask for. Return the number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
