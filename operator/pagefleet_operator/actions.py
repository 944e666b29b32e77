"""What a plan consists of. Every action carries its reason in words, which the log, the event and the status show."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child."""

    manifest: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of a child by name, only if it still has this uid."""

    api_version: str
    kind: str
    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """Merge these annotations into a pod, only if it still has this uid. None removes one."""

    name: str
    uid: str
    annotations: Mapping[str, str | None]
    reason: str


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Hand live settings to a running replica."""

    pod: str
    ip: str
    policy: Mapping[str, int]  # camelCase, as the body has it
    reason: str


Action = Apply | Delete | AnnotatePod | SetPolicy


@dataclass(frozen=True, slots=True)
class Announcement:
    """An event on the resource."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order. `status` is the whole status to write, or None where what is there is right.
    `again_in_seconds` is when to look again even if nothing happens; None where only an event can change anything."""

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] | None = None
    announcements: tuple[Announcement, ...] = ()
    again_in_seconds: float | None = None
