"""Models of the hub, through its own client; what it reports is told in our words."""

import os
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pagefleet_contract.names import ENV_HUB_TOKEN
from pagefleet_runtime.errors import ModelRefused

# Weights only as safetensors; pickle files are not even downloaded.
_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]


def download_snapshot(repository: str, revision: str | None, api: HfApi | None = None) -> Path:
    """Return the folder of OWNER/NAME at `revision`, from the hub client's own cache where it is there already.

    Raises ModelRefused.
    """
    token = os.environ.get(ENV_HUB_TOKEN) or None
    hub = api or HfApi(token=token)
    at = f"hf://{repository}" + (f" at revision {revision}" if revision else "")
    try:
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=_PATTERNS))
    except HFValidationError as error:
        raise ModelRefused(f"{at}: {error}; write hf://OWNER/NAME") from error
    except GatedRepoError as error:
        raise ModelRefused(
            f"{at} is gated: accept its terms on the hub's page of the model, and set {ENV_HUB_TOKEN} to a token of "
            "that account"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelRefused(f"{at}: the model has no such branch, tag or commit; check model.revision") from error
    except RepositoryNotFoundError as error:
        hint = "the token in use may not read it" if token else f"if it is private, set {ENV_HUB_TOKEN}"
        raise ModelRefused(f"{at} isn't on the hub; check the name; {hint}") from error
    except HfHubHTTPError as error:
        raise ModelRefused(f"{at}: the hub answered {error.response.status_code}: {error}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise ModelRefused(
            f"{at}: the hub can't be reached and the model isn't in the local cache; check the network, or download "
            "the model elsewhere and serve the directory"
        ) from error
