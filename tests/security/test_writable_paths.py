"""Every path that a sandbox can write to has a size.

The paths are enumerated from inside a sandbox of a real node, one for each mount that is not read-only. So a new kind
of mount is covered as soon as a pod has one, without being listed here.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from sandpool.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM
from sandpool.testing.objects import new
from tests.support.real_node import RealNode, real_node

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]

#: What no single path may exceed here. Every size that the pod below has is smaller.
BOUND: Final = 256 << 20
SIZE: Final = 32 << 20

FILL: Final = """
import errno, os, stat, sys

BOUND = int(sys.argv[1])
KERNEL = ("proc", "sysfs", "devpts", "cgroup", "cgroup2", "mqueue")  # they keep no data


def mount_points():
    for line in open("/proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        if rest.split()[0] not in KERNEL:
            yield fields.split()[4].encode().decode("unicode_escape")


def writable(point):
    "A file of this mount that can be written to, made if need be; None if there is none."
    try:
        if os.statvfs(point).f_flag & os.ST_RDONLY:
            return None
    except OSError:
        return None
    if not os.path.isdir(point):
        return point if stat.S_ISREG(os.stat(point).st_mode) and os.access(point, os.W_OK) else None
    device, files = os.stat(point).st_dev, []
    for directory, names, found in os.walk(point):
        names[:] = [name for name in names if os.lstat(f"{directory}/{name}").st_dev == device]
        if os.access(directory, os.W_OK | os.X_OK):
            return f"{directory}/filler"
        files += [path for path in (f"{directory}/{name}" for name in found)
                  if os.lstat(path).st_dev == device and stat.S_ISREG(os.lstat(path).st_mode)
                  and os.access(path, os.W_OK)]
    return files[0] if files else None


def fill(path):
    existed, written = os.path.exists(path), 0
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
    except OSError as error:
        if error.errno == errno.EROFS:  # gVisor does not show that the mount is read-only
            return None
        raise
    try:
        while written < BOUND:
            written += os.write(file, bytes(1 << 16))
        ended = "UNBOUNDED"
    except OSError as error:
        ended = errno.errorcode[error.errno]
    os.ftruncate(file, 0)
    os.close(file)
    if not existed:
        os.unlink(path)
    return ended


# gVisor shows volumes as directories of its root and not as mounts, so their paths are arguments.
for point in dict.fromkeys([*mount_points(), *sys.argv[2:]]):
    path = writable(point)
    ended = None if path is None else fill(path)
    if ended is not None:
        print(point, ended, flush=True)
print("done", flush=True)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealNode]:
    async with real_node(tmp_path_factory.mktemp("node"), volume_size=SIZE, root_size=SIZE) as running:
        if "SandboxVolumesNotLimited" in running.node.runtimes.weaknesses:
            pytest.skip("file systems of a fixed size cannot be mounted here")
        await running.client.create(CONFIG_MAP, new(CONFIG_MAP, "config", data={"key": "value"}), "default")
        yield running


def volumes(claim: str) -> dict[str, object]:
    """One volume of each kind."""
    return {
        "empty": {"emptyDir": {}},
        "sized": {"emptyDir": {"sizeLimit": "16Mi"}},
        "memory": {"emptyDir": {"medium": "Memory"}},
        "claimed": {"persistentVolumeClaim": {"claimName": claim}},
        "config": {"configMap": {"name": "config"}},
        "projected": {"projected": {"sources": [{"configMap": {"name": "config"}}]}},
        "own": {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    }


@pytest.mark.parametrize("runtime", ["bwrap", "crun", "runc", "gvisor"])
async def test_every_writable_path_of_a_sandbox_has_a_size(node: RealNode, runtime: str) -> None:
    if runtime not in node.node.runtimes.available:
        pytest.skip(f"{runtime} is not available here")
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}
    await node.client.create(PERSISTENT_VOLUME_CLAIM, new(PERSISTENT_VOLUME_CLAIM, runtime, spec=claim), "default")
    mounted = volumes(runtime)
    before = os.statvfs("/").f_bavail
    name = await node.create(
        "python3", "-c", FILL, str(BOUND), *(f"/{each}" for each in mounted),
        container={"volumeMounts": [{"name": each, "mountPath": f"/{each}"} for each in mounted]},
        spec={
            "restartPolicy": "Never", "runtimeClassName": runtime,
            "volumes": [{"name": each, **source} for each, source in mounted.items()],  # type: ignore[dict-item]
        },
    )  # fmt: skip
    await node.phase(name, "Succeeded", "Failed")
    output = await node.output(name)
    assert output.endswith("done\n"), output
    found = dict(line.split() for line in output.splitlines()[:-1])
    assert {path: end for path, end in found.items() if end not in ("ENOSPC", "EDQUOT", "EFBIG")} == {}
    assert {"/", "/dev/termination-log", "/empty", "/sized", "/memory", "/claimed"} <= found.keys()
    used = (before - os.statvfs("/").f_bavail) * os.statvfs("/").f_frsize
    assert used < 4 * SIZE + (64 << 20), (
        "what was written is gone from the host's disk, except for the disks' own files"
    )
