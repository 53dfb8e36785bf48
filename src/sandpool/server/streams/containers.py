"""Which container of a pod is meant."""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import Object
from sandpool.kube.errors import BadRequest

_DEFAULT: Final = "kubectl.kubernetes.io/default-container"
_KINDS: Final = ("initContainers", "containers", "ephemeralContainers")


def select_container(pod: Object, wanted: str) -> str:
    """The one that is wanted, or the one there is. Raises ``BadRequest`` if it is none, or if there are several."""
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
