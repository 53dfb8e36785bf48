"""User and group of a container's processes, from the pod's security context and the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandpool.api.resource import Object, SharedObject
from sandpool.node.pods.environment import ConfigError

# The default. Inside a sandbox root owns its files and has no other privilege.
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class Identity:
    uid: int
    gid: int


def identity(pod_security: Object, container_security: Object, image_user: str) -> Identity:
    """The container's security context takes precedence over the pod's, and that over the image. Raises ``ConfigError``
    if ``runAsNonRoot`` is violated."""
    uid, gid = _asked(pod_security, container_security, "runAsUser"), None
    if uid is None and image_user:
        uid, gid = _of_image(image_user)
    gid = _asked(pod_security, container_security, "runAsGroup") if gid is None else gid
    if _asked(pod_security, container_security, "runAsNonRoot"):
        _check_not_root(pod_security, container_security, uid)
    uid = _ROOT if uid is None else uid
    return Identity(uid, uid if gid is None else gid)


def _asked(pod: SharedObject, container: Object, field: str) -> int | None:
    found: int | None = container.get(field)
    return pod.get(field) if found is None else found


def _of_image(user: str) -> tuple[int | None, int | None]:
    """Parse the image's user. Names that the image's own files resolve are numbers by now."""
    name, _, group = user.partition(":")
    uid = _ROOT if name == "root" else int(name) if name.isdecimal() else None
    if uid is None:
        raise ConfigError(f"the user of the image ({user}) is a name its files do not know: set runAsUser")
    return uid, int(group) if group.isdecimal() else None


def _check_not_root(pod: SharedObject, container: Object, uid: int | None) -> None:
    if _asked(pod, container, "runAsUser") == _ROOT:
        raise ConfigError("container's runAsUser breaks non-root policy")
    if uid in (None, _ROOT):
        raise ConfigError("container has runAsNonRoot and image will run as root")
