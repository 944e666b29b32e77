"""Which replica goes when there shall be fewer: the least busy one, by its deletion cost."""

from itertools import pairwise

from pagefleet_contract.names import ANNOTATION_DELETION_COST
from pagefleet_operator.actions import AnnotatePod
from pagefleet_operator.observed import Pod


def deletion_costs(pods: tuple[Pod, ...], live_replicas: int, replicas: int) -> tuple[AnnotatePod, ...]:
    """Return what to write on the engine's pods before the Deployment goes from `live_replicas` to `replicas`.

    Nothing where that takes all of them or none, or where what stands there leads to the same choice.
    """
    if not 0 < replicas < live_replicas:
        return ()
    costs = _costs(pods)
    if _agree(pods, costs):
        return ()
    reason = f"replicas go from {live_replicas} to {replicas}, and the least busy go first"
    return tuple(
        AnnotatePod(pod.name, pod.uid, {ANNOTATION_DELETION_COST: str(costs[pod.uid])}, reason)
        for pod in pods
        if (pod.deletion_cost or 0) != costs[pod.uid]  # absent counts as 0
    )


def _costs(pods: tuple[Pod, ...]) -> dict[str, int]:
    """Return the requests in flight; of a pod that wasn't read, more than any other has."""
    read = {pod.uid: pod.figures.in_flight for pod in pods if pod.figures is not None}
    unread = max(read.values(), default=0) + 1
    return {pod.uid: read.get(pod.uid, unread) for pod in pods}


def _agree(pods: tuple[Pod, ...], costs: dict[str, int]) -> bool:
    """Return whether the costs that are there put every less busy pod before every busier one."""
    there = {pod.uid: pod.deletion_cost or 0 for pod in pods}
    ordered = sorted(pods, key=lambda pod: (costs[pod.uid], there[pod.uid]))
    return all(
        costs[one.uid] == costs[other.uid] or there[one.uid] < there[other.uid] for one, other in pairwise(ordered)
    )
