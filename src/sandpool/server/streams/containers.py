"""Selects the container of a pod for exec, attach and logs."""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import SharedObject
from sandpool.kube.errors import BadRequest

_DEFAULT: Final = "kubectl.kubernetes.io/default-container"
_KINDS: Final = ("initContainers", "containers", "ephemeralContainers")


def select_container(pod: SharedObject, wanted: str) -> str:
    """The requested container, or the default. Raises ``BadRequest`` for an unknown one or an ambiguous default."""
    spec = pod["spec"]
    name = pod["metadata"]["name"]
    if wanted:
        if wanted not in (container["name"] for kind in _KINDS for container in spec.get(kind) or ()):
            raise BadRequest(f"container {wanted} is not valid for pod {name}")
        return wanted
    main = [container["name"] for container in spec["containers"]]
    default: str = (pod["metadata"].get("annotations") or {}).get(_DEFAULT) or ""
    if default in main:
        return default
    if len(main) > 1:
        choices = " ".join(main)
        raise BadRequest(f"a container name must be specified for pod {name}, choose one of: [{choices}]")
    only: str = main[0]
    return only
