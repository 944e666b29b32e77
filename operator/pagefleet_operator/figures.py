"""Reads the replicas' figures in the background, and hands them live settings. A reconcile takes what is known and
never waits; a replica that hangs costs its own place and is asked less and less often."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import httpx2
from pydantic.alias_generators import to_snake

from pagefleet_contract.names import PATH_POLICY, PATH_STATE
from pagefleet_operator.cache import ReplicaAddress, ServiceKey
from pagefleet_operator.faults import RefusedFault, TemporaryFault
from pagefleet_operator.keys import service_key
from pagefleet_operator.observed import Figures
from pagefleet_operator.state_page import NoStatePage, figures_of, replica_url

# Any image can run behind a replica's address; what it sends isn't kept without bound.
_MAX_PAGE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FiguresPace:
    """How often replicas are asked, in seconds. Those that load are asked often: people wait for them."""

    ready: float
    timeout: float
    loading: float = 2.0
    failing_longest: float = 60.0

    def wait_after(self, reading: "Reading", ready: bool) -> float:
        if reading.failures:
            return min(self.failing_longest, self.loading * 2.0 ** min(reading.failures, 10))
        return self.ready if ready else min(self.loading, self.ready)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one replica. Figures outlive a failed read for a while; the fault says that it failed."""

    figures: Figures | None = None
    fault: str = ""
    failures: int = 0
    read_at: float = 0.0


class FiguresBook:
    """Owns the readings, by the pods' uids."""

    def __init__(
        self,
        pace: FiguresPace,
        root_key: bytes,
        on_read: Callable[[bool], None],
        *,
        num_at_once: int = 32,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pace = pace
        self._root_key = root_key
        self._on_read = on_read
        self._clock = clock
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(pace.timeout),
            limits=httpx2.Limits(max_connections=2 * num_at_once, max_keepalive_connections=0),
            trust_env=False,  # a proxy of the cluster has no business with pods
        )
        self._places = asyncio.Semaphore(num_at_once)
        self._readings: dict[str, Reading] = {}
        self._due: dict[str, float] = {}
        self._present: dict[str, ReplicaAddress] = {}
        self._asked: dict[str, asyncio.Task[None]] = {}

    def reading(self, pod_uid: str) -> Reading:
        """Return what is known; figures that are too old are none."""
        known = self._readings.get(pod_uid, Reading())
        if known.figures is not None and self._clock() - known.read_at > 3 * self._pace.ready + self._pace.timeout:
            return replace(known, figures=None, fault=known.fault or "its figures are too old")
        return known

    def ask_due(
        self,
        replicas: Iterable[ReplicaAddress],
        key_of: Callable[[ReplicaAddress], ServiceKey | None],
        on_news: Callable[[ServiceKey], None],
    ) -> None:
        """Start reading every replica that is due, and forget those that are gone."""
        now = self._clock()
        present = self._present = {replica.pod_uid: replica for replica in replicas}
        for uid in self._readings.keys() - present.keys():
            del self._readings[uid]
        for uid in self._due.keys() - present.keys():
            del self._due[uid]
        for uid, replica in present.items():
            key = key_of(replica)
            if key is None or uid in self._asked or self._due.get(uid, 0.0) > now:
                continue
            self._asked[uid] = asyncio.create_task(self._ask(replica, key, on_news), name=f"figures {replica.ip}")

    async def close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        await self._client.aclose()

    async def _ask(self, replica: ReplicaAddress, key: ServiceKey, on_news: Callable[[ServiceKey], None]) -> None:
        try:
            async with self._places:
                read = await self._read(replica.ip, key)
        finally:
            del self._asked[replica.pod_uid]
        before, now = self._readings.get(replica.pod_uid, Reading()), self._clock()
        if isinstance(read, Figures):
            reading = Reading(read, read_at=now)
        else:
            reading = Reading(before.figures, read, before.failures + 1, before.read_at)
        self._on_read(isinstance(read, Figures))
        self._readings[replica.pod_uid] = reading
        self._due[replica.pod_uid] = now + self._pace.wait_after(reading, replica.ready)
        if (reading.figures, reading.fault) != (before.figures, before.fault):
            on_news(key)

    async def _read(self, ip: str, key: ServiceKey) -> Figures | str:
        """Return the figures, or in words why there are none."""
        try:
            async with asyncio.timeout(self._pace.timeout):
                return await self._page(replica_url(ip, PATH_STATE), key)
        except TimeoutError:
            return f"no answer within {self._pace.timeout:g} s"
        except httpx2.TimeoutException:
            return f"no answer within {self._pace.timeout:g} s"
        except (httpx2.HTTPError, OSError) as error:
            return f"not reached: {str(error) or type(error).__name__}"
        except NoStatePage as error:
            return str(error)

    async def _page(self, url: str, key: ServiceKey) -> Figures | str:
        async with self._client.stream("GET", url, headers=self._headers(key)) as answer:
            if answer.status_code != 200:
                return f"its state page answers {answer.status_code}"
            content = b""
            async for chunk in answer.aiter_bytes():
                content += chunk
                if len(content) > _MAX_PAGE_BYTES:
                    return f"its state page is longer than {_MAX_PAGE_BYTES} bytes"
        return figures_of(content)

    async def set_policy(self, ip: str, key: ServiceKey, policy: Mapping[str, int]) -> None:
        """Hand live settings over. Raises TemporaryFault, or RefusedFault where the replica refuses the values."""
        url = replica_url(ip, PATH_POLICY)
        try:
            async with asyncio.timeout(self._pace.timeout):
                answer = await self._client.post(url, headers=self._headers(key), json=dict(policy))
        except (TimeoutError, httpx2.HTTPError, OSError) as error:
            found = str(error) or type(error).__name__
            raise TemporaryFault("ReplicaUnreachable", f"live settings for {ip}: {found}") from error
        if answer.status_code == 400:
            raise RefusedFault("PolicyRefused", f"live settings for {ip}: {answer.text[:300]}")
        if answer.status_code != 200:
            raise TemporaryFault("ReplicaRefused", f"live settings for {ip}: status {answer.status_code}")
        self._note_policy(ip, policy)

    def _note_policy(self, ip: str, policy: Mapping[str, int]) -> None:
        """What was handed over is in force until the next read, which is soon, says otherwise."""
        for uid, replica in self._present.items():
            known = self._readings.get(uid)
            if replica.ip == ip and known is not None and known.figures is not None:
                in_force = {**known.figures.policy, **{to_snake(name): value for name, value in policy.items()}}
                self._readings[uid] = replace(known, figures=replace(known.figures, policy=in_force))
                self._due[uid] = min(self._due.get(uid, 0.0), self._clock() + self._pace.loading)

    def _headers(self, key: ServiceKey) -> dict[str, str]:
        return {"Authorization": f"Bearer {service_key(self._root_key, key.uid)}"}
