"""From a model's URI to something on this machine: a Hugging Face directory or a GGUF file."""

import os
from pathlib import Path

from pagefleet_contract.engine import ModelSettings
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.hub import download_snapshot
from pagefleet_runtime.models.packages import locate_in_package
from pagefleet_runtime.models.paths import ModelSource, examine_path, local_path
from pagefleet_runtime.models.s3 import Progress, download_prefix
from pagefleet_runtime.models.s3_client import S3Access


def resolve_source(settings: ModelSettings, cache: Path, progress: Progress) -> ModelSource:
    """Return what the URI names, downloaded or joined into `cache` where needed; a download tells `progress` how far
    it is. Raises ModelRefused."""
    path = local_path(settings.uri)
    if path is not None:
        return examine_path(path, settings.uri)
    scheme, _, rest = settings.uri.partition("://")
    match scheme:
        case "package":
            return examine_path(locate_in_package(rest, cache), settings.uri)
        case "hf":
            return examine_path(download_snapshot(rest, settings.revision), settings.uri)
        case "s3":
            return examine_path(download_prefix(rest, cache, S3Access.of(os.environ), progress), settings.uri)
        case "pvc":
            raise ModelRefused(
                f"model.uri is {settings.uri!r}, which names a volume claim of a cluster: an InferenceService may have "
                "it, and its pods see a folder. Outside of one give the folder's path"
            )
    raise ModelRefused(
        f"model.uri is {settings.uri!r}; the runtime reads hf://OWNER/NAME, s3://BUCKET/PREFIX, file://PATH, "
        "package://DISTRIBUTION[/PATH], simulated://NAME and plain paths"
    )
