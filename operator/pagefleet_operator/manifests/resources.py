"""What an engine container asks for: the accelerator, and what the user says beside it."""

from pagefleet_contract.inferenceservice import CPU, InferenceServiceSpec
from pagefleet_contract.known_models import is_simulated
from pagefleet_operator.manifests.metadata import Manifest

# A simulated replica computes nothing: many of them share a core.
_SIMULATED_REQUESTS = {"cpu": "50m", "memory": "128Mi"}


def engine_resources(spec: InferenceServiceSpec) -> Manifest:
    """Return requests and limits. What `podTemplate.resources` says wins, but for the accelerator."""
    requests = dict(_SIMULATED_REQUESTS) if is_simulated(spec.model.uri) else {}
    limits: dict[str, str] = {}
    accelerator, memory = spec.accelerator, spec.accelerator.memory
    if accelerator.resource != CPU:
        limits[accelerator.resource] = str(accelerator.count)
    else:
        requests.setdefault("cpu", str(accelerator.count))
        if memory is not None:
            requests.setdefault("memory", memory)
            limits["memory"] = memory
    asked = spec.pod_template.resources
    requests |= asked.requests
    limits |= asked.limits
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}
