"""What a fleet decides once, and that only a fleet's folder is ever removed."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from pagefleet_local.errors import FleetError
from pagefleet_local.fleet_folder import Decisions, FleetFolder


def test_what_was_decided_stays(tmp_path: Path) -> None:
    decided = FleetFolder(tmp_path / "fleet").decisions()
    assert FleetFolder(tmp_path / "fleet").decisions() == decided
    assert decided.node_name


def test_pretended_resources_stay_until_others_are_given(tmp_path: Path) -> None:
    folder = FleetFolder(tmp_path / "fleet")
    network = folder.decisions().network
    folder.pretend(["nvidia.com/gpu=8"])
    decided = FleetFolder(tmp_path / "fleet").decisions()
    assert (decided.network, decided.pretended) == (network, ("nvidia.com/gpu=8",))


@pytest.mark.parametrize("number", [0, 62])
def test_services_and_pods_have_loopback_networks_that_never_meet(number: int) -> None:
    decided = Decisions(number, "node")
    networks = ip_network(decided.service_range), ip_network(decided.pod_range)
    assert all(network.is_loopback and network.num_addresses == 65536 for network in networks)
    assert not networks[0].overlaps(networks[1])
    others = [Decisions(other, "node") for other in range(63) if other != number]
    assert not any(network.overlaps(ip_network(each.pod_range)) for each in others for network in networks)


def test_a_folder_with_other_files_never_becomes_a_fleets(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FleetError, match="holds other files"):
        FleetFolder(tmp_path).decisions()


def test_only_a_fleets_folder_is_purged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FleetError, match="holds no fleet; nothing is removed"):
        FleetFolder(tmp_path).purge()
    assert (tmp_path / "thesis.txt").exists()
    fleet = FleetFolder(tmp_path / "fleet")
    fleet.decisions()
    fleet.purge()
    assert not fleet.path.exists()
