"""How the threads that torch and our kernels share wait and where they run. OpenMP reads it when torch is imported."""

from collections.abc import MutableMapping

# How long a thread spins before it sleeps. With libgomp's own choice a step on two cores takes four to ten times as
# long as soon as other processes want them.
_SPINNING = ("GOMP_SPINCOUNT", "1000")

# With any of these libgomp binds the first thread to one core at once. All that is started from it, other ranks too,
# would count and get that core alone; and two replicas on a machine would bind to the same cores.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def settle_threads(environment: MutableMapping[str, str]) -> tuple[str, ...]:
    """Set in `environment` what it leaves open. Return a sentence for each setting that was taken out of it."""
    environment.setdefault(*_SPINNING)
    refused = [(name, environment.pop(name)) for name in _BINDING if name in environment]
    return tuple(
        f"{name}={value} is not followed: bound threads would share one core with all that they start; "
        "give the process cores of its own with a cpuset (taskset, the kubelet's static CPU manager) instead"
        for name, value in refused
    )
