"""The bench of many services, in short: its bounds hold for fifty as well."""

import pytest

from tests.bench.operator_scale import measure

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_fifty_services_at_once_take_few_writes_and_little_memory() -> None:
    missed = [each.line() for each in measure(num_services=50, idle_seconds=20).goals() if not each.met]
    assert not missed
