"""What one spec makes of the engine: its settings, its pod template, and the hashes by which pods of it are known."""

from dataclasses import dataclass

from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.names import ANNOTATION_IMAGE, ANNOTATION_SPEC_HASH
from pagefleet_contract.service_settings import service_settings
from pagefleet_contract.settings import Images, OperatorSettings
from pagefleet_operator.manifests.config import engine_config_map, live_config_map
from pagefleet_operator.manifests.engine_pod import EnginePod, default_image, engine_template, template_hash
from pagefleet_operator.manifests.metadata import Manifest, Owner, content_hash
from pagefleet_operator.observed import Manifest as LiveManifest
from pagefleet_operator.observed import Pod

# What a node says where it can't get an image.
IMAGE_TROUBLES = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")


@dataclass(frozen=True, slots=True)
class Generation:
    """`template_hash` stands on the pods; `spec_hash` is the same without what the operator itself brings."""

    config: EngineConfig
    config_map: Manifest
    live_config_map: Manifest
    template: Manifest
    template_hash: str
    spec_hash: str
    image: str
    notes: tuple[str, ...]


def generation_of(
    owner: Owner,
    spec: InferenceServiceSpec,
    settings: OperatorSettings,
    operator_key: str,
    live_deployment: LiveManifest | None,
    pods: tuple[Pod, ...],
) -> Generation:
    """Return what the spec makes of the engine. `pods` are the engine's; with the live Deployment they say which image
    is in force."""
    resolved = service_settings(owner.name, spec)
    config_map = engine_config_map(owner, resolved.config, operator_key)
    live = live_config_map(owner, resolved.config)
    names = config_map["metadata"]["name"], live["metadata"]["name"]
    bare = engine_template(EnginePod(owner, spec, *names, image="", images=Images(pull_secrets=[])))
    spec_hash = content_hash([bare, spec.image])
    image, notes = _image(spec, settings, spec_hash, live_deployment, pods)
    template = engine_template(EnginePod(owner, spec, *names, image, settings.images))
    return Generation(
        config=resolved.config,
        config_map=config_map,
        live_config_map=live,
        template=template,
        template_hash=template_hash(template),
        spec_hash=spec_hash,
        image=image,
        notes=resolved.notes + notes,
    )


def _image(
    spec: InferenceServiceSpec,
    settings: OperatorSettings,
    spec_hash: str,
    live_deployment: LiveManifest | None,
    pods: tuple[Pod, ...],
) -> tuple[str, tuple[str, ...]]:
    """Return the image in force and what is to be said about it.

    An operator with another default rolls nothing: what runs keeps its image until its spec asks for another pod. An
    image that can't be pulled runs nothing and isn't kept.
    """
    if spec.image is not None:
        return spec.image, ()
    default = default_image(spec, settings.images)
    annotations = ((live_deployment or {}).get("metadata") or {}).get("annotations") or {}
    kept = annotations.get(ANNOTATION_IMAGE)
    if not kept or kept == default or annotations.get(ANNOTATION_SPEC_HASH) != spec_hash or not _any_runs(pods):
        return default, ()
    return kept, (f"the operator's image is {default}; the replicas keep {kept} until the spec asks for a roll",)


def _any_runs(pods: tuple[Pod, ...]) -> bool:
    return any(pod.trouble is None or pod.trouble.reason not in IMAGE_TROUBLES for pod in pods)
