"""The operator is killed at random moments; what it began is finished, once."""

import random
import time
from typing import Any

import pytest

from pagefleet_contract.names import KIND
from tests.e2e.services import service
from tests.operator.cluster.bed import Bed, wait_until

pytestmark = pytest.mark.cluster

_NUM_SERVICES = 6
_NUM_KILLS = 6


def _live_settings_say(bed: Bed, queue: int) -> bool:
    maps: list[Any] = [
        m for m in bed.cluster.all("ConfigMap", bed.namespace) if m["metadata"]["name"].endswith("-live")
    ]
    return len(maps) == _NUM_SERVICES and all(
        f'"maxQueue":{queue}' in found["data"]["live.json"].replace(" ", "") for found in maps
    )


def test_an_operator_killed_at_random_moments_ends_where_the_specs_say(bed: Bed) -> None:
    moments = random.Random(4)
    for index in range(_NUM_SERVICES):
        bed.cluster.create(service(bed.namespace, f"s{index}"))
    # The same pod's process comes back at once, as a container does.
    for kill in range(_NUM_KILLS):
        operator = bed.operator().start()
        operator.wait_ready()
        for index in range(_NUM_SERVICES):
            queue = {"spec": {"scheduling": {"maxQueue": 100 + kill}}}
            bed.cluster.patch(KIND, bed.namespace, f"s{index}", queue)
        time.sleep(moments.uniform(0, 1.5))
        operator.kill()
    with bed.operator().running():
        wait_until("every service has the last edit", lambda: _live_settings_say(bed, 99 + _NUM_KILLS), 60)
        wait_until("one engine and one router each", lambda: _num(bed, "Deployment") == 2 * _NUM_SERVICES, 60)
        wait_until("one Service each", lambda: _num(bed, "Service") == _NUM_SERVICES, 60)


def _num(bed: Bed, kind: str) -> int:
    return len(bed.cluster.all(kind, bed.namespace, "app.kubernetes.io/managed-by=pagefleet"))
