"""What the files of a volume hold, from its manifest and the objects that it names. Nothing is written here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pagefleet_local.node.environment import ConfigError, Place, Sources, pod_field, resource_field
from pagefleet_local.node.pods import Manifest, all_containers, volumes

DEFAULT_MODE = 0o644
WRITTEN_VOLUMES = ("configMap", "secret", "downwardAPI", "projected")
KNOWN_VOLUMES = (*WRITTEN_VOLUMES, "emptyDir", "persistentVolumeClaim")


@dataclass(frozen=True)
class File:
    data: bytes
    mode: int


@dataclass(frozen=True, order=True)
class Reference:
    """A ConfigMap or Secret that a pod names, in its own namespace."""

    kind: str
    name: str


@dataclass(frozen=True, order=True)
class TokenRequest:
    """A token that a volume asks for; a pod that asks twice for the same gets the same."""

    audience: str
    lifetime_seconds: int


def references(pod: Manifest) -> set[Reference]:
    """Return every ConfigMap and Secret that the pod's volumes and environments name."""
    found: set[Reference] = set()
    for volume in volumes(pod):
        found |= set(_volume_references(volume))
    for container in all_containers(pod):
        for entry in container.get("envFrom") or ():
            for key, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
                if key in entry:
                    found.add(Reference(kind, entry[key]["name"]))
        for entry in container.get("env") or ():
            for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
                if key in (entry.get("valueFrom") or {}):
                    found.add(Reference(kind, entry["valueFrom"][key]["name"]))
    return found


def _volume_references(volume: Manifest) -> Iterator[Reference]:
    if "configMap" in volume:
        yield Reference("configmaps", volume["configMap"]["name"])
    if "secret" in volume:
        yield Reference("secrets", volume["secret"]["secretName"])
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "configMap" in source:
            yield Reference("configmaps", source["configMap"]["name"])
        if "secret" in source:
            yield Reference("secrets", source["secret"]["name"])


def token_requests(pod: Manifest) -> set[TokenRequest]:
    return {
        _token_request(source["serviceAccountToken"])
        for volume in volumes(pod)
        for source in (volume.get("projected") or {}).get("sources") or ()
        if "serviceAccountToken" in source
    }


def _token_request(source: Manifest) -> TokenRequest:
    return TokenRequest(source.get("audience") or "", int(source.get("expirationSeconds") or 3600))


def volume_files(
    volume: Manifest, pod: Manifest, place: Place, sources: Sources, tokens: Mapping[TokenRequest, bytes]
) -> dict[str, File]:
    """Return the files of a volume of one of WRITTEN_VOLUMES, by path. Raises ConfigError where an object lacks."""
    if "configMap" in volume:
        source = volume["configMap"]
        return _object_files("configmap", source["name"], source, sources.config_maps, _mode(source))
    if "secret" in volume:
        source = volume["secret"]
        return _object_files("secret", source["secretName"], source, sources.secrets, _mode(source))
    if "downwardAPI" in volume:
        return _downward_files(volume["downwardAPI"], pod, place, sources, _mode(volume["downwardAPI"]))
    files: dict[str, File] = {}
    mode = _mode(volume["projected"])
    for source in volume["projected"].get("sources") or ():
        files |= _projected_files(source, pod, place, sources, tokens, mode)
    return files


def _projected_files(
    source: Manifest,
    pod: Manifest,
    place: Place,
    sources: Sources,
    tokens: Mapping[TokenRequest, bytes],
    mode: int,
) -> dict[str, File]:
    if "configMap" in source:
        each = source["configMap"]
        return _object_files("configmap", each["name"], each, sources.config_maps, mode)
    if "secret" in source:
        each = source["secret"]
        return _object_files("secret", each["name"], each, sources.secrets, mode)
    if "downwardAPI" in source:
        return _downward_files(source["downwardAPI"], pod, place, sources, mode)
    if "serviceAccountToken" in source:
        each = source["serviceAccountToken"]
        return {each["path"]: File(tokens[_token_request(each)], 0o600)}
    raise ConfigError(
        f"a projected volume names {sorted(source)}; "
        "this node knows configMap, secret, downwardAPI and serviceAccountToken"
    )


def _mode(source: Manifest) -> int:
    mode = source.get("defaultMode")
    return DEFAULT_MODE if mode is None else int(mode)


def _object_files(
    kind: str, name: str, source: Manifest, found: Mapping[str, Mapping[str, bytes]], mode: int
) -> dict[str, File]:
    optional = bool(source.get("optional"))
    data = found.get(name)
    if data is None:
        if optional:
            return {}
        raise ConfigError(f'{kind} "{name}" not found')
    items = source.get("items")
    if not items:
        return {key: File(value, mode) for key, value in data.items()}
    files: dict[str, File] = {}
    for item in items:
        if item["key"] in data:
            files[item["path"]] = File(data[item["key"]], _item_mode(item, mode))
        elif not optional:
            raise ConfigError(f'{kind} "{name}" has no key {item["key"]!r}; it has {", ".join(sorted(data)) or "none"}')
    return files


def _item_mode(item: Manifest, mode: int) -> int:
    own = item.get("mode")
    return mode if own is None else int(own)


def _downward_files(source: Manifest, pod: Manifest, place: Place, sources: Sources, mode: int) -> dict[str, File]:
    files: dict[str, File] = {}
    for item in source.get("items") or ():
        if "fieldRef" in item:
            text = pod_field(item["fieldRef"]["fieldPath"], pod, place)
        else:
            reference = item["resourceFieldRef"]
            container = next(c for c in all_containers(pod) if c["name"] == reference.get("containerName"))
            text = resource_field(reference, container, sources.allocatable)
        files[item["path"]] = File(text.encode(), _item_mode(item, mode))
    return files
