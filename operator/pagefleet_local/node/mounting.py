"""Makes a pod's volumes: asks for what they hold, writes it, and writes it again when it changes."""

import asyncio
import json
import time
from pathlib import Path

from pagefleet_contract.names import MOUNT_CACHE
from pagefleet_local.node.api import TROUBLE, ApiError
from pagefleet_local.node.environment import ConfigError
from pagefleet_local.node.folders import link_folder, write_files
from pagefleet_local.node.pod_state import PodState
from pagefleet_local.node.pods import TOKEN_MOUNT, Manifest, all_containers, namespace_of, volumes
from pagefleet_local.node.tokens import Token, kubeconfig, request_token
from pagefleet_local.node.volumes import WRITTEN_VOLUMES, TokenRequest, references, token_requests, volume_files

_KNOWN_SECONDS = 10.0
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 10.0


class PodVolumes:
    def __init__(self, state: PodState) -> None:
        self._state = state
        self._tokens: dict[TokenRequest, Token] = {}

    async def prepare(self) -> None:
        """Make all volumes, however long what they name is missing; an event says what is waited for."""
        retry = _FIRST_RETRY_SECONDS
        while True:
            self._state.woken.clear()
            try:
                await self.write()
                return
            except (ConfigError, *TROUBLE) as error:
                await self._state.post("FailedMount", str(error), warning=True)
            await self._woken_within(retry)
            retry = min(retry * 2, _LONGEST_RETRY_SECONDS)

    async def keep_up(self) -> None:
        """Follow changes of what the volumes hold, and renew tokens."""
        while True:
            retry: float | None = None
            self._state.woken.clear()
            try:
                await self.write()
            except (ConfigError, *TROUBLE) as error:
                # What stands in the folders stays, as on every node.
                await self._state.post("FailedMount", str(error), warning=True)
                retry = _LONGEST_RETRY_SECONDS
            waits = [max(token.renew_at - time.time(), 0) for token in self._tokens.values()]
            await self._woken_within(min([*waits, retry] if retry else waits, default=None))

    async def write(self) -> None:
        """Make all volumes hold what they should now. Raises ConfigError where what they name is missing."""
        state, pod = self._state, self._state.pod
        await self._known()
        await self._renew_tokens()
        tokens = {asked: token.value for asked, token in self._tokens.items()}
        for volume in volumes(pod):
            folder = state.folder.volumes / volume["name"]
            if any(kind in volume for kind in WRITTEN_VOLUMES):
                try:
                    write_files(folder, volume_files(volume, pod, state.place, state.sources(), tokens))
                except ConfigError as error:
                    raise ConfigError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error
            elif "persistentVolumeClaim" in volume:
                if not folder.is_symlink():
                    link_folder(folder, await self._claimed_folder(volume))
            elif state.tools.cache and volume["name"] in self._mounted_at(MOUNT_CACHE):
                link_folder(folder, state.tools.cache)
            else:
                folder.mkdir(parents=True, exist_ok=True)
        self._write_kubeconfig()

    async def _known(self) -> None:
        named = references(self._state.pod)
        try:
            async with asyncio.timeout(_KNOWN_SECONDS):
                await self._state.tools.objects.known(namespace_of(self._state.pod), named)
        except TimeoutError as error:
            listed = ", ".join(f"{each.kind}/{each.name}" for each in sorted(named))
            raise ConfigError(f"the API server has not yet shown this node all of {listed}") from error

    async def _renew_tokens(self) -> None:
        now = time.time()
        for asked in token_requests(self._state.pod):
            token = self._tokens.get(asked)
            if token is None or token.renew_at <= now:
                self._tokens[asked] = await request_token(self._state.tools.api, self._state.pod, asked, now)

    async def _claimed_folder(self, volume: Manifest) -> Path:
        """Return the folder of this machine that the volume's claim is bound to."""
        name, api = volume["persistentVolumeClaim"]["claimName"], self._state.tools.api
        where = f'volume "{volume["name"]}"'
        try:
            path = f"/api/v1/namespaces/{namespace_of(self._state.pod)}/persistentvolumeclaims/{name}"
            claim = await api.request("GET", path)
        except ApiError as error:
            raise ConfigError(f'{where}: persistentvolumeclaim "{name}": {error.message}') from error
        bound = claim["spec"].get("volumeName")
        if not bound:
            raise ConfigError(f'{where}: persistentvolumeclaim "{name}" is not bound to a volume yet')
        spec = (await api.request("GET", f"/api/v1/persistentvolumes/{bound}"))["spec"]
        source = spec.get("hostPath") or spec.get("local")
        if not source:
            raise ConfigError(
                f'{where}: persistentvolume "{bound}" is no hostPath or local one; this node has no other'
            )
        return _folder_of(source, f'{where}: persistentvolume "{bound}"')

    def _write_kubeconfig(self) -> None:
        state = self._state
        for name in self._mounted_at(TOKEN_MOUNT):
            folder = str(state.folder.volumes / name)
            server = state.tools.api.credentials.server
            text = json.dumps(kubeconfig(server, namespace_of(state.pod), folder))
            if not state.folder.kubeconfig.exists() or state.folder.kubeconfig.read_text() != text:
                new = state.folder.path / "kubeconfig.new"
                new.write_text(text)
                new.replace(state.folder.kubeconfig)

    def _mounted_at(self, path: str) -> set[str]:
        """Return the names of the volumes that some container has at that path."""
        mounts = [m for c in all_containers(self._state.pod) for m in c.get("volumeMounts") or ()]
        return {mount["name"] for mount in mounts if mount["mountPath"].rstrip("/") == path}

    async def _woken_within(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._state.woken.wait()
        except TimeoutError:
            return


def _folder_of(source: Manifest, where: str) -> Path:
    path = Path(source["path"])
    if source.get("type") == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if not path.is_dir():
        raise ConfigError(f"{where}: {path} is no folder of this machine; make it, or name another")
    return path
