"""Move the storage of an installed cluster: from custom resources to an aggregated API server, and back.

Claims keep their sandboxes, and pods are not restarted. The danger is the garbage collector of the cluster: it deletes
a pod when it is told that the owner of the pod does not exist, or has another UID. Both ways avoid that.

*To the aggregated API.* kube-apiserver first passes requests on to a server that does not serve yet, so it answers 503
and the collector waits. The server takes the custom resources in with their UIDs (``server.aggregated.storage_move``)
and only then serves. Before the custom resources are deleted, all watches of them are ended: the collector believes an
event that says that an owner is deleted.

*To custom resources.* An API gives every new object a UID of its own. So all dependents lose their owner references,
which are kept in an annotation, before the custom resources take over. With no owner there is nothing to collect.
Afterwards they get references to the new UIDs.

Meanwhile the custom resources are served under a version of their own, ``moving``, which no client knows: the API that
is passed on has their other one. A record in a ConfigMap says how far a move is. Every step can be done again, so a
move that was interrupted continues when it is started again.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal

import orjson

from sandpool.api.kinds import (
    API_SERVICE,
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    LEASE,
    NAMESPACE,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SANDPOOL,
    SECRET,
    SERVICE,
    STATEFUL_SET,
)
from sandpool.api.labels import CLAIM_UID, SANDBOX_FIELD_MANAGER, VOLUME_RECORD, VOLUME_STAMP
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.engine.clock import Clock, within
from sandpool.install import names
from sandpool.install.errors import InstallError
from sandpool.install.fit import all_of
from sandpool.install.installer import Installer, Report, title, type_of
from sandpool.install.storage import is_passed_on, present_storage
from sandpool.install.workload import manifest
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, Conflict, Expired, NotFound, ServiceUnavailable
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.server.aggregated.storage_move import (
    AGGREGATED,
    COPIED,
    FROZEN,
    ID,
    IMPORT,
    IMPORTED,
    OWNED,
    RECORD,
    TO,
    VERSION,
    WAITING,
    moving,
)

Direction = Literal["aggregated", "crd"]

#: On a copy: the UID of the object that it is a copy of.
COPY_OF: Final = "sandpool.dev/moved-from-uid"
#: On a dependent whose owners move: its references to them, as JSON.
OWNERS: Final = "sandpool.dev/moving-owners"

# Owners before what they own.
_ORDER: Final = (SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SANDBOX_CLAIM, SANDBOX)
#: What may have an owner of ours: what the controllers create, and what users commonly attach.
DEPENDENTS: Final = (POD, SERVICE, PERSISTENT_VOLUME_CLAIM, NETWORK_POLICY, CONFIG_MAP, SECRET)
_GROUPS: Final = frozenset(type.group for type in SANDPOOL)
# The label of APIServices that kube-apiserver keeps as the definitions have them.
_AUTOMANAGED: Final = "kube-aggregator.kubernetes.io/automanaged"
# The field managers of the controllers.
_CONTROLLERS: Final = ("sandpool", SANDBOX_FIELD_MANAGER)
_NEW: Final = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
_GOING: Final = ("deletionTimestamp", "deletionGracePeriodSeconds")
_UID: Final = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PAUSE: Final = 0.2
_CONCURRENCY: Final = 16
# Until all kube-apiservers of a cluster know where requests go, and have finished those that went elsewhere.
_GRACE: Final = 3.0
_TIMEOUT: Final = 300.0
_TOUCH_AGAIN: Final = 2.0
_EVERY: Final = 200  # objects between two reports

Step = Callable[[], Awaitable[bool]]


class StorageMover:
    """``custom`` and ``aggregated`` are the objects of an installation with either storage, in order. ``report`` gets a
    line for every step."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        report: Report,
        custom: Iterable[Object],
        aggregated: Iterable[Object],
        *,
        timeout: float = _TIMEOUT,
        grace: float = _GRACE,
    ) -> None:
        self.client = Client(_RetryingTransport(client.transport, clock, timeout), field_manager=client.field_manager)
        self.clock = clock
        self.report = report
        self.custom = list(custom)
        self.aggregated = list(aggregated)
        self.timeout = timeout
        self.grace = grace
        self.installer = Installer(self.client, clock, report, force=True)
        self._asking = client  # for questions to which 503 is an answer
        self._limit = asyncio.Semaphore(_CONCURRENCY)

    async def move(self, to: Direction, *, dry_run: bool = False) -> None:
        """Move the storage, or continue a move. Raises ``InstallError``; the message says what to do."""
        data = await self._record()
        if not data and not await self._begins(to):
            return
        if data and data[TO] != to:
            raise InstallError(
                f"a move to {data[TO]} is under way: finish it first, `sandpool storage move --to {data[TO]}`"
            )
        if dry_run:
            await self._preview(to, under_way=bool(data))
            return
        if not data:
            record = manifest(CONFIG_MAP, RECORD, names.NAMESPACE, data={ID: str(uuid.uuid4()), TO: to})
            await self.client.create(CONFIG_MAP, record)
        else:
            self.report("continuing a move that was interrupted")
        await (self._to_aggregated() if to == AGGREGATED else self._to_custom())
        await self._remove(CONFIG_MAP, RECORD, names.NAMESPACE)
        self.report(f"moved: the storage is {to}")

    # -- before --------------------------------------------------------------------------------------------------------

    async def _begins(self, to: Direction) -> bool:
        """Whether there is something to move. Raises ``InstallError`` if it cannot."""
        present = await present_storage(self.client)
        if present is None:
            raise InstallError(f"Sandpool is not installed in this cluster: `sandpool install --storage {to}`")
        if present == AGGREGATED and not await is_passed_on(self.client):
            raise InstallError(
                "the sandboxes of this cluster are on a volume, and its APIServices are missing\n"
                "Create them at once, or the garbage collector deletes pods: `sandpool install --storage aggregated`"
            )
        if present == to:
            self.report(f"nothing to do: the storage is {to}")
            return False
        if to == AGGREGATED:
            left = f"data-{names.APISERVER}-0"
            if await self._found(PERSISTENT_VOLUME_CLAIM, left, names.NAMESPACE):
                raise InstallError(
                    f"the volume of an earlier installation exists: persistentvolumeclaim/{left} in {names.NAMESPACE}\n"
                    f"Delete it first: kubectl -n {names.NAMESPACE} delete persistentvolumeclaim {left}"
                )
        return True

    async def _preview(self, to: Direction, *, under_way: bool) -> None:
        if under_way:
            self.report(f"a move to {to} is under way and would continue: {dict(await self._record())}")
            return
        counts = [f"{len([each async for each in all_of(self.client, type)])} {type.plural}" for type in _ORDER]
        pods = [each async for each in all_of(self.client, POD) if _ours(each)]
        self.report(f"would move {', '.join(counts)}; {len(pods)} pods keep running")
        old, new = (self.custom, self.aggregated) if to == AGGREGATED else (self.aggregated, self.custom)
        for each in new:
            if type_of(each) is not NAMESPACE:
                self.report(f"{title(each)} would be configured")
        for each in _only_in(old, new):
            self.report(f"{title(each)} would be deleted")
        if to == AGGREGATED:
            self.report("UIDs stay. kube-apiserver answers 503 for these kinds until the objects are taken in")
        else:
            self.report("objects get new UIDs and creation times, their dependents new owner references")
            self.report("writes are refused with 503 while they are copied. The volume is kept")

    # -- to the aggregated API -----------------------------------------------------------------------------------------

    async def _to_aggregated(self) -> None:
        services = [each for each in self.aggregated if type_of(each) is API_SERVICE]
        if IMPORTED not in await self._record():
            await self._serve_as_moving()
            await self.installer.install(each for each in self.aggregated if each not in services)
            for each in self.custom:
                if type_of(each) is DEPLOYMENT:
                    await self._remove(DEPLOYMENT, each["metadata"]["name"], each["metadata"]["namespace"])
            self.report("the controllers end; waiting until the aggregated API server leads")
            await self._recorded(WAITING, f"statefulset/{names.APISERVER} did not take over the lease")
            for each in services:
                await self._pass_on(each)
            await self._until(self._refused, "kube-apiserver still serves the custom resources")
            await self.clock.sleep(self.grace)
            self.report("requests for these kinds are passed on; taking the objects in")
            await self._note(IMPORT, "true")
            count = await self._recorded(IMPORTED, f"statefulset/{names.APISERVER} did not take the objects in")
            self.report(f"{count} objects are on the volume, with their UIDs")
        for each in services:  # also if the record was written and this was not
            await self._pass_on(each)
        await self._until(self._served, f"statefulset/{names.APISERVER} does not serve")
        for type in SANDPOOL:
            with suppress(NotFound):
                await self._end_watches(type)
        self.report("watches of the custom resources have ended")
        await self._drop_definitions()
        await self._remove_rest(self.custom, self.aggregated)
        await self.installer.install(self.aggregated)

    async def _serve_as_moving(self) -> None:
        """Have the custom resources served under a version that is not passed on, too."""
        for type in SANDPOOL:
            present = await self.client.get(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
            versions = present["spec"]["versions"]
            if not any(each["name"] == VERSION for each in versions):
                patch = MergePatch({"spec": {"versions": [*versions, _as_moving(versions)]}})
                await self.client.patch(CUSTOM_RESOURCE_DEFINITION, type.group_resource, patch)
        await self._until(self._served_as_moving, "the definitions are not served; see kubectl describe crd")

    async def _pass_on(self, service: Object) -> None:
        """Make kube-apiserver pass requests of a group on, in place of the registration that it keeps itself."""
        name, metadata = service["metadata"]["name"], service["metadata"]
        labels = {**(metadata.get("labels") or {}), _AUTOMANAGED: None}
        patch = MergePatch({"metadata": {"labels": labels}, "spec": service["spec"]})
        try:
            await self.client.patch(API_SERVICE, name, patch)
        except NotFound:
            with suppress(AlreadyExists):
                await self.client.create(API_SERVICE, service)
        self.report(f"{title(service)} configured")

    async def _end_watches(self, type: ResourceType) -> None:
        """End all watches of a kind of custom resources that began before requests were passed on.

        They would tell the collector that objects are deleted, and it takes an owner for absent then, without asking.
        kube-apiserver ends all watches of a kind when its definition changes. A watch of our own shows that it did."""
        started = (await self.client.list(moving(type), limit=1))["metadata"]["resourceVersion"]
        deadline = self.clock.monotonic() + self.timeout
        watching = asyncio.create_task(self._watched(type, started))
        try:
            while True:
                await self._touch(type)
                with suppress(TimeoutError):
                    # A watch that was not open yet when the definition changed ends after the next change.
                    await within(self.clock, _TOUCH_AGAIN, _result(watching))
                    return
                if self.clock.monotonic() > deadline:
                    raise InstallError(
                        f"watches of {type.plural} do not end within {self.timeout:g} s\n"
                        "Sandboxes run on. Run this command again to continue the move"
                    )
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watched(self, type: ResourceType, version: str) -> None:
        """Watch custom resources until the API ends it."""
        while True:
            try:
                async for _ in self.client.watch(moving(type), resource_version=version):
                    pass
                return
            except (NotFound, Expired):
                return
            except OSError:  # the connection broke, which proves nothing
                await self.clock.sleep(_PAUSE)

    async def _touch(self, type: ResourceType) -> None:
        """Change a definition in a way that nothing depends on: a column of the version that no client knows."""
        present = await self.client.get(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
        column = {"name": f"Move-{uuid.uuid4()}", "type": "string", "jsonPath": ".metadata.name"}
        versions = [
            {**each, "additionalPrinterColumns": [column]} if each["name"] == VERSION else each
            for each in present["spec"]["versions"]
        ]
        patch = MergePatch({"spec": {"versions": versions}})
        await self.client.patch(CUSTOM_RESOURCE_DEFINITION, type.group_resource, patch)

    async def _drop_definitions(self) -> None:
        """Delete the custom resources, of which the other API has all. Finalizers are for that one to honour."""
        for type in SANDPOOL:
            with suppress(NotFound):
                async for each in all_of(self.client, moving(type)):
                    metadata = each["metadata"]
                    if metadata.get("finalizers"):
                        patch = MergePatch({"metadata": {"finalizers": None}})
                        with suppress(NotFound):
                            await self.client.patch(moving(type), metadata["name"], patch, metadata["namespace"])
            await self._remove(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
        await self._until(self._undefined, "the definitions still exist; see kubectl describe crd")

    # -- to custom resources -------------------------------------------------------------------------------------------

    async def _to_custom(self) -> None:
        if COPIED not in await self._record():
            definitions = [each for each in self.custom if type_of(each) is CUSTOM_RESOURCE_DEFINITION]
            await self.installer.install(map(_served_twice, definitions))
            await self._until(self._served_as_moving, "the definitions are not served; see kubectl describe crd")
            await self._recorded(FROZEN, f"statefulset/{names.APISERVER} did not stop writing")
            await self._copy()
            await self._change_all(DEPENDENTS, "released from their owners", self._release)
            await self._note(COPIED, "true")
        if OWNED not in await self._record():
            for each in self.aggregated:
                if type_of(each) is API_SERVICE:
                    await self._keep(each)
            await self._until(self._served_as_copied, "kube-apiserver does not serve the custom resources")
            await self.clock.sleep(self.grace)
            self.report("requests for these kinds are served from custom resources")
            uids = await self._renewed_uids()
            everything = (*_ORDER, *DEPENDENTS)
            await self._change_all(
                everything, "got new owner references", lambda type, each: self._own(type, each, uids)
            )
            await self._note(OWNED, "true")
        await self._remove_rest(self.aggregated, self.custom)
        await self._forget_volume()
        await self.installer.install(self.custom)
        await self._forget_copies()
        self.report(f"the volume is kept: persistentvolumeclaim/data-{names.APISERVER}-0 in {names.NAMESPACE}")

    async def _copy(self) -> None:
        """Make a custom resource of every object. References among them get the new UIDs."""
        uids: dict[str, str] = {}
        for type in _ORDER:
            objects = [each async for each in all_of(self.client, type)]
            copied: list[None] = []

            async def copy(each: Object, type: ResourceType = type, copied: list[None] = copied) -> None:
                async with self._limit:
                    uids[each["metadata"]["uid"]] = await self._copy_one(type, each, uids)
                copied.append(None)
                if len(copied) % _EVERY == 0:
                    self.report(f"copied {len(copied)} of {len(objects)} {type.plural}")  # noqa: B023

            await asyncio.gather(*map(copy, objects))
            self.report(f"{len(objects)} {type.plural} copied")

    async def _copy_one(self, type: ResourceType, object: Object, uids: Mapping[str, str]) -> str:
        metadata = object["metadata"]
        name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
        body: Object = orjson.loads(_replaced(orjson.dumps(object), uids))
        status, managers = body.pop("status", None), body["metadata"].get("managedFields") or []
        kept = {key: value for key, value in body["metadata"].items() if key not in (*_NEW, *_GOING)}
        kept["annotations"] = {**(kept.get("annotations") or {}), COPY_OF: uid}
        # The collector may look at copies already, and their owners are not where it looks for them.
        if (released := _without_owners(metadata)) is not None:
            kept["annotations"] |= released["annotations"]
            kept["ownerReferences"] = released["ownerReferences"] or []
        there = moving(type)
        body |= {"apiVersion": there.api_version, "kind": type.kind, "metadata": kept}
        try:
            copy = await self.client.create(there, body, namespace)
        except AlreadyExists:
            copy = await self.client.get(there, name, namespace)
            if (copy["metadata"].get("annotations") or {}).get(COPY_OF) != uid:
                # Of an earlier attempt: the object was replaced since, when writes were possible.
                await self.client.delete(there, name, namespace, uid=copy["metadata"]["uid"])
                copy = await self.client.create(there, body, namespace)
        if status is not None and "status" in type.subresources:
            await self.client.patch(there, name, MergePatch({"status": status}), namespace, subresource="status")
        if any(each.get("manager") not in _CONTROLLERS for each in managers):
            # An API adds what a write changes to the fields of its writer. This one changes nothing else. Objects that
            # only the controllers have written are most of them, and do without it.
            owned = MergePatch({"metadata": {"managedFields": managers}})
            await self.client.patch(there, name, owned, namespace)
        if "deletionTimestamp" in metadata and "deletionTimestamp" not in copy["metadata"]:
            with suppress(NotFound):
                await self.client.delete(there, name, namespace, propagation_policy=_policy(metadata))
        renewed: str = copy["metadata"]["uid"]
        return renewed

    async def _change_all(
        self, types: Iterable[ResourceType], what: str, change: Callable[[ResourceType, SharedObject], Awaitable[bool]]
    ) -> None:
        """Change all objects of some kinds, and report how many needed it."""
        for type in types:
            found = [each async for each in all_of(self.client, type)]

            async def one(each: SharedObject, type: ResourceType = type) -> bool:
                async with self._limit:
                    return await change(type, each)

            changed = sum(await asyncio.gather(*map(one, found)))
            if changed:
                self.report(f"{changed} {type.plural} {what}")

    async def _release(self, type: ResourceType, object: SharedObject) -> bool:
        """Take the references to our kinds from an object, and keep them in an annotation."""

        return await self._changed(type, object, _without_owners)

    async def _own(self, type: ResourceType, object: SharedObject, uids: Mapping[str, str]) -> bool:
        """Give an object the references back, with the new UIDs. An owner that is gone keeps its old one: what it owned
        is then collected, as it would have been."""

        def owned(metadata: SharedObject) -> Object | None:
            kept = (metadata.get("annotations") or {}).get(OWNERS)
            if kept is None:
                return None
            references = [{**each, "uid": uids.get(each["uid"], each["uid"])} for each in json.loads(kept)]
            change: Object = {
                "ownerReferences": [*(metadata.get("ownerReferences") or ()), *references],
                "annotations": {OWNERS: None, VOLUME_STAMP: None},  # the stamp would say that the volume is in use
            }
            claim: str = (metadata.get("labels") or {}).get(CLAIM_UID, "")
            if claim in uids:
                change["labels"] = {CLAIM_UID: uids[claim]}
            return change

        return await self._changed(type, object, owned)

    async def _changed(
        self, type: ResourceType, object: SharedObject, change: Callable[[SharedObject], Object | None]
    ) -> bool:
        """Patch the metadata of an object, again after a conflict; whether there was something to change."""
        name, namespace = object["metadata"]["name"], object["metadata"]["namespace"]
        while (metadata := change(object["metadata"])) is not None:
            version = object["metadata"]["resourceVersion"]
            patch = MergePatch({"metadata": {"resourceVersion": version, **metadata}})
            try:
                await self.client.patch(type, name, patch, namespace)
                return True
            except Conflict:
                try:
                    object = await self.client.get(type, name, namespace)
                except NotFound:
                    return False
            except NotFound:
                return False
        return False

    async def _keep(self, service: Object) -> None:
        """Have kube-apiserver serve a group itself again: it registers the definitions when ours is gone."""
        name = service["metadata"]["name"]
        with suppress(NotFound):
            present = await self.client.get(API_SERVICE, name)
            if present["spec"].get("service"):
                await self.client.delete(API_SERVICE, name, uid=present["metadata"]["uid"])
                self.report(f"{title(service)} deleted")

    async def _renewed_uids(self) -> dict[str, str]:
        """The new UID of every object, by its old one."""
        return {
            old: each["metadata"]["uid"]
            for type in _ORDER
            async for each in all_of(self.client, type)
            if (old := (each["metadata"].get("annotations") or {}).get(COPY_OF))
        }

    async def _forget_volume(self) -> None:
        """Have the lease remember no volume. The aggregated API server does so itself, unless it was killed before."""
        patch = MergePatch({"metadata": {"annotations": {VOLUME_RECORD: None}}})
        with suppress(NotFound):
            await self.client.patch(LEASE, names.LEASE, patch, names.NAMESPACE)

    async def _forget_copies(self) -> None:
        patch = MergePatch({"metadata": {"annotations": {COPY_OF: None}}})
        for type in _ORDER:
            async for each in all_of(self.client, type):
                metadata = each["metadata"]
                if COPY_OF in (metadata.get("annotations") or {}):
                    with suppress(NotFound):
                        await self.client.patch(type, metadata["name"], patch, metadata["namespace"])

    # -- what the cluster says -----------------------------------------------------------------------------------------

    async def _record(self) -> Mapping[str, str]:
        try:
            found = await self.client.get(CONFIG_MAP, RECORD, names.NAMESPACE)
        except NotFound:
            return {}
        data: Mapping[str, str] = found.get("data") or {}
        return data

    async def _note(self, key: str, value: str) -> None:
        await self.client.patch(CONFIG_MAP, RECORD, MergePatch({"data": {key: value}}), names.NAMESPACE)

    async def _recorded(self, key: str, otherwise: str) -> str:
        """Wait for a report of the aggregated API server."""

        async def found() -> bool:
            return key in await self._record()

        await self._until(found, otherwise)
        return (await self._record())[key]

    async def _until(self, met: Step, otherwise: str) -> None:
        """Wait until a condition is met. An API that is not there yet does not meet it."""
        deadline = self.clock.monotonic() + self.timeout
        while True:
            with suppress(NotFound, ServiceUnavailable):
                if await met():
                    return
            if self.clock.monotonic() > deadline:
                raise InstallError(
                    f"{otherwise} within {self.timeout:g} s: kubectl -n {names.NAMESPACE} get pods\n"
                    "Sandboxes run on. Run this command again to continue the move"
                )
            await self.clock.sleep(_PAUSE)

    async def _served(self) -> bool:
        for type in SANDPOOL:
            await self._asking.list(type, limit=1)
        return True

    async def _served_as_moving(self) -> bool:
        for type in SANDPOOL:
            await self.client.list(moving(type), limit=1)
        return True

    async def _refused(self) -> bool:
        """Whether no kind is served from custom resources any more."""
        for type in SANDPOOL:
            try:
                await self._asking.list(type, limit=1)
            except ServiceUnavailable:
                continue
            return False
        return True

    async def _served_as_copied(self) -> bool:
        """Whether kube-apiserver itself serves the kinds."""
        for each in self.aggregated:
            if type_of(each) is API_SERVICE:
                with suppress(NotFound):
                    present = await self.client.get(API_SERVICE, each["metadata"]["name"])
                    if present["spec"].get("service"):
                        return False
        for type in SANDPOOL:
            there = {each["metadata"]["uid"] async for each in all_of(self.client, moving(type))}
            if not there <= {each["metadata"]["uid"] async for each in all_of(self.client, type)}:
                return False
        return True

    async def _undefined(self) -> bool:
        for type in SANDPOOL:
            if await self._found(CUSTOM_RESOURCE_DEFINITION, type.group_resource):
                return False
        return True

    async def _found(self, type: ResourceType, name: str, namespace: str | None = None) -> bool:
        try:
            await self.client.get(type, name, namespace)
        except NotFound:
            return False
        return True

    async def _remove(self, type: ResourceType, name: str, namespace: str | None = None) -> None:
        with suppress(NotFound):
            await self.client.delete(type, name, namespace, propagation_policy="Background")

    async def _remove_rest(self, old: list[Object], new: list[Object]) -> None:
        """Delete the objects of the former storage. The volume stays: no StatefulSet deletes its claims."""
        for each in _only_in(old, new):
            metadata = each["metadata"]
            with suppress(NotFound):
                await self.client.delete(
                    type_of(each), metadata["name"], metadata.get("namespace"), propagation_policy="Background"
                )
                self.report(f"{title(each)} deleted")


class _RetryingTransport:
    """A transport that sends requests again while the API answers 503, which it does before it does anything else."""

    def __init__(self, transport: Transport, clock: Clock, seconds: float) -> None:
        self.transport = transport
        self._clock = clock
        self._seconds = seconds

    async def request(self, request: Request) -> Any:
        deadline = self._clock.monotonic() + self._seconds
        while True:
            try:
                return await self.transport.request(request)
            except ServiceUnavailable as error:
                if self._clock.monotonic() > deadline:
                    raise InstallError(
                        f"{request.method} {request.path}: {error}, for {self._seconds:g} s. Sandboxes run on. "
                        "Run this command again to continue the move"
                    ) from None
            await self._clock.sleep(_PAUSE)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None:
        await self.transport.close()


async def _result(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


def _only_in(old: list[Object], new: list[Object]) -> list[Object]:
    """The objects of one installation that the other has not, but for the kinds; workloads first."""
    kept = {_place(each) for each in new}
    kinds = (CUSTOM_RESOURCE_DEFINITION, API_SERVICE)
    found = [each for each in old if _place(each) not in kept and type_of(each) not in kinds]
    return sorted(found, key=lambda each: type_of(each) not in (STATEFUL_SET, DEPLOYMENT))


def _place(object: Object) -> tuple[ResourceType, str, str]:
    return type_of(object), object["metadata"].get("namespace", ""), object["metadata"]["name"]


def _served_twice(definition: Object) -> Object:
    spec = definition["spec"]
    return {**definition, "spec": {**spec, "versions": [*spec["versions"], _as_moving(spec["versions"])]}}


def _as_moving(versions: Iterable[Object]) -> Object:
    """The version under which custom resources are reached during a move: the stored one with another name."""
    stored = next(each for each in versions if each["storage"])
    return {**stored, "name": VERSION, "storage": False}


def _replaced(encoded: bytes, uids: Mapping[str, str]) -> bytes:
    """An encoded object with the new UIDs in references, labels and its pod template."""
    return _UID.sub(lambda found: uids.get(found[0].decode(), found[0].decode()).encode(), encoded)


def _without_owners(metadata: SharedObject) -> Object | None:
    """The metadata without references to our kinds, which an annotation keeps; None if there are none."""
    references = metadata.get("ownerReferences") or ()
    ours = [each for each in references if _is_ours(each)]
    if not ours:
        return None
    others = [each for each in references if not _is_ours(each)]
    kept = json.loads((metadata.get("annotations") or {}).get(OWNERS, "[]"))
    kept += [each for each in ours if each not in kept]
    return {"ownerReferences": others or None, "annotations": {OWNERS: json.dumps(kept)}}


def _policy(metadata: SharedObject) -> str:
    """The propagation policy with which an object was deleted, by its finalizers."""
    finalizers = metadata.get("finalizers") or ()
    if "foregroundDeletion" in finalizers:
        return "Foreground"
    return "Orphan" if "orphan" in finalizers else "Background"


def _is_ours(reference: Object) -> bool:
    return reference["apiVersion"].partition("/")[0] in _GROUPS


def _ours(object: SharedObject) -> bool:
    return any(map(_is_ours, object["metadata"].get("ownerReferences") or ()))
