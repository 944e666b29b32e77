"""Ports are chosen once; one that another program took is replaced only where it must be free."""

import socket
from pathlib import Path

from pagefleet_local.ports import is_free, kept_ports, read_ports


def test_ports_are_kept_and_differ(tmp_path: Path) -> None:
    first = kept_ports(tmp_path / "ports.json", {"api": True, "etcd": True})
    assert len(set(first.values())) == 2
    assert (
        kept_ports(tmp_path / "ports.json", {"api": True, "etcd": True}) == first == read_ports(tmp_path / "ports.json")
    )


def test_a_new_name_gets_a_port_beside_the_kept_ones(tmp_path: Path) -> None:
    first = kept_ports(tmp_path / "ports.json", {"api": True})
    assert kept_ports(tmp_path / "ports.json", {"api": True, "logs": True})["api"] == first["api"]


def test_a_port_that_another_program_took_is_replaced_where_it_must_be_free(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    port = kept_ports(file, {"api": True})["api"]
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
        assert kept_ports(file, {"api": False}) == {"api": port}
        assert kept_ports(file, {"api": True}) != {"api": port}


def test_ports_lie_below_those_that_the_kernel_gives_to_outgoing_connections(tmp_path: Path) -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = kept_ports(tmp_path / "ports.json", dict.fromkeys("abcdefgh", True)).values()
    assert max(ports) < max(lowest, 30001)
