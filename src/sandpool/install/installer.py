"""Puts objects into a cluster by server-side apply, one after the other, and says of each what became of it.

Doing it again does nothing. What others have changed since is theirs: it is a conflict, and ``force`` takes it over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from sandpool.api.kinds import (
    BUILT_IN,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    SERVICE,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import Clock, within
from sandpool.install import definitions, names
from sandpool.install.errors import InstallError
from sandpool.install.fit import check_fit
from sandpool.install.flow import FLOW_SCHEMA
from sandpool.install.monitoring import PROMETHEUS_RULE, SERVICE_MONITOR
from sandpool.install.owners import renew_owners
from sandpool.install.workload import manifest
from sandpool.kube.client import ApplyPatch, Client
from sandpool.kube.errors import Conflict, InternalError, NotFound

FIELD_MANAGER: Final = "sandpool-install"
_PATIENCE: Final = 60.0  # seconds for a cluster to do what it has accepted
_TYPES: Final = {
    (type.api_version, type.kind): type for type in (*BUILT_IN, FLOW_SCHEMA, SERVICE_MONITOR, PROMETHEUS_RULE)
}

# What an installation of the Go controller has besides: rights of our service account that we do not need, and the
# Service of a webhook that nobody asks any more.
_FORMER: Final = (
    manifest(CLUSTER_ROLE_BINDING, "agent-sandbox-controller-extensions"),
    manifest(CLUSTER_ROLE, "agent-sandbox-controller-extensions"),
    manifest(SERVICE, "agent-sandbox-webhook-service", names.NAMESPACE),
)

Say = Callable[[str], None]


def type_of(object: Object) -> ResourceType:
    return _TYPES[object["apiVersion"], object["kind"]]


def title(object: Object) -> str:
    """As kubectl writes it: ``deployment.apps/agent-sandbox-controller``."""
    type = type_of(object)
    return f"{'.'.join(filter(None, (type.singular, type.group)))}/{object['metadata']['name']}"


class Installer:
    """``say`` is told line by line what is done. With ``dry_run`` the API is asked what it would do."""

    def __init__(self, client: Client, clock: Clock, say: Say, *, dry_run: bool = False, force: bool = False) -> None:
        self.client = client
        self.clock = clock
        self.say = say
        self.dry_run = dry_run
        self.force = force

    async def install(self, objects: Iterable[Object]) -> None:
        """In this order. Raises ``InstallError`` with what to do: before anything is done if it can be seen by then;
        otherwise what was said to be done is done."""
        objects = list(objects)
        defined = [each for each in objects if type_of(each) is CUSTOM_RESOURCE_DEFINITION]
        await check_fit(self.client, defined)
        for each in defined:
            await definitions.check(self.client, each, force=self.force)
        for each in objects:
            if type_of(each) is DEPLOYMENT and not self.force:
                await self._refuse_foreign(each)
        if self.force:  # before the version goes that they name; a webhook that is away may be in the way of our kinds
            await renew_owners(self.client, self.say, dry_run=self.dry_run, tolerate=(InternalError,))
        waited = False
        for each in objects:
            if defined and not waited and type_of(each) not in (NAMESPACE, CUSTOM_RESOURCE_DEFINITION):
                await self._served(defined)
                waited = True
            await self._install(each)
        if defined and not waited:
            await self._served(defined)
        if self.force:
            await self._remove_former()
            if not self.dry_run:
                await renew_owners(self.client, self.say)

    async def _install(self, object: Object) -> None:
        if type_of(object) is FLOW_SCHEMA and not await self._has_flows():
            return self._tell(object, "left out, the cluster has no such kind")
        present = await self._present(object)
        if present is not None and type_of(object) is DEPLOYMENT and not _is_ours(present):
            await self._make_room(object, present)
            present = None
            if self.dry_run:  # it is still there, so the API cannot say
                return self._tell(object, "created")
        if present is not None and type_of(object) is CUSTOM_RESOURCE_DEFINITION and definitions.converts(present):
            if self.dry_run:  # and so is the webhook
                return self._tell(object, "configured")
            await definitions.take_over(self.client, present, self.say)
        answer = await self._apply(object)
        return self._tell(
            object, "created" if present is None else "unchanged" if _same(present, answer) else "configured"
        )

    def _tell(self, object: Object, verb: str) -> None:
        self.say(f"{title(object)} {verb}{' (dry run)' if self.dry_run else ''}")

    async def _present(self, object: Object) -> Object | None:
        metadata = object["metadata"]
        try:
            return await self.client.get(type_of(object), metadata["name"], metadata.get("namespace"))
        except NotFound:
            return None

    async def _apply(self, object: Object) -> Object | None:
        """None if the API cannot say, because nothing is there yet that the object would be in."""
        metadata = object["metadata"]
        try:
            return await self.client.patch(
                type_of(object),
                metadata["name"],
                ApplyPatch(object),
                metadata.get("namespace"),
                field_manager=FIELD_MANAGER,
                force=self.force,
                dry_run=self.dry_run,
                field_validation="Strict",
            )
        except Conflict as conflict:
            raise InstallError(
                f"{title(object)} was changed by others: {conflict}\n--force takes over what they changed"
            ) from None
        except NotFound as error:
            if type_of(object) in (SERVICE_MONITOR, PROMETHEUS_RULE):
                raise InstallError(
                    f"{title(object)}: the cluster has no such kind; install the Prometheus operator first"
                ) from None
            if self.dry_run:  # its namespace would have been made before
                return None
            raise InstallError(f"{title(object)}: {error}") from None

    async def _has_flows(self) -> bool:
        """Older clusters have none that we could write, and do without."""
        try:
            await self.client.list(FLOW_SCHEMA, limit=1)
        except NotFound:
            return False
        return True

    async def _refuse_foreign(self, object: Object) -> None:
        present = await self._present(object)
        if present is not None and not _is_ours(present):
            raise InstallError(
                f"{title(object)} belongs to another installation\n"
                "--force replaces it; sandboxes, pools and claims stay"
            )

    async def _make_room(self, object: Object, present: Object) -> None:
        """A Deployment of somebody else may say things about the container that we do not know of, and apply would
        keep them. So it goes as a whole. Its pods release the lease when they end."""
        metadata = present["metadata"]
        await self.client.delete(
            DEPLOYMENT,
            metadata["name"],
            metadata["namespace"],
            uid=metadata["uid"],
            propagation_policy="Background",
            dry_run=self.dry_run,
        )
        self._tell(object, "of another installation deleted")

    async def _remove_former(self) -> None:
        for each in _FORMER:
            metadata = each["metadata"]
            with suppress(NotFound):
                await self.client.delete(
                    type_of(each), metadata["name"], metadata.get("namespace"), dry_run=self.dry_run
                )
                self._tell(each, "of another installation deleted")

    async def _served(self, defined: list[Object]) -> None:
        if self.dry_run:
            return
        try:
            await within(self.clock, _PATIENCE, definitions.served(self.client, self.clock, defined))
        except TimeoutError:
            raise InstallError(
                f"the cluster has accepted the kinds but did not serve them within {_PATIENCE:g} s; "
                "kubectl describe crd sandboxes.agents.x-k8s.io says why"
            ) from None
        self.say(f"{len(defined)} kinds are served")


def _is_ours(present: Object) -> bool:
    return any(each["manager"] == FIELD_MANAGER for each in present["metadata"].get("managedFields") or ())


def _same(before: Object, after: Object | None) -> bool:
    """A dry run answers with what it would write, under the old version."""
    return after is not None and _content(before) == _content(after)


def _content(object: Object) -> Object:
    metadata = {
        key: value
        for key, value in object["metadata"].items()
        if key not in ("managedFields", "resourceVersion", "generation")
    }
    return {**{key: value for key, value in object.items() if key != "status"}, "metadata": metadata}
