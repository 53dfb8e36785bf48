from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sandpool.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
from sandpool.api.resource import Object
from sandpool.kube.client import Client, MergePatch
from sandpool.node.pods.downward import PodPlacement
from sandpool.node.pods.interfaces import MESSAGE_ROOM, MESSAGES, Owner, VolumeFailure
from sandpool.node.runtimes.runtime import Bind
from sandpool.node.volumes import disk
from sandpool.node.volumes.manager import VolumeManager
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new

ME = Owner(os.geteuid(), os.getegid())


class Usage(SimpleNamespace):
    in_use: set[str]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def usage() -> Usage:
    return Usage(in_use=set())


@pytest.fixture
def volumes(client: Client, tmp_path: Path, clock: ManualClock, usage: Usage) -> VolumeManager:
    return VolumeManager(client, tmp_path / "volumes", PodPlacement("node"), {}, clock, usage)


def pod(*volumes: Object, uid: str = "1") -> Object:
    metadata = {"name": f"pod-{uid}", "namespace": "default", "uid": uid}
    return {"metadata": metadata, "spec": {"volumes": list(volumes), "containers": [{"name": "main"}]}}


def mounted(below: Path) -> list[str]:
    """Mounts below a directory. Other tests mount elsewhere at the same time."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(below) in line]


def mounting(*mounts: Object) -> Object:
    return {"name": "main", "volumeMounts": list(mounts)}


async def test_empty_dir_is_mounted(volumes: VolumeManager, tmp_path: Path) -> None:
    prepared = await volumes.prepare(pod({"name": "scratch", "emptyDir": {}}), tmp_path / "pod", ME)
    mount = {"name": "scratch", "mountPath": "/scratch", "readOnly": True, "subPath": "in"}
    path = tmp_path / "pod/volumes/scratch"
    assert prepared.mounts(mounting(mount), {}) == (Bind(path, "/scratch", True, "in", make=True),)
    assert path.stat().st_mode & 0o777 == 0o777


async def test_cancelled_preparation_ends_before_volumes_are_released(
    volumes: VolumeManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate, made = threading.Event(), threading.Event(), list[Path]()

    def make(path: Path, size: int, **options: Any) -> None:
        begun.set()
        gate.wait()
        made.append(path)

    monkeypatch.setattr(disk, "make_in_memory", make)
    scratch = {"name": "scratch", "emptyDir": {"medium": "Memory"}}
    preparing = asyncio.ensure_future(volumes.prepare(pod(scratch), tmp_path / "pod", ME))
    await asyncio.to_thread(begun.wait)
    for _ in range(2):
        preparing.cancel()
        await asyncio.sleep(0)
        assert not preparing.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert made == [tmp_path / "pod/volumes/scratch"]


async def test_outer_mounts_precede_inner_ones(volumes: VolumeManager, tmp_path: Path) -> None:
    prepared = await volumes.prepare(pod({"name": "scratch", "emptyDir": {}}), tmp_path / "pod", ME)
    paths = ["/a/b/c", "/z", "/a/b/"]
    mounts = prepared.mounts(mounting(*({"name": "scratch", "mountPath": path} for path in paths)), {})
    assert [mount.target for mount in mounts] == ["/z", "/a/b/", "/a/b/c"]


async def test_sub_path_expr_expands_variables(volumes: VolumeManager, tmp_path: Path) -> None:
    prepared = await volumes.prepare(pod({"name": "scratch", "emptyDir": {}}), tmp_path / "pod", ME)
    mount = {"name": "scratch", "mountPath": "/s", "subPathExpr": "logs/$(NAME)"}
    (bind,) = prepared.mounts(mounting(mount), {"NAME": "me"})
    assert isinstance(bind, Bind)
    assert bind.subpath == "logs/me"
    with pytest.raises(VolumeFailure, match="uses variables that are not set: NAME"):
        prepared.mounts(mounting(mount), {"OTHER": "you"})


async def test_unknown_volume_is_named(volumes: VolumeManager, tmp_path: Path) -> None:
    prepared = await volumes.prepare(pod(), tmp_path / "pod", ME)
    with pytest.raises(VolumeFailure, match='there is no volume "scratch"'):
        prepared.mounts(mounting({"name": "scratch", "mountPath": "/s"}), {})


async def test_config_map_volume_follows_its_object(volumes: VolumeManager, client: Client, tmp_path: Path) -> None:
    await client.create(CONFIG_MAP, {**new(CONFIG_MAP, "config"), "data": {"key": "old"}}, "default")
    await volumes.prepare(pod({"name": "config", "configMap": {"name": "config"}}), tmp_path / "pod", ME)
    file = tmp_path / "pod/volumes/config/key"
    assert file.read_text() == "old"
    await client.patch(CONFIG_MAP, "config", MergePatch({"data": {"key": "new"}}), "default")
    await volumes.refresh()
    assert file.read_text() == "new"
    await client.delete(CONFIG_MAP, "config", "default")
    await volumes.refresh()
    assert file.read_text() == "new", "what is gone from the API stays with who has it"


async def test_downward_api_volume_follows_the_pod(volumes: VolumeManager, tmp_path: Path) -> None:
    """Labels and annotations of a pod change, for example when it is claimed."""
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    plain = pod({"name": "own", "downwardAPI": {"items": [labels]}})
    await volumes.prepare(plain, tmp_path / "pod", ME)
    file = tmp_path / "pod/volumes/own/labels"
    claimed = {**plain, "metadata": {**plain["metadata"], "labels": {"claim": "mine"}}}
    await volumes.refresh({"1": claimed})
    assert file.read_text() == 'claim="mine"'
    await volumes.refresh({"2": plain})
    assert file.read_text() == 'claim="mine"', "what was last known of it holds"


async def test_volume_that_was_not_prepared_is_not_refreshed(
    volumes: VolumeManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker of the pod reports the failure and retries."""
    with pytest.raises(VolumeFailure):
        await volumes.prepare(pod({"name": "config", "configMap": {"name": "config"}}), tmp_path / "pod", ME)
    await volumes.refresh()
    assert caplog.records == []


