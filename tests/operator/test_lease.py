"""Who leads, over what a Lease says and how long nothing has changed."""

from datetime import UTC, datetime

from pagefleet_operator.lease import LeaseRecord, Terms, next_move, patch_for, record_of, release_patch

TERMS = Terms("op-1", 15)
NOW = datetime(2026, 11, 29, 12, 0, 0, 500, tzinfo=UTC)


def _record(holder: str, duration: int = 15) -> LeaseRecord:
    return LeaseRecord(holder, duration, transitions=3, version="77")


def test_the_holder_renews_even_after_a_restart_under_the_same_name() -> None:
    assert next_move(_record("op-1"), TERMS, unchanged_seconds=0.0) == "renew"
    assert next_move(_record("op-1"), TERMS, unchanged_seconds=500.0) == "renew"


def test_a_lease_that_was_never_held_or_released_is_taken_at_once() -> None:
    assert next_move(record_of({"metadata": {"resourceVersion": "1"}}), TERMS, 0.0) == "take"
    assert next_move(_record(""), TERMS, 0.0) == "take"


def test_anothers_lease_is_left_alone_until_nothing_changed_for_its_whole_time() -> None:
    assert next_move(_record("op-2"), TERMS, 15.0) == "wait"
    assert next_move(_record("op-2"), TERMS, 15.1) == "take"
    # The other one may have been started with other settings.
    assert next_move(_record("op-2", duration=60), TERMS, 59.0) == "wait"
    assert next_move(_record("op-2", duration=0), TERMS, 14.0) == "wait"


def test_the_right_to_write_ends_before_anybody_may_take_over() -> None:
    assert TERMS.trusted_seconds + TERMS.interval_seconds <= TERMS.seconds


def test_taking_names_the_new_holder_and_counts_and_renewing_does_neither() -> None:
    took = patch_for("take", _record("op-2"), TERMS, NOW)
    assert took["spec"]["holderIdentity"] == "op-1"
    assert took["spec"]["leaseTransitions"] == 4
    assert took["spec"]["renewTime"] == "2026-11-29T12:00:00.000500Z"
    assert "holderIdentity" not in patch_for("renew", _record("op-1"), TERMS, NOW)["spec"]


def test_every_write_holds_only_while_nobody_else_has_written() -> None:
    for patch in (patch_for("take", _record(""), TERMS, NOW), release_patch(_record("op-1"))):
        assert patch["metadata"] == {"resourceVersion": "77"}
