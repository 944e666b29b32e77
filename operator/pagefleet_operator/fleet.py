"""A service's pods by what they are to it."""

from dataclasses import dataclass, replace

from pagefleet_contract.names import COMPONENT_ENGINE, COMPONENT_ROUTER
from pagefleet_operator.observed import Pod, Trouble


@dataclass(frozen=True, slots=True)
class Fleet:
    """`current` are the engine's pods of this generation, `older` those of another; neither leaves nor has finished.
    `leaving` are those of any generation that do, `older_leaving` those of another one among them."""

    current: tuple[Pod, ...]
    older: tuple[Pod, ...]
    leaving: tuple[Pod, ...]
    older_leaving: tuple[Pod, ...]
    finished: tuple[Pod, ...]
    routers: tuple[Pod, ...]

    @property
    def engines(self) -> tuple[Pod, ...]:
        return self.current + self.older

    @property
    def ready(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.engines if pod.ready)

    @property
    def current_ready(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.current if pod.ready)

    @property
    def router_is_ready(self) -> bool:
        return any(pod.ready for pod in self.routers)

    def of(self, *, engine: bool, router: bool) -> "Fleet":
        """Return the pods of these Deployments."""
        routers = self.routers if router else ()
        return replace(self, routers=routers) if engine else Fleet((), (), (), (), (), routers)


def fleet_of(pods: tuple[Pod, ...], template_hash: str | None) -> Fleet:
    """Return the pods sorted; each group by age, so that what is said about the first of one stays the same."""
    ordered = sorted(pods, key=lambda pod: (pod.created_seconds, pod.name))
    engines = [pod for pod in ordered if pod.component == COMPONENT_ENGINE]
    there = [pod for pod in engines if not pod.deleting and not pod.finished]
    leaving = tuple(pod for pod in engines if pod.deleting)
    return Fleet(
        current=tuple(pod for pod in there if pod.template_hash == template_hash),
        older=tuple(pod for pod in there if pod.template_hash != template_hash),
        leaving=leaving,
        older_leaving=tuple(pod for pod in leaving if pod.template_hash != template_hash),
        finished=tuple(pod for pod in engines if pod.finished and not pod.deleting),
        routers=tuple(
            pod for pod in ordered if pod.component == COMPONENT_ROUTER and not pod.deleting and not pod.finished
        ),
    )


def first_trouble(pods: tuple[Pod, ...]) -> Trouble | None:
    """Return the trouble of the oldest pod that has one and isn't ready, with the pod's name in its message."""
    for pod in pods:
        if pod.trouble is not None and not pod.ready:
            return Trouble(pod.trouble.reason, f"{pod.name}: {pod.trouble.message or pod.trouble.reason}")
    return None
