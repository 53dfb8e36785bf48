"""Pools whose idle sandboxes run an earlier build of an image.

A pool follows its template, and the template names an image. When another image gets that name, the template stays the
same, and so do the idle sandboxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sandpool.api.kinds import POD
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.resource import Key, SharedObject
from sandpool.service.service import Service


class OutdatedPool(NamedTuple):
    namespace: str
    name: str
    sandboxes: int  # idle ones that run an earlier build


async def outdated_pools(service: Service, is_image: Callable[[str], bool], image_id: str) -> tuple[OutdatedPool, ...]:
    """Return the pools of all namespaces with idle sandboxes of another build. ``is_image`` tells whether a container's
    ``image`` is the name that now belongs to ``image_id``."""
    listed = await service.client.list(POD, None, label_selector=SANDBOX_NAME_HASH)
    outdated = {_key(pod) for pod in listed["items"] if _runs_another(pod, is_image, image_id)}
    if not outdated:
        return ()
    members = await service.sandboxes.list(all_namespaces=True)
    counts = Counter(
        Key(each.namespace, each.pool) for each in members if each.pool and Key(each.namespace, each.pod) in outdated
    )
    return tuple(OutdatedPool(*pool, count) for pool, count in sorted(counts.items()))


def _key(pod: SharedObject) -> Key:
    return Key(pod["metadata"]["namespace"], pod["metadata"]["name"])


def _runs_another(pod: SharedObject, is_image: Callable[[str], bool], image_id: str) -> bool:
    status: Mapping[str, SharedObject] = {
        each["name"]: each for each in (pod.get("status") or {}).get("containerStatuses") or ()
    }
    for container in (pod.get("spec") or {}).get("containers") or ():
        running = (status.get(container["name"]) or {}).get("imageID")
        if running and running != image_id and is_image(container.get("image") or ""):
            return True
    return False
