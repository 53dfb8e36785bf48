"""How much a container can write to what it has in memory."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.labels import IN_MEMORY, ROOT_MEDIUM
from sandpool.api.resource import Object
from sandpool.node.pods.memory_files import root_size, volume_size
from sandpool.testing.objects import pod

MIB = 1 << 20


def container(memory: str | None = None, *mounted: str, disk: str | None = None, **fields: Any) -> Object:
    amounts = {"memory": memory, "ephemeral-storage": disk}
    return {
        "name": "main",
        "resources": {"limits": {name: amount for name, amount in amounts.items() if amount is not None}},
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in mounted],
        **fields,
    }


def pod_of(*containers: Object, in_memory: bool = False, init: Object | None = None, **volumes: str | None) -> Object:
    """A pod with volumes in memory of these sizes."""
    sources = {
        name: {"medium": "Memory", **({} if size is None else {"sizeLimit": size})} for name, size in volumes.items()
    }
    spec: Object = {
        "containers": list(containers),
        "volumes": [{"name": name, "emptyDir": source} for name, source in sources.items()],
    }
    if init is not None:
        spec["initContainers"] = [init]
    return pod("p", spec=spec, metadata={"annotations": {ROOT_MEDIUM: IN_MEMORY}} if in_memory else {})


def root_of(main: Object) -> int:
    return root_size(pod_of(main, in_memory=True), main) // MIB


@pytest.mark.parametrize(
    ("memory", "size"),
    [(None, 256), ("4Gi", 256), ("256Mi", 192), ("128Mi", 96), ("96Mi", 64), ("64Mi", 32), ("32Mi", 16), ("0", 256)],
)
def test_root_leaves_a_quarter_of_the_limit_to_programs_and_at_least_32_mib(memory: str | None, size: int) -> None:
    assert root_of(container(memory)) == size


def test_ephemeral_storage_is_the_size_of_the_root_within_the_memory_limit() -> None:
    assert root_of(container("128Mi", disk="64Mi")) == 64
    assert root_of(container("128Mi", disk="1Gi")) == 96
    assert root_of(container(disk="1Gi")) == 1024


def test_volume_has_its_size_limit_within_the_memory_limit() -> None:
    def volume(main: Object, size: str | None) -> int:
        return volume_size(pod_of(main, v=size), "v", has_disks=True) // MIB

    assert volume(container("1Gi", "v"), None) == 64
    assert volume(container("1Gi", "v"), "512Mi") == 512
    assert volume(container("128Mi", "v"), "1Gi") == 96
    assert volume(container(None, "v"), "1Gi") == 1024


def test_root_and_volumes_share_the_limit() -> None:
    main = container("128Mi", "a", "b")
    one = pod_of(main, in_memory=True, a="16Mi", b="1Gi")
    sizes = [root_size(one, main), *(volume_size(one, name, has_disks=True) for name in "ab")]
    assert [size // MIB for size in sizes] == [40, 16, 40], "what a small one does not need goes to the others"
    assert sum(sizes) == 96 * MIB


@pytest.mark.parametrize(
    ("main", "in_memory", "has_disks", "size"),
    [
        (container("128Mi", "v"), False, True, 96),
        (container("128Mi", "v"), False, False, 48),
        (container("128Mi", "v"), True, True, 48),
        (container("128Mi", "v", securityContext={"readOnlyRootFilesystem": True}), True, False, 96),
    ],
)
def test_volume_shares_the_limit_with_a_root_only_if_that_is_in_memory(
    main: Object, in_memory: bool, has_disks: bool, size: int
) -> None:
    one = pod_of(main, in_memory=in_memory, v="1Gi")
    assert volume_size(one, "v", has_disks=has_disks) == size * MIB


def test_first_container_that_mounts_a_volume_bounds_it() -> None:
    """Sidecars and init containers often have lower limits, and the server of a sandbox runs in the first container."""
    init, sidecar = container("32Mi", "v"), container("32Mi", "v")
    one = pod_of(container("128Mi"), container("1Gi", "v"), sidecar, init=init, v="512Mi")
    assert volume_size(one, "v", has_disks=True) == 512 * MIB
    assert volume_size(pod_of(container(), init=init, v="512Mi"), "v", has_disks=True) == 16 * MIB
    assert volume_size(pod_of(container("32Mi"), v="512Mi"), "v", has_disks=True) == 512 * MIB, "mounted by none"


def test_no_file_system_is_without_a_limit() -> None:
    """A tmpfs of size 0 would be."""
    assert root_size(pod_of(container("1"), in_memory=True), container("1")) == 4096