async def test_missing_config_map_is_named(volumes: VolumeManager, tmp_path: Path) -> None:
    with pytest.raises(VolumeFailure, match='configmap "config" not found'):
        await volumes.prepare(pod({"name": "config", "configMap": {"name": "config"}}), tmp_path / "pod", ME)


async def test_token_is_renewed_before_it_expires(
    volumes: VolumeManager, client: Client, tmp_path: Path, clock: ManualClock
) -> None:
    spec: Object = {"containers": [{"name": "main", "image": "example.com/image"}]}
    made = await client.create(POD, new(POD, "pod", spec=spec), "default")
    source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 1000}}
    body = {**made, "spec": {**made["spec"], "volumes": [{"name": "token", "projected": {"sources": [source]}}]}}
    await volumes.prepare(body, tmp_path / "pod", ME)
    file = tmp_path / "pod/volumes/token/token"
    first = file.read_text()
    await clock.advance(799)
    await volumes.refresh()
    assert file.read_text() == first
    await clock.advance(1)
    await volumes.refresh()
    assert file.read_text() != first


async def test_unsupported_kinds_are_named(volumes: VolumeManager, tmp_path: Path) -> None:
    for volume in ({"name": "x", "nfs": {}}, {"name": "x", "hostPath": {"path": "/etc"}}):
        kind = next(key for key in volume if key != "name")
        with pytest.raises(VolumeFailure, match=f'volume "x" is of an unsupported kind: {kind}'):
            await volumes.prepare(pod(volume), tmp_path / "pod", ME)


async def test_host_path_types_are_checked(volumes: VolumeManager, tmp_path: Path) -> None:
    volumes.host_paths = True
    (tmp_path / "file").touch()
    for kind, path, problem in (
        ("Directory", tmp_path, ""),
        ("File", tmp_path / "file", ""),
        ("", tmp_path / "file", ""),
        ("Directory", tmp_path / "file", "is not a Directory"),
        ("Socket", tmp_path / "file", "is not a Socket"),
        ("File", tmp_path / "missing", "No such file"),
    ):
        made = pod({"name": "host", "hostPath": {"path": str(path), "type": kind}})
        if problem:
            with pytest.raises(VolumeFailure, match=problem):
                await volumes.prepare(made, tmp_path / "pod", ME)
        else:
            prepared = await volumes.prepare(made, tmp_path / "pod", ME)
            assert prepared.mounts(mounting({"name": "host", "mountPath": "/host"}), {}) == (Bind(path, "/host"),)


