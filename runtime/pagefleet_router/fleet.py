"""The replicas as last seen, and what the router itself knows of them: its requests in flight, who failed lately."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pagefleet_router.choice import pick, shun_seconds
from pagefleet_router.replicas import STATES, Replica, ReplicaState


@dataclass(slots=True)
class _Failures:
    in_a_row: int = 0
    shunned_until: float = 0.0


class Fleet:
    """Owns what changes: the watch tells it the replicas, the proxy takes them and says how it went."""

    def __init__(self, clock: Callable[[], float], seed: int | None = None) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._replicas: tuple[Replica, ...] = ()
        self._in_flight: Counter[str] = Counter()
        self._failures: dict[str, _Failures] = {}
        self._heard: float | None = None

    # --- what the watch tells

    def see(self, replicas: tuple[Replica, ...]) -> None:
        """The pods are these now."""
        self._replicas = replicas
        known = {replica.uid for replica in replicas}
        self._failures = {uid: failures for uid, failures in self._failures.items() if uid in known}

    def hear(self) -> None:
        """The API has been heard of, whether something has changed or not."""
        self._heard = self._clock()

    @property
    def known(self) -> bool:
        """Whether the pods have been read once."""
        return self._heard is not None

    @property
    def watch_age_seconds(self) -> float | None:
        """Time since the API was last heard of; None where it never was."""
        return None if self._heard is None else self._clock() - self._heard

    # --- what the proxy takes

    def pick(self, tried: Collection[str]) -> Replica | None:
        """Return the replica for a request that was tried on these, or None where there is no other."""
        return pick(self._replicas, self._in_flight, self._shunned(), tried, self._random.choice)

    @contextmanager
    def request_on(self, replica: Replica) -> Iterator[None]:
        """Count a request as in flight on the replica."""
        self._in_flight[replica.uid] += 1
        try:
            yield
        finally:
            self._in_flight[replica.uid] -= 1
            if not self._in_flight[replica.uid]:
                del self._in_flight[replica.uid]

    def failed(self, replica: Replica) -> None:
        """The replica didn't take a request: others are preferred for a while."""
        failures = self._failures.setdefault(replica.uid, _Failures())
        failures.in_a_row += 1
        failures.shunned_until = self._clock() + shun_seconds(failures.in_a_row)

    def answered(self, replica: Replica) -> None:
        """The replica has taken a request."""
        if self._failures:
            self._failures.pop(replica.uid, None)

    def _shunned(self) -> Collection[str]:
        if not self._failures:
            return ()
        now = self._clock()
        return {uid for uid, failures in self._failures.items() if failures.shunned_until > now}

    # --- figures

    def count(self) -> dict[ReplicaState, int]:
        """Return how many replicas are in each state."""
        found = Counter(replica.state for replica in self._replicas)
        return {state: found[state] for state in STATES}

    def in_flight_on(self, replica: Replica) -> int:
        return self._in_flight[replica.uid]
