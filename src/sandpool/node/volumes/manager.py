"""Makes the volumes of a node's pods before the first container starts and removes them after the last has ended.

``emptyDir`` is a file system of its own on disk, or a tmpfs. Volumes made of API objects are written when the pod
starts, and again whenever ``refresh`` finds that the objects have changed. The data of a claim is where its
PersistentVolume says, if this node provisioned it; the pod that mounts it owns the files for that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, ParamSpec, Protocol, TypeVar

from sandpool.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, SECRET, SERVICE_ACCOUNT
from sandpool.api.quantity import parse
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, NotFound
from sandpool.node.pods.downward import PodPlacement, UnknownField
from sandpool.node.pods.expansion import expand, unknown
from sandpool.node.pods.interfaces import MESSAGE_ROOM, MESSAGES, Owner, VolumeFailure
from sandpool.node.pods.memory_files import volume_size
from sandpool.node.runtimes.runtime import Bind, Mount
from sandpool.node.volumes import atomic_writer, disk, ownership, projection
from sandpool.node.volumes.provisioner import node_of

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_VOLUMES: Final = "volumes"
#: A token is replaced after this share of its lifetime.
_RENEWAL: Final = 0.8


class Usage(Protocol):
    """Receives which PersistentVolumes are mounted."""

    in_use: set[str]


@dataclass(frozen=True, slots=True)
class VolumeDirectory:
    """A volume that is a directory of the host."""

    path: Path
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class PreparedVolumes:
    """The volumes of a pod by name."""

    volumes: Mapping[str, VolumeDirectory]

    def mounts(self, container: Object, env: Mapping[str, str]) -> tuple[Mount, ...]:
        wanted: list[Object] = container.get("volumeMounts") or []
        # Mount a directory before the mounts inside it.
        ordered = sorted(wanted, key=lambda mount: mount["mountPath"].rstrip("/").count("/"))
        return tuple(self._mount(mount, env) for mount in ordered)

    def _mount(self, mount: Object, env: Mapping[str, str]) -> Mount:
        volume = self.volumes.get(mount["name"])
        if volume is None:
            raise VolumeFailure(f'there is no volume "{mount["name"]}"')
        target: str = mount["mountPath"]
        subpath: str = mount.get("subPath") or ""
        if expression := mount.get("subPathExpr"):
            subpath = _expanded(expression, env)
        read_only = volume.read_only or bool(mount.get("readOnly"))
        # A subPath of a volume made of API objects is never created: the objects alone define its content.
        return Bind(volume.path, target, read_only, subpath, make=bool(subpath) and not volume.read_only)


@dataclass(slots=True)
class _PodVolumes:
    """The state of the volumes of a pod while it exists."""

    pod: SharedObject
    directory: Path
    owner: Owner
    disk_size: int | None = None  # as in ``VolumeManager``
    persistent: set[str] = field(default_factory=set)  # names of PersistentVolumes
    published: set[str] = field(default_factory=set)  # its volumes made of API objects that have been written
    # (audience, lifetime) -> (token, monotonic time of its renewal).
    tokens: dict[tuple[str, int], tuple[str, float]] = field(default_factory=dict)


class VolumeManager:
    """``root`` is the directory of this node's PersistentVolumes. ``usage`` receives the names of those that pods have
    mounted. ``disk_size`` is the size of an emptyDir that sets none. None leaves it and PersistentVolumes unlimited, on
    machines that cannot mount file systems of a fixed size."""

    def __init__(
        self,
        client: Client,
        root: Path,
        placement: PodPlacement,
        allocatable: Mapping[str, str],
        clock: Clock,
        usage: Usage | None = None,
        *,
        host_paths: bool = False,
        disk_size: int | None = None,
    ) -> None:
        self.client = client
        self.root = root
        self.placement = placement
        self.allocatable = allocatable
        self.clock = clock
        self.usage = usage
        self.host_paths = host_paths
        self.disk_size = disk_size
        self._held: dict[str, _PodVolumes] = {}

    async def prepare(
        self, pod: SharedObject, directory: Path, owner: Owner, *, simulated: bool = False
    ) -> PreparedVolumes:
        held = self._held.setdefault(pod["metadata"]["uid"], _PodVolumes(pod, directory, owner))
        held.disk_size = None if simulated else self.disk_size
        prepared: dict[str, VolumeDirectory] = {}
        if held.disk_size is not None:
            await _to_the_end(_make_messages, directory / MESSAGES, pod)
        for volume in pod["spec"].get("volumes") or ():
            try:
                prepared[volume["name"]] = await self._prepare(volume, held)
            except (ApiError, OSError, UnknownField) as error:
                raise VolumeFailure(f'volume "{volume["name"]}": {error}') from error
        return PreparedVolumes(prepared)

    async def release(self, uid: str, directory: Path, *, keep: bool = False) -> None:
        held = self._held.pop(uid, None)
        await asyncio.to_thread(_release, directory, keep)
        if held is None:
            return  # a pod of an earlier agent: which PersistentVolumes it had mounted is not known
        unused = held.persistent - {name for each in self._held.values() for name in each.persistent}
        for name in unused:
            await asyncio.to_thread(disk.unmount, self.root / name)
        if self.usage is not None:
            self.usage.in_use -= unused

    async def close(self) -> None:
        """Unmount every PersistentVolume, also those that an earlier agent left mounted. No pod may be running."""
        volumes = await asyncio.to_thread(lambda: list(self.root.iterdir()) if self.root.is_dir() else [])
        for path in volumes:
            await asyncio.to_thread(disk.unmount, path)

    async def refresh(self, pods: Mapping[str, SharedObject] = MappingProxyType({})) -> None:
        """Write volumes again whose objects have changed in the API. A volume whose objects cannot be read stays as it
        is. ``pods`` are the current pods by UID: their labels and annotations may have changed since they were
        prepared."""
        for uid, held in list(self._held.items()):
            held.pod = pods.get(uid, held.pod)
            for volume in held.pod["spec"].get("volumes") or ():
                if volume["name"] not in held.published:
                    continue  # not prepared yet
                try:
                    await self._publish(volume, held)
                except (ApiError, OSError, UnknownField, VolumeFailure) as error:
                    called = f"{held.pod['metadata']['namespace']}/{held.pod['metadata']['name']}"
                    _log.warning('volume "%s" of pod %s stays as it is: %s', volume["name"], called, error)

    async def _prepare(self, volume: Object, held: _PodVolumes) -> VolumeDirectory:
        if any(kind in volume for kind in projection.KINDS):
            return await self._publish(volume, held)
        if (empty := volume.get("emptyDir")) is not None:
            in_memory = 0
            if empty.get("medium") == "Memory":
                in_memory = volume_size(held.pod, volume["name"], has_disks=held.disk_size is not None)
            return await _to_the_end(_empty, empty, _place(held, volume), held.owner, held.disk_size, in_memory)
        if (claim := volume.get("persistentVolumeClaim")) is not None:
            return await self._persistent(claim, held)
        if "hostPath" in volume and self.host_paths:
            return _host_path(volume["hostPath"])
        kinds = ", ".join(key for key in volume if key != "name")
        raise VolumeFailure(f'volume "{volume["name"]}" is of an unsupported kind: {kinds}')

    async def _publish(self, volume: Object, held: _PodVolumes) -> VolumeDirectory:
        files = await projection.project(volume, self._sources(held))
        path = _place(held, volume)
        await _to_the_end(atomic_writer.publish, path, files, held.owner.uid, held.owner.gid)
        held.published.add(volume["name"])
        return VolumeDirectory(path, read_only=True)

    async def _persistent(self, source: Object, held: _PodVolumes) -> VolumeDirectory:
        name, namespace = source["claimName"], held.pod["metadata"]["namespace"]
        claim = await self._find(PERSISTENT_VOLUME_CLAIM, name, namespace)
        if claim is None:
            raise VolumeFailure(f'persistentvolumeclaim "{name}" not found')
        if claim["metadata"].get("deletionTimestamp"):
            raise VolumeFailure(f'persistentvolumeclaim "{name}" is being deleted')
        if (claim.get("status") or {}).get("phase") != "Bound":
            raise VolumeFailure(f'persistentvolumeclaim "{name}" is not bound to a volume yet')
        volume = await self._find(PERSISTENT_VOLUME, claim["spec"]["volumeName"], None)
        path = Path(((volume or {}).get("spec", {}).get("local") or {}).get("path") or "/")
        if volume is None or path.parent != self.root:
            raise VolumeFailure(f'the volume of persistentvolumeclaim "{name}" was not provisioned by this node')
        if not await asyncio.to_thread(path.is_dir):
            there = (
                f"on node {node}" if (node := node_of(volume)) != self.placement.node_name else f"there is no {path}"
            )
            raise VolumeFailure(f'the data of persistentvolumeclaim "{name}" is not here: {there}')
        self._take(volume["metadata"]["name"], held)
        if held.disk_size is not None:
            size = _bytes(volume["spec"]["capacity"]["storage"])
            await _to_the_end(_make_persistent, path, size)
        await _to_the_end(ownership.give, path, held.owner.uid, held.owner.gid)
        return VolumeDirectory(path, read_only=bool(source.get("readOnly")))

    def _take(self, volume: str, held: _PodVolumes) -> None:
        """Reserve a PersistentVolume. Each pod is another user, and files can belong to only one."""
        for other in self._held.values():
            if volume in other.persistent and other.owner.uid != held.owner.uid:
                metadata = other.pod["metadata"]
                raise VolumeFailure(
                    f'persistent volume "{volume}" is mounted by pod {metadata["namespace"]}/{metadata["name"]}; '
                    "a volume can be mounted by one pod at a time"
                )
        held.persistent.add(volume)
        if self.usage is not None:
            self.usage.in_use.add(volume)

    def _sources(self, held: _PodVolumes) -> projection.Sources:
        pod = held.pod
        namespace = pod["metadata"]["namespace"]

        async def token(audience: str, seconds: int) -> str:
            text, until = held.tokens.get((audience, seconds), ("", 0.0))
            now = self.clock.monotonic()
            if not text or now >= until:
                text = await self._token(pod, audience, seconds)
                held.tokens[audience, seconds] = text, now + seconds * _RENEWAL
            return text

        return projection.Sources(
            config_map=lambda name: self._find(CONFIG_MAP, name, namespace),
            secret=lambda name: self._find(SECRET, name, namespace),
            token=token,
            pod=pod,
            placement=self.placement,
            allocatable=self.allocatable,
        )

    async def _token(self, pod: SharedObject, audience: str, seconds: int) -> str:
        """Request a token that is bound to the pod, so that it expires with it."""
        metadata = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        spec: Object = {"expirationSeconds": seconds, "boundObjectRef": bound}
        if audience:
            spec["audiences"] = [audience]
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = pod["spec"].get("serviceAccountName") or "default"
        answer = await self.client.create(
            SERVICE_ACCOUNT, request, metadata["namespace"], name=account, subresource="token"
        )
        text: str = answer["status"]["token"]
        return text

    async def _find(self, type: ResourceType, name: str, namespace: str | None) -> SharedObject | None:
        try:
            return await self.client.get(type, name, namespace)
        except NotFound:
            return None


# By the type a hostPath may have; what is made on demand is refused (``sandpool.node.pods.unsupported_fields``).
_HOST_PATHS: Final[Mapping[str, Callable[[int], bool]]] = {
    "Directory": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


def _host_path(source: Object) -> VolumeDirectory:
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind and not _HOST_PATHS[kind](path.stat().st_mode):
        raise VolumeFailure(f"hostPath type check failed: {path} is not a {kind}")
    return VolumeDirectory(path)


def _expanded(expression: str, env: Mapping[str, str]) -> str:
    """Expand ``subPathExpr``. An unset variable is an error: its name would become part of a directory name."""
    missing = sorted(unknown(expression, env))
    if missing:
        raise VolumeFailure(f'subPathExpr "{expression}" uses variables that are not set: {", ".join(missing)}')
    return expand(expression, env)


def _place(held: _PodVolumes, volume: Object) -> Path:
    path: Path = held.directory / _VOLUMES / volume["name"]
    return path


def _empty(source: Object, path: Path, owner: Owner, default: int | None, in_memory: int) -> VolumeDirectory:
    limit = source.get("sizeLimit")
    size = 0 if limit is None else _bytes(str(limit))
    if in_memory:
        disk.make_in_memory(path, in_memory)
    elif size or default is not None:
        disk.make(path, size or default or 0)
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)
    ownership.give(path, owner.uid, owner.gid)
    return VolumeDirectory(path)


def _make_persistent(path: Path, size: int) -> None:
    """Mount the file system of a PersistentVolume at its directory. A directory that holds data of its own is left
    alone: it was filled while this machine could not mount, and mounting over it would hide the data."""
    if disk.exists(path) or not any(path.iterdir()):
        disk.make(path, size)


def _make_messages(path: Path, pod: SharedObject) -> None:
    spec = pod["spec"]
    containers = len(spec.get("initContainers") or ()) + len(spec["containers"])
    disk.make_in_memory(path, containers * MESSAGE_ROOM, mode=0o711)


async def _to_the_end(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in a thread. A cancelled caller waits for its end: otherwise it would mount something after the
    volumes of the pod were released."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **options))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([call])
        raise


def _release(directory: Path, keep: bool) -> None:
    volumes = directory / _VOLUMES
    for volume in list(volumes.iterdir()) if volumes.exists() else ():
        if volume.is_dir():
            (disk.unmount if keep else disk.remove)(volume)
    disk.unmount(directory / MESSAGES)


def _bytes(quantity: str) -> int:
    return -(-parse(quantity).billionths // 10**9)