class TestPersistent:
    CLAIMED: ClassVar[dict[str, Any]] = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}

    @staticmethod
    async def make(client: Client, path: Path, phase: str = "Bound") -> None:
        storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "pv"}
        claim = new(PERSISTENT_VOLUME_CLAIM, "data", spec={**storage, "storageClassName": ""})
        await client.create(PERSISTENT_VOLUME_CLAIM, claim, "default")
        status = MergePatch({"status": {"phase": phase}})
        await client.patch(PERSISTENT_VOLUME_CLAIM, "data", status, "default", subresource="status")
        placement = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["far"]}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [placement]}]}}
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": str(path)},
            "nodeAffinity": affinity,
        }
        await client.create(PERSISTENT_VOLUME, new(PERSISTENT_VOLUME, "pv", spec=spec))

    async def test_claim_is_mounted_and_marked_in_use(
        self, volumes: VolumeManager, client: Client, tmp_path: Path, usage: Usage
    ) -> None:
        path = tmp_path / "volumes/pv"
        path.mkdir(parents=True)
        await self.make(client, path)
        prepared = await volumes.prepare(pod(self.CLAIMED), tmp_path / "pod", ME)
        assert prepared.mounts(mounting({"name": "data", "mountPath": "/d"}), {}) == (Bind(path, "/d"),)
        assert usage.in_use == {"pv"}
        await volumes.release("1", tmp_path / "pod")
        assert usage.in_use == set()

    async def test_data_on_another_node_is_an_error(
        self, volumes: VolumeManager, client: Client, tmp_path: Path
    ) -> None:
        await self.make(client, tmp_path / "volumes/pv")
        with pytest.raises(VolumeFailure, match='the data of persistentvolumeclaim "data" is not here: on node far'):
            await volumes.prepare(pod(self.CLAIMED), tmp_path / "pod", ME)

    async def test_claim_is_mounted_by_one_pod_at_a_time(
        self, volumes: VolumeManager, client: Client, tmp_path: Path
    ) -> None:
        path = tmp_path / "volumes/pv"
        path.mkdir(parents=True)
        await self.make(client, path)
        await volumes.prepare(pod(self.CLAIMED), tmp_path / "pod", ME)
        with pytest.raises(VolumeFailure, match='persistent volume "pv" is mounted by pod default/pod-1'):
            await volumes.prepare(pod(self.CLAIMED, uid="2"), tmp_path / "two", Owner(ME.uid + 1, ME.gid + 1))

    async def test_claim_that_cannot_be_mounted_is_an_error(
        self, volumes: VolumeManager, client: Client, tmp_path: Path
    ) -> None:
        with pytest.raises(VolumeFailure, match='persistentvolumeclaim "data" not found'):
            await volumes.prepare(pod(self.CLAIMED), tmp_path / "pod", ME)
        await self.make(client, Path("/etc"), "Pending")
        with pytest.raises(VolumeFailure, match='"data" is not bound to a volume yet'):
            await volumes.prepare(pod(self.CLAIMED), tmp_path / "pod", ME)
        status = MergePatch({"status": {"phase": "Bound"}})
        await client.patch(PERSISTENT_VOLUME_CLAIM, "data", status, "default", subresource="status")
        with pytest.raises(VolumeFailure, match="was not provisioned by this node"):
            await volumes.prepare(pod(self.CLAIMED), tmp_path / "pod", ME)


@pytest.mark.isolation
async def test_empty_dir_has_its_size_limit(volumes: VolumeManager, tmp_path: Path) -> None:
    mounts = mounted(tmp_path)
    sized = pod(
        {"name": "disk", "emptyDir": {"sizeLimit": "8Mi"}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    )
    await volumes.prepare(sized, tmp_path / "pod", Owner(12345, 12345))
    for name, size in (("disk", 8 << 20), ("memory", 1 << 20)):
        path = tmp_path / "pod/volumes" / name
        assert path.stat().st_uid == 12345
        assert os.statvfs(path).f_blocks * os.statvfs(path).f_frsize <= size
    await volumes.release("1", tmp_path / "pod")
    assert mounted(tmp_path) == mounts


@pytest.fixture
def limited(client: Client, tmp_path: Path, clock: ManualClock, usage: Usage) -> VolumeManager:
    return VolumeManager(client, tmp_path / "volumes", PodPlacement("node"), {}, clock, usage, disk_size=8 << 20)


@pytest.mark.isolation
async def test_empty_dir_without_a_size_limit_gets_the_default(limited: VolumeManager, tmp_path: Path) -> None:
    mounts = mounted(tmp_path)
    await limited.prepare(pod({"name": "disk", "emptyDir": {}}), tmp_path / "pod", ME)
    path = tmp_path / "pod/volumes/disk"
    assert os.statvfs(path).f_blocks * os.statvfs(path).f_frsize <= 8 << 20
    messages = tmp_path / "pod" / MESSAGES
    assert os.statvfs(messages).f_blocks * os.statvfs(messages).f_frsize == MESSAGE_ROOM
    await limited.release("1", tmp_path / "pod", keep=True)
    assert mounted(tmp_path) == mounts


@pytest.mark.isolation
async def test_simulated_pod_mounts_nothing(limited: VolumeManager, tmp_path: Path) -> None:
    mounts = mounted(tmp_path)
    await limited.prepare(pod({"name": "disk", "emptyDir": {}}), tmp_path / "pod", ME, simulated=True)
    assert mounted(tmp_path) == mounts


@pytest.mark.isolation
async def test_volume_claim_has_its_size_and_keeps_its_data(
    limited: VolumeManager, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "volumes/pv"
    path.mkdir(parents=True)
    await TestPersistent().make(client, path)
    mounts = mounted(tmp_path)
    await limited.prepare(pod(TestPersistent.CLAIMED), tmp_path / "pod", ME)
    assert os.statvfs(path).f_blocks * os.statvfs(path).f_frsize <= 1 << 30
    (path / "file").write_text("kept")
    await limited.release("1", tmp_path / "pod")
    assert mounted(tmp_path) == mounts
    await limited.prepare(pod(TestPersistent.CLAIMED, uid="2"), tmp_path / "two", ME)
    assert (path / "file").read_text() == "kept"
    await limited.release("2", tmp_path / "two")
    assert mounted(tmp_path) == mounts


@pytest.mark.isolation
async def test_data_of_a_volume_claim_without_a_disk_stay_visible(
    limited: VolumeManager, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "volumes/pv"
    path.mkdir(parents=True)
    (path / "file").write_text("kept")
    await TestPersistent().make(client, path)
    await limited.prepare(pod(TestPersistent.CLAIMED), tmp_path / "pod", ME)
    assert (path / "file").read_text() == "kept"
    await limited.release("1", tmp_path / "pod")
