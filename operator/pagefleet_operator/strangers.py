"""Objects that bear the names of children to be made: whether they are ours, and what waits where one isn't. Pure."""

from collections.abc import Collection, Set

from pagefleet_operator.actions import Action, Apply, Delete
from pagefleet_operator.children import Children, Key, key_of
from pagefleet_operator.faults import NameTakenFault, TemporaryFault
from pagefleet_operator.observed import Manifest

_DEPLOYMENT, _CONFIG_MAP = "Deployment", "ConfigMap"


def unmade(actions: tuple[Action, ...], live: Children) -> tuple[Manifest, ...]:
    """Return the children that a plan makes anew: an apply would take over whatever bears their names."""
    manifests = [action.manifest for action in actions if isinstance(action, Apply)]
    return tuple(manifest for manifest in manifests if key_of(manifest) not in live)


def check_owner(found: Manifest, owner: str | None, own: str, other_service: str | None) -> None:
    """Return if the object is the service's, and raise NameTakenFault or TemporaryFault if it isn't.

    `owner` is the uid of the InferenceService that controls the object, `own` the service's; `other_service` is the
    name of the one with `owner`, None where that is gone.
    """
    if owner == own:
        return
    what = f"{found.get('kind')} {found['metadata']['name']}"
    if owner is None:
        raise NameTakenFault(f"{what} is there and isn't ours; delete it, or give the service another name")
    if other_service is None:
        message = f"{what} belongs to an InferenceService that was deleted; it is going"
        raise TemporaryFault("NameStillTaken", message)
    # Names that are cut can be met by another service's whole one.
    raise NameTakenFault(f"{what} belongs to the InferenceService {other_service}; give this service another name")


def in_one(taken: Collection[NameTakenFault]) -> tuple[NameTakenFault, ...]:
    """Return one fault for all of them, if there are any: who has to delete objects wants to know which at once."""
    return (NameTakenFault("; ".join(fault.message for fault in taken)),) if taken else ()


def not_held_back(actions: tuple[Action, ...], taken: Set[Key], live: Children) -> tuple[Action, ...]:
    """Return what is done although somebody else has the names `taken`.

    Of a service that has no Deployment yet nothing is made: it would stand there half built. One that is there is
    looked after, but no Deployment is changed whose pods would read somebody else's ConfigMap, and nothing is deleted.
    """
    if not taken:
        return actions
    if not any(kind == _DEPLOYMENT for kind, _ in live):
        return ()
    held = {_DEPLOYMENT} if any(kind == _CONFIG_MAP for kind, _ in taken) else set()
    return tuple(action for action in actions if not _waits(action, taken, held))


def _waits(action: Action, taken: Set[Key], held_kinds: Set[str]) -> bool:
    match action:
        case Apply(manifest):
            return key_of(manifest) in taken or manifest["kind"] in held_kinds
        case Delete():
            return True
        case _:
            return False
