"""Checks that the data directory belongs to this cluster, before anything is served from it.

An API that comes back empty, or with an earlier state, by mistake is the most dangerous state of an aggregated API
server. The garbage collector of kube-controller-manager asks it for the owner of each object, is told that there is
none, and deletes the pods, Services and volumes of every sandbox. While a server refuses to serve, kube-apiserver
answers 503 for our kinds, and with that the garbage collector deletes nothing.

The cluster remembers its volume (``volume_record``), and a server serves

* from that volume, unless it has an earlier state: an earlier revision than the record has, or than a child of a
  missing sandbox was created at;
* from a backup of that volume, if every child in the cluster has its sandbox, or had lost it before the backup;
* from an empty volume, if the cluster remembers no objects and has no children;
* from any volume with objects, if the cluster remembers no volume and every child has its sandbox, or had lost it
  before the last write;
* from the volume that has just taken in the custom resources (``storage_move``).

No server serves while the cluster has definitions of our kinds and no move is under way: their custom resources own
children, too. What to delete then depends on where the objects are: without its APIServices a cluster serves the custom
resources, and without its definitions the volume. So the refusal names one of them only after looking for a proof: the
record, or a child that carries a stamp or belongs to a sandbox of this volume. A move to custom resources removes the
record and the stamps.

A child without a sandbox does not prove a loss by itself. It may be that of a sandbox that was deleted, and is left to
the garbage collector.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, cast

from sandpool.api.kinds import API_SERVICES, CUSTOM_RESOURCE_DEFINITION, LEASE, NAMESPACE, SANDBOX, SANDPOOL
from sandpool.api.labels import SANDBOX_NAME_HASH, VOLUME_RECORD
from sandpool.api.resource import Key, ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Conflict, NotFound
from sandpool.server.aggregated.volume_record import CHILDREN, Stamp, VolumeRecord
from sandpool.server.auth.private_files import write_private
from sandpool.server.store.store import Store
from sandpool.server.store.volume_mark import VolumeMark

_log = logging.getLogger(__name__)

#: The flag that overrides the refusal.
OVERRIDE: Final = "--accept-lost-sandboxes"
_SYSTEM: Final = "kube-system"  # its UID identifies a cluster
_PAGE: Final = 500
_SHOWN: Final = 5
_REMEDY: Final = f"To give up what is missing on this one, start once with {OVERRIDE}"


class WrongVolume(Exception):
    """Serving from this data directory could delete sandboxes. The message says what to do."""


class LeaseName(NamedTuple):
    """The leader lease, where the cluster remembers its volume."""

    name: str
    namespace: str


class Volume:
    """A data directory. ``open`` checks it; from then on it has an identity, and ``annotations`` for the lease."""

    def __init__(self, data_dir: Path, store: Store, lease: LeaseName | None = None) -> None:
        """Without a ``lease`` the cluster remembers nothing."""
        self._data_dir = data_dir
        self._store = store
        self._lease = lease
        self._mark: VolumeMark | None = None  # once it is checked
        self._moved_out = False

    async def open(
        self, client: Client, *, accept_lost: bool = False, moves: bool = False, taken_in: bool = False
    ) -> None:
        """Raise ``WrongVolume`` if this may not be the volume of the cluster; have the cluster remember it otherwise.

        ``moves`` tells that the storage moves, so that there are custom resources, ``taken_in`` that it moves here and
        this volume has all objects."""
        await self._check_cluster(client)
        if self._moved_out:  # the owners of all children are custom resources
            return
        lease = await self._read_lease(client)
        record = VolumeRecord.read(lease) if lease is not None else None
        mark = VolumeMark.read(self._data_dir)
        if not moves:
            await self._refuse_with_definitions(client, mark, record)
        known = mark is not None and record is not None and mark.id == record.id
        try:
            if not taken_in or known:
                await self._check(client, mark, record)
        except WrongVolume as refusal:
            if not accept_lost:
                raise
            _log.warning("serving nevertheless, because of %s: %s", OVERRIDE, refusal)
            mark = None
        if mark is not None and (not mark.id or (record is not None and not known)):
            mark = None
        await self._remember(client, mark, lease)

    def move_out(self) -> None:
        """Have the cluster remember no volume any more: all objects are custom resources now."""
        self._moved_out = True

    def annotations(self) -> Mapping[str, str]:
        """What the cluster is to remember now; empty until the volume is checked."""
        if self._moved_out:
            return {VOLUME_RECORD: ""}
        return self._record(self._mark).annotations() if self._mark is not None else {}

    def stamp(self) -> Stamp:
        """The stamp of an object that is created now."""
        assert self._mark is not None, "open first"
        return Stamp(self._mark.id, self._store.revision)

    def _record(self, mark: VolumeMark) -> VolumeRecord:
        store = self._store
        return VolumeRecord(mark.id, store.revision, sum(map(store.count, store.resources())))

    # -- checks --------------------------------------------------------------------------------------------------------

    async def _check(self, client: Client, mark: VolumeMark | None, record: VolumeRecord | None) -> None:
        """Raise ``WrongVolume`` unless one of the cases above applies."""
        if not self._store.revision and (record is None or not record.objects):
            await self._refuse_children(client)
        elif record is None:
            await self._refuse_lost(client, mark, strict=True)
        elif mark is None or mark.id != record.id:
            content = "another volume" if self._store.revision else "empty"
            raise WrongVolume(
                f"{self._data_dir} is {content}, and this cluster has its sandboxes, claims, pools and templates "
                f"({record.objects} objects) on the volume {record.id}. Serving now would delete the pods of these "
                f"sandboxes. Mount that volume, or restore a backup of it. {_REMEDY}"
            )
        elif mark.restored is not None:
            await self._refuse_lost(client, mark, strict=True)
        elif self._store.revision < record.revision:
            raise WrongVolume(
                f"{self._data_dir} is older than this cluster: it has revision {self._store.revision}, and the volume "
                f"had revision {record.revision} when it was used last. Mount the volume with the newest state, or "
                f"restore a backup. {_REMEDY}"
            )
        else:
            await self._refuse_lost(client, mark, strict=False)

    async def _check_cluster(self, client: Client) -> None:
        mark = self._data_dir / "cluster"
        cluster: str = (await client.get(NAMESPACE, _SYSTEM))["metadata"]["uid"]
        try:
            known = mark.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            known = ""
        if known and known != cluster:
            raise WrongVolume(
                f"{self._data_dir} was written for the cluster with the UID {known}, and this one has {cluster}: mount "
                f"the volume of this cluster. If this cluster was restored under another UID, remove the file {mark}"
            )
        if not known:
            write_private(mark, f"{cluster}\n".encode())

    async def _refuse_with_definitions(
        self, client: Client, mark: VolumeMark | None, record: VolumeRecord | None
    ) -> None:
        found = [type.group_resource for type in SANDPOOL if await _is_defined(client, type)]
        if not found:
            return
        defined = f"this cluster has the CustomResourceDefinition {found[0]}"
        volume = await self._volume_in_use(client, mark, record)
        if volume is None:
            raise WrongVolume(
                f"{defined}, so its sandboxes may be custom resources. Serving now would delete their pods. To go back "
                f"to them: kubectl delete apiservice {' '.join(API_SERVICES)}. Then move them: `sandpool storage move "
                "--to aggregated`. To give them up, delete the definitions"
            )
        here = mark is not None and mark.id == volume
        raise WrongVolume(
            f"{defined}, and its sandboxes, claims, pools and templates are on {'this' if here else 'the'} volume "
            f"{volume}. Do not delete the APIServices: kube-apiserver would serve custom resources in place of these "
            "objects, and the garbage collector would delete the pods, Services and volumes of all sandboxes. "
            f"{'Delete' if here else 'Mount that volume, or restore a backup of it, and delete'} the definitions, "
            f"which nothing uses: kubectl delete crd {' '.join(found)}"
            f"{await self._lost_with_definitions(client, volume) if here else ''}"
        )

    async def _volume_in_use(self, client: Client, mark: VolumeMark | None, record: VolumeRecord | None) -> str | None:
        """The volume that has the objects of this cluster, as far as something proves it."""
        if record is not None and record.objects:
            return record.id
        proven = None
        async for _, child in _children(client):
            if "deletionTimestamp" in child["metadata"]:
                continue
            if (stamp := Stamp.read(child)) is not None:
                return stamp.volume
            if mark is not None and _sandbox_of(child) is not None and self._has_sandbox(child):
                proven = mark.id
        return proven

    async def _lost_with_definitions(self, client: Client, volume: str) -> str:
        """Say what custom resources may own: they were served while there was no APIService."""
        lost = [each async for each in self._lost(client, volume, self._store.revision, strict=True)]
        if not lost:
            return ""
        return (
            f". {len(lost)} objects are of sandboxes that are not on this volume, and go with them (among them "
            f"{', '.join(lost[:_SHOWN])})"
        )

    async def _refuse_children(self, client: Client) -> None:
        for type in CHILDREN:
            found = await client.list(type, label_selector=SANDBOX_NAME_HASH, limit=1)
            if found["items"]:
                more = (found["metadata"].get("remainingItemCount") or 0) + 1
                raise WrongVolume(
                    f"{self._data_dir} is empty, and this cluster has {type.plural} of sandboxes ({more}, among them "
                    f"{_name(found['items'][0])}). Serving now would delete them, because no sandbox would own them. "
                    f"Mount the volume that has the sandboxes, or restore a backup. {_REMEDY}"
                )

    async def _refuse_lost(self, client: Client, mark: VolumeMark | None, *, strict: bool) -> None:
        """Refuse if a child belongs to a sandbox that was created later than this volume was written.

        ``strict`` counts a child whose stamp does not tell that, too."""
        volume = mark.id if mark is not None else ""
        newest = mark.restored if mark is not None and mark.restored is not None else self._store.revision
        lost = [each async for each in self._lost(client, volume, newest, strict=strict)]
        if lost:
            raise WrongVolume(
                f"{self._data_dir} is older than this cluster: it has revision {newest}, and {len(lost)} objects are "
                f"of sandboxes that it does not have (among them {', '.join(lost[:_SHOWN])}). Serving now would delete "
                f"them. Mount the volume with the newest state, or restore a newer backup. {_REMEDY}"
            )

    async def _lost(self, client: Client, volume: str, newest: int, *, strict: bool) -> AsyncIterator[str]:
        """The children of sandboxes that the store does not have, each with its kind."""
        async for type, child in _children(client):
            if "deletionTimestamp" in child["metadata"] or self._has_sandbox(child):
                continue
            stamp = Stamp.read(child)
            if (stamp.revision > newest) if stamp is not None and stamp.volume == volume else strict:
                yield f"{type} {_name(child)}"

    def _has_sandbox(self, child: SharedObject) -> bool:
        """Whether the store has the sandbox that controls an object; true if no sandbox controls it."""
        owner = _sandbox_of(child)
        if owner is None:
            return True
        entry = self._store.get(SANDBOX.group_resource, Key(child["metadata"]["namespace"], owner["name"]))
        return entry is not None and entry.uid == owner["uid"]

    # -- the record ----------------------------------------------------------------------------------------------------

    async def _read_lease(self, client: Client) -> SharedObject | None:
        if self._lease is None:
            return None
        try:
            return await client.get(LEASE, self._lease.name, self._lease.namespace)
        except NotFound:
            return None

    async def _remember(self, client: Client, mark: VolumeMark | None, lease: SharedObject | None) -> None:
        """Have the cluster remember this volume, without a mark under a new identity. Raises ``Conflict`` if another
        process has taken ``lease`` meanwhile.

        A new mark is written first, so that an interrupted start finds a cluster that remembers what it did before. A
        restored volume loses the mark of the restore when the cluster knows its revision."""
        accepted = VolumeMark(mark.id) if mark is not None else VolumeMark.new()
        if mark is None:
            accepted.write(self._data_dir)
        record = VolumeRecord.read(lease) if lease is not None else None
        if lease is not None and (record is None or record.id != accepted.id or accepted != mark):
            # The checks may have taken longer than a renewal, so only the holder and the record have to be the same.
            now = await self._read_lease(client)
            if now is None or VolumeRecord.read(now) != record or _holder(now) != _holder(lease):
                raise Conflict("the lease was taken by another process")
            change = {
                "resourceVersion": now["metadata"]["resourceVersion"],
                "annotations": self._record(accepted).annotations(),
            }
            await client.patch(
                LEASE, now["metadata"]["name"], MergePatch({"metadata": change}), now["metadata"]["namespace"]
            )
        if mark is not None and accepted != mark:
            accepted.write(self._data_dir)
        self._mark = accepted


def _holder(lease: SharedObject) -> str:
    holder: str = (lease.get("spec") or {}).get("holderIdentity") or ""
    return holder


async def _is_defined(client: Client, type: ResourceType) -> bool:
    try:
        await client.get(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
    except NotFound:
        return False
    return True


def _sandbox_of(child: SharedObject) -> SharedObject | None:
    """The reference to the sandbox that controls an object."""
    for owner in child["metadata"].get("ownerReferences") or ():
        ours = owner["kind"] == SANDBOX.kind and owner["apiVersion"].startswith(f"{SANDBOX.group}/")
        if ours and owner.get("controller"):
            return cast("SharedObject", owner)
    return None


async def _children(client: Client) -> AsyncIterator[tuple[str, SharedObject]]:
    """The objects of all sandboxes, each with the name of its kind."""
    for type in CHILDREN:
        token: str | None = None
        while True:
            page = await client.list(type, label_selector=SANDBOX_NAME_HASH, limit=_PAGE, continue_token=token)
            for child in page["items"]:
                yield type.singular, child
            token = page["metadata"].get("continue")
            if not token:
                break


def _name(object: SharedObject) -> str:
    return f"{object['metadata']['namespace']}/{object['metadata']['name']}"
