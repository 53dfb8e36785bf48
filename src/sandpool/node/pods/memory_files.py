"""Sizes of the file systems that a pod has in memory: roots of containers, and ``emptyDir`` volumes of medium Memory.

What a container writes there counts as its memory. If it could write more than its memory limit allows, the kernel
would kill its programs, and with them the server that receives an upload. So the file systems of a container together
are smaller than its limit, and writing more is "No space left on device". A quarter of the limit, at least 32 MiB, is
left for programs; of a limit below 64 MiB, half.

A volume is bounded for the first container that mounts it, which is where a sandbox has its server. The others may have
lower limits, as sidecars and init containers often do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sandpool.api.labels import IN_MEMORY, ROOT_MEDIUM
from sandpool.api.quantity import parse
from sandpool.api.resource import Object, SharedObject
from sandpool.node.runtimes.runtime import DEFAULT_SCRATCH

#: Size of a volume in memory that sets none.
_DEFAULT_VOLUME: Final = 64 << 20
_PROGRAMS: Final = 32 << 20
_PAGE: Final = 4096  # a tmpfs of size 0 has no limit
_ROOT: Final = ""  # no volume has this name


def wants_disk(pod: SharedObject, spec: Object) -> bool:
    """Whether a container's writes to its root go to disk. A root that the container cannot write to needs none."""
    annotations = pod["metadata"].get("annotations") or {}
    return not _has_read_only_root(spec) and annotations.get(ROOT_MEDIUM) != IN_MEMORY


def storage_limit(spec: Object) -> int | None:
    """Return the size of the container's writable root in bytes, or None if the pod sets none."""
    return _limit(spec, "ephemeral-storage")


def root_size(pod: SharedObject, spec: Object) -> int:
    """Return the size of a container's root that is in memory."""
    return _sizes(pod, spec, is_root_in_memory=True)[_ROOT]


def volume_size(pod: SharedObject, name: str, *, has_disks: bool) -> int:
    """Return the size of an ``emptyDir`` in memory. Without disks for roots, those are in memory too."""
    for container in _containers(pod):
        if any(mount["name"] == name for mount in container.get("volumeMounts") or ()):
            in_memory = not _has_read_only_root(container) and not (has_disks and wants_disk(pod, container))
            return _sizes(pod, container, is_root_in_memory=in_memory)[name]
    return _volumes(pod)[name]


def _sizes(pod: SharedObject, container: Object, *, is_root_in_memory: bool) -> Mapping[str, int]:
    """The sizes of everything that a container has in memory."""
    mounted = {mount["name"] for mount in container.get("volumeMounts") or ()}
    wanted = {name: size for name, size in _volumes(pod).items() if name in mounted}
    if is_root_in_memory:
        wanted[_ROOT] = storage_limit(container) or DEFAULT_SCRATCH
    limit = _limit(container, "memory")
    return wanted if not limit else _shares(wanted, max(limit // 2, limit - max(limit // 4, _PROGRAMS)))


def _shares(wanted: Mapping[str, int], budget: int) -> Mapping[str, int]:
    """Divide the budget into equal shares; what a small one does not need goes to the others."""
    shares = {}
    for left, name in zip(range(len(wanted), 0, -1), sorted(wanted, key=lambda name: wanted[name]), strict=True):
        shares[name] = max(min(wanted[name], budget // left), _PAGE)
        budget -= shares[name]
    return shares


def _volumes(pod: SharedObject) -> dict[str, int]:
    """The sizes that the volumes in memory ask for."""
    found = ((volume["name"], volume.get("emptyDir") or {}) for volume in pod["spec"].get("volumes") or ())
    return {name: _size(source) for name, source in found if source.get("medium") == "Memory"}


def _size(source: Object) -> int:
    limit = source.get("sizeLimit")
    return (0 if limit is None else -(-parse(str(limit)).billionths // 10**9)) or _DEFAULT_VOLUME


def _containers(pod: SharedObject) -> Iterator[Object]:
    yield from pod["spec"]["containers"]
    yield from pod["spec"].get("initContainers") or ()


def _has_read_only_root(spec: Object) -> bool:
    return bool((spec.get("securityContext") or {}).get("readOnlyRootFilesystem"))


def _limit(spec: Object, resource: str) -> int | None:
    amount = ((spec.get("resources") or {}).get("limits") or {}).get(resource)
    return None if amount is None else parse(amount).billionths // 10**9
