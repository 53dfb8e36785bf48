"""Provisions storage for claims: a directory of the node for each PersistentVolumeClaim of our storage class.

On a cluster, this node creates the PersistentVolume and the cluster's own controller binds it. The embedded API has no
such controller, so the provisioner binds claims there in the same way. Both write the same fields, so their order does
not matter. When a claim is gone, its volume is retained or deleted with its data, as the class says. Data that a pod
still has mounted is deleted after the pod.

A claim that asks for anything but an empty directory (a block device, a copy of another volume) stays unbound, and an
event names the field. The size of a claim is enforced by a file system of its own, made when the first pod mounts the
volume (``disk``), except on a machine that cannot mount one: its Node has the condition ``SandboxVolumesNotLimited``.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path
from random import Random
from typing import Final

from sandpool.api.events import WARNING, EventSpec
from sandpool.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, Conflict, NotFound
from sandpool.node.volumes import disk

PROVISIONER: Final = "sandpool.dev/local"
CLASS: Final = "sandpool-local"

_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
_BOUND_BY_US: Final = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
_HOSTNAME: Final = "kubernetes.io/hostname"
#: Seconds before the deletion of mounted data is retried.
_IN_USE_PAUSE: Final = 5.0

_NOT_OFFERED: Final = (
    ("dataSource", "new volumes are empty"),
    ("dataSourceRef", "new volumes are empty"),
    ("selector", "a volume is made for its claim, not selected"),
    ("volumeAttributesClassName", "there are no volume attribute classes"),
)

STORAGE: Final[Object] = {
    "apiVersion": STORAGE_CLASS.api_version,
    "kind": STORAGE_CLASS.kind,
    "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}


class Provisioner:
    """Keeps volumes below ``directory``. ``binds``: no other controller binds claims to volumes."""

    def __init__(
        self, client: Client, clock: Clock, rng: Random, directory: Path, node: str, *, binds: bool = True
    ) -> None:
        self.client = client
        self.directory = directory
        self.node = node
        self.binds = binds
        self.claims: Cache[Object] = Cache(lambda obj: obj, name="volume claims")
        self.volumes: Cache[Object] = Cache(lambda obj: obj, name="volumes")
        self.in_use: set[str] = set()  # names of mounted volumes
        self.recorder = EventRecorder(client, clock, node, writers=1)
        self.controller: Controller[Key] = Controller("persistentvolumeclaim", self.reconcile, clock, rng, workers=4)
        self._reflectors = [
            Reflector(client, PERSISTENT_VOLUME_CLAIM, self.claims, clock, rng),
            Reflector(client, PERSISTENT_VOLUME, self.volumes, clock, rng),
        ]
        self.claims.subscribe(lambda key, old, new: self.controller.enqueue(key))
        self.volumes.subscribe(self._volume_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        with contextlib.suppress(AlreadyExists):  # ours, or one that an administrator has changed
            await self.client.create(STORAGE_CLASS, STORAGE)
        self.recorder.start()
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self._reflectors:
                    group.create_task(reflector.run(), name=f"{reflector.type.plural} of the provisioner")
                for reflector in self._reflectors:
                    await reflector.synced.wait()
                group.create_task(self.controller.run(), name="provisioner")
        finally:
            await self.recorder.stop()

    def _volume_changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        volume = new if new is not None else old
        reference = ((volume or {}).get("spec") or {}).get("claimRef") or {}
        if reference.get("name"):
            self.controller.enqueue(Key(reference.get("namespace") or "", reference["name"]))

    async def reconcile(self, key: Key) -> Result:
        claim = self.claims.get(key)
        for left in self._volumes_of(key):
            if claim is None or left["spec"]["claimRef"].get("uid") != claim["metadata"]["uid"]:
                return await self._reclaim(left)
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            return DONE
        ours = self._is_ours(claim)
        if why := _not_offered(claim["spec"]) if ours else await self._why_no_class(claim["spec"]):
            type = PERSISTENT_VOLUME_CLAIM
            about = ObjectReference(type.api_version, type.kind, key.name, key.namespace, claim["metadata"]["uid"])
            self.recorder.event(about, EventSpec(PROVISIONER, WARNING, "ProvisioningFailed", "Provisioning", why))
        if why or not ours:
            return DONE
        volume = self.volumes.get(Key("", volume_name(claim))) or await self._create_volume(claim)
        if self.binds:
            await self._bind(claim, volume)
        return DONE

    def _volumes_of(self, key: Key) -> list[Object]:
        """Return the volumes of this node that were made for a claim of this name, perhaps an earlier claim."""
        return [
            volume
            for volume in self.volumes
            if self._is_here(volume)
            and (volume["spec"].get("claimRef") or {}).get("namespace") == key.namespace
            and volume["spec"]["claimRef"].get("name") == key.name
        ]

    def _is_here(self, volume: Object) -> bool:
        """Whether this node made the volume. Other nodes handle their own. The node may have been renamed since, so
        data found here counts too."""
        at_hand = node_of(volume) == self.node or (self.directory / volume["metadata"]["name"]).is_dir()
        return _is_made_by_us(volume) and at_hand

    def _is_ours(self, claim: Object) -> bool:
        wanted = claim["spec"].get("storageClassName")
        named: str = claim["spec"].get("volumeName") or ""
        # A claim from before there was a default class has none; "" asks for none to be provisioned.
        return wanted in (None, CLASS) and named in ("", volume_name(claim))

    async def _why_no_class(self, spec: Object) -> str:
        """Return that the class of a claim does not exist. Empty if it exists, if the claim wants no class or names its
        volume, and where another controller binds claims and reports this itself."""
        wanted = spec.get("storageClassName")
        if not self.binds or not wanted or spec.get("volumeName"):
            return ""
        try:
            await self.client.get(STORAGE_CLASS, wanted)
        except NotFound:
            return f'spec.storageClassName: storageclass.storage.k8s.io "{wanted}" not found'
        return ""

    async def _create_volume(self, claim: SharedObject) -> SharedObject:
        path = self.directory / volume_name(claim)
        path.mkdir(parents=True, exist_ok=True)
        metadata = claim["metadata"]
        expression = {"key": _HOSTNAME, "operator": "In", "values": [self.node]}
        volume = {
            "apiVersion": PERSISTENT_VOLUME.api_version,
            "kind": PERSISTENT_VOLUME.kind,
            "metadata": {"name": volume_name(claim), "annotations": {_PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
                "accessModes": claim["spec"]["accessModes"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": CLASS,
                "local": {"path": str(path)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        try:
            made = await self.client.create(PERSISTENT_VOLUME, volume)
        except AlreadyExists:
            made = await self.client.get(PERSISTENT_VOLUME, volume_name(claim))
            if node_of(made) != self.node:
                with contextlib.suppress(OSError):  # another node was first; data that is here stays
                    path.rmdir()
        self.volumes.record_write(made)
        return made

    async def _bind(self, claim: SharedObject, volume: SharedObject) -> None:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        uid = {"uid": claim["metadata"]["uid"]}
        try:
            if (volume.get("status") or {}).get("phase") != "Bound":
                bound = MergePatch({"status": {"phase": "Bound"}})
                self.volumes.record_write(
                    await self.client.patch(PERSISTENT_VOLUME, volume["metadata"]["name"], bound, subresource="status")
                )
            if claim["spec"].get("volumeName") != volume["metadata"]["name"]:
                spec = {"volumeName": volume["metadata"]["name"], "storageClassName": CLASS}
                body = {"metadata": {**uid, "annotations": _BOUND_BY_US}, "spec": spec}
                claim = await self.client.patch(PERSISTENT_VOLUME_CLAIM, name, MergePatch(body), namespace)
            if (claim.get("status") or {}).get("phase") != "Bound":
                status = {
                    "phase": "Bound",
                    "accessModes": volume["spec"]["accessModes"],
                    "capacity": volume["spec"]["capacity"],
                }
                claim = await self.client.patch(
                    PERSISTENT_VOLUME_CLAIM,
                    name,
                    MergePatch({"metadata": uid, "status": status}),
                    namespace,
                    subresource="status",
                )
            self.claims.record_write(claim)
        except (NotFound, Conflict):
            pass  # replaced or deleted; a watch event follows

    async def _reclaim(self, volume: Object) -> Result:
        """Handle a volume whose claim is gone."""
        name = volume["metadata"]["name"]
        if volume["spec"].get("persistentVolumeReclaimPolicy") != "Delete":
            return DONE
        if name in self.in_use:
            return Result(_IN_USE_PAUSE)
        await asyncio.to_thread(_remove, self.directory / name)
        with contextlib.suppress(NotFound):
            await self.client.delete(PERSISTENT_VOLUME, name, uid=volume["metadata"]["uid"])
        self.volumes.record_deletion(Key("", name), volume["metadata"]["uid"])
        return Result(0.0)  # the claim may exist again


def _not_offered(spec: Object) -> str:
    """Return the field of a claim that a new directory cannot satisfy; empty if there is none."""
    if spec.get("volumeMode") == "Block":
        return "spec.volumeMode: block devices are not available"
    for field, why in _NOT_OFFERED:
        if spec.get(field):
            return f"spec.{field}: {why}"
    return ""


def volume_name(claim: SharedObject) -> str:
    """Return the name that provisioners use. It derives from the claim's UID, so no two claims share a volume."""
    return f"pvc-{claim['metadata']['uid']}"


def node_of(volume: SharedObject) -> str:
    """Return the node that has the data of a volume; empty if its affinity names none."""
    required = ((volume["spec"].get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()
    expressions = (each for term in required for each in term.get("matchExpressions") or ())
    return next((each["values"][0] for each in expressions if each["key"] == _HOSTNAME and each.get("values")), "")


def _is_made_by_us(volume: Object) -> bool:
    annotations = volume["metadata"].get("annotations") or {}
    return bool(annotations.get(_PROVISIONED_BY) == PROVISIONER)


def _remove(directory: Path) -> None:
    """Delete a volume with all its content. ``rmtree`` follows no links."""
    disk.remove(directory)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
