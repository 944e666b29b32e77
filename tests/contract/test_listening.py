"""The bound socket: which address it has, who reaches it, and what is said where it can't be."""

import socket

import pytest

from pagefleet_contract.listening import PortRefused, base_url, bound_socket, listen_host
from pagefleet_contract.names import ENV_LISTEN_ADDRESS


def reaches(listener: socket.socket, host: str) -> bool:
    try:
        socket.create_connection((host, listener.getsockname()[1]), timeout=5).close()
    except OSError:
        return False
    return True


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_the_flag_goes_before_the_environment_and_loopback_comes_last() -> None:
    environment = {ENV_LISTEN_ADDRESS: "*"}
    assert listen_host("127.0.0.2", environment) == "127.0.0.2"
    assert listen_host(None, environment) == "*"
    assert listen_host(None, {}) == "127.0.0.1"


def test_an_address_is_reached_at_that_address_alone() -> None:
    with bound_socket("127.0.0.2", 0) as listener:
        assert reaches(listener, "127.0.0.2") and not reaches(listener, "127.0.0.1")
        assert base_url(listener) == f"http://127.0.0.2:{listener.getsockname()[1]}"


def test_a_star_is_reached_at_every_address() -> None:
    with bound_socket("*", 0) as listener:
        listener.listen(8)
        assert reaches(listener, "127.0.0.1") and reaches(listener, "127.0.0.2")
        assert reaches(listener, "::1") == has_ipv6_loopback()
        assert base_url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_ipv6_address_stands_in_brackets() -> None:
    if not has_ipv6_loopback():
        pytest.skip("this machine has no IPv6 loopback address")
    with bound_socket("::1", 0) as listener:
        assert base_url(listener) == f"http://[::1]:{listener.getsockname()[1]}"


@pytest.mark.parametrize("host", ["127.0.0.1", "*"])
def test_a_port_in_use_is_named_with_what_to_do(host: str) -> None:
    with bound_socket(host, 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortRefused, match=rf"port {port} of .* is in use; .*--port"):
            bound_socket(host, port)


@pytest.mark.parametrize("host", ["198.51.100.7", "no such host", "x" * 300])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(PortRefused, match="--host"):
        bound_socket(host, 0)
