"""Install objects into a cluster with server-side apply, one after the other, and report each result.

Installing is idempotent. Fields that another field manager has changed cause a conflict; ``force`` takes them over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from sandpool.api.kinds import (
    API_SERVICE,
    BUILT_IN,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    SERVICE,
    STATEFUL_SET,
)
from sandpool.api.resource import Object, ResourceType, SharedObject
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
_TIMEOUT: Final = 60.0  # seconds until accepted definitions must be served, and deleted objects gone
_PAUSE: Final = 0.2
_TYPES: Final = {
    (type.api_version, type.kind): type
    for type in (*BUILT_IN, API_SERVICE, FLOW_SCHEMA, SERVICE_MONITOR, PROMETHEUS_RULE)
}

# Objects of the Go controller that Sandpool does not use: permissions of the service account, and the Service of the
# conversion webhook.
_FORMER: Final = (
    manifest(CLUSTER_ROLE_BINDING, "agent-sandbox-controller-extensions"),
    manifest(CLUSTER_ROLE, "agent-sandbox-controller-extensions"),
    manifest(SERVICE, "agent-sandbox-webhook-service", names.NAMESPACE),
)

Report = Callable[[str], None]


def type_of(object: Object) -> ResourceType:
    return _TYPES[object["apiVersion"], object["kind"]]


def title(object: Object) -> str:
    """The name as kubectl prints it: ``deployment.apps/agent-sandbox-controller``."""
    type = type_of(object)
    return f"{'.'.join(filter(None, (type.singular, type.group)))}/{object['metadata']['name']}"


class Installer:
    """``report`` gets a line for every step. With ``dry_run`` the API validates every request and changes nothing."""

    def __init__(
        self, client: Client, clock: Clock, report: Report, *, dry_run: bool = False, force: bool = False
    ) -> None:
        self.client = client
        self.clock = clock
        self.report = report
        self.dry_run = dry_run
        self.force = force

    async def install(self, objects: Iterable[Object]) -> None:
        """Install the objects in this order.

        Raises ``InstallError``, if possible before the first change. After a later error the reported steps are done.
        """
        objects = list(objects)
        defined = [each for each in objects if type_of(each) is CUSTOM_RESOURCE_DEFINITION]
        await check_fit(self.client, defined)
        for each in defined:
            await definitions.check(self.client, each, force=self.force)
        for each in objects:
            if type_of(each) is DEPLOYMENT and not self.force:
                await self._refuse_foreign(each)
        if self.force and defined:  # before their version is removed; a missing webhook may block our kinds
            await renew_owners(self.client, self.report, dry_run=self.dry_run, tolerate=(InternalError,))
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
            if defined and not self.dry_run:
                await renew_owners(self.client, self.report)

    async def _install(self, object: Object) -> None:
        if type_of(object) is FLOW_SCHEMA and not await self._has_flows():
            return self._report(object, "skipped, the cluster does not have the kind")
        present = await self._present(object)
        if present is not None and type_of(object) is DEPLOYMENT and not is_ours(present):
            await self._delete_foreign(object, present)
            present = None
            if self.dry_run:  # the old Deployment still exists, so the API cannot validate the new one
                return self._report(object, "created")
        if present is not None and type_of(object) is STATEFUL_SET and _is_other_policy(object, present):
            await self._delete_keeping_pods(object, present)
            present = None
            if self.dry_run:
                return self._report(object, "created")
        if present is not None and type_of(object) is CUSTOM_RESOURCE_DEFINITION and definitions.converts(present):
            if self.dry_run:  # the webhook still exists, too
                return self._report(object, "configured")
            await definitions.take_over(self.client, present, self.report)
        answer = await self._apply(object)
        return self._report(
            object, "created" if present is None else "unchanged" if _same(present, answer) else "configured"
        )

    def _report(self, object: Object, verb: str) -> None:
        self.report(f"{title(object)} {verb}{' (dry run)' if self.dry_run else ''}")

    async def _present(self, object: Object) -> SharedObject | None:
        metadata = object["metadata"]
        try:
            return await self.client.get(type_of(object), metadata["name"], metadata.get("namespace"))
        except NotFound:
            return None

    async def _apply(self, object: Object) -> SharedObject | None:
        """Apply an object. Returns None in a dry run if its namespace does not exist yet."""
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
                f"{title(object)} has fields of other field managers: {conflict}\n--force takes over these fields"
            ) from None
        except NotFound as error:
            if type_of(object) in (SERVICE_MONITOR, PROMETHEUS_RULE):
                raise InstallError(
                    f"{title(object)}: the cluster does not have the kind; install the Prometheus operator first"
                ) from None
            if self.dry_run:  # its namespace would have been created before
                return None
            raise InstallError(f"{title(object)}: {error}") from None

    async def _has_flows(self) -> bool:
        """Older clusters do not serve this version of FlowSchema; the installation works without it."""
        try:
            await self.client.list(FLOW_SCHEMA, limit=1)
        except NotFound:
            return False
        return True

    async def _refuse_foreign(self, object: Object) -> None:
        present = await self._present(object)
        if present is not None and not is_ours(present):
            raise InstallError(
                f"{title(object)} belongs to another installation\n"
                "--force replaces it; sandboxes, pools and claims stay"
            )

    async def _delete_foreign(self, object: Object, present: SharedObject) -> None:
        """Delete a Deployment of another installation.

        It may set container fields that we do not set, and apply would keep them. Its pods release the lease when they
        end.
        """
        metadata = present["metadata"]
        await self.client.delete(
            DEPLOYMENT,
            metadata["name"],
            metadata["namespace"],
            uid=metadata["uid"],
            propagation_policy="Background",
            dry_run=self.dry_run,
        )
        self._report(object, "of another installation deleted")

    async def _delete_keeping_pods(self, object: Object, present: SharedObject) -> None:
        """Delete a StatefulSet that cannot be changed as needed. Its pods run on; the new one takes them over."""
        metadata = present["metadata"]
        with suppress(NotFound):
            await self.client.delete(
                STATEFUL_SET,
                metadata["name"],
                metadata["namespace"],
                uid=metadata["uid"],
                propagation_policy="Orphan",
                dry_run=self.dry_run,
            )
        if not self.dry_run:
            try:
                await within(self.clock, _TIMEOUT, self._gone(object, metadata["uid"]))
            except TimeoutError:
                raise InstallError(
                    f"{title(object)} is deleted without its pods, and still exists after {_TIMEOUT:g} s: the garbage "
                    "collector of the cluster has to release its pods. Run this command again"
                ) from None
        self._report(object, "deleted, without its pods, because its podManagementPolicy cannot be changed")

    async def _gone(self, object: Object, uid: str) -> None:
        while (present := await self._present(object)) is not None and present["metadata"]["uid"] == uid:
            await self.clock.sleep(_PAUSE)

    async def _remove_former(self) -> None:
        for each in _FORMER:
            metadata = each["metadata"]
            with suppress(NotFound):
                await self.client.delete(
                    type_of(each), metadata["name"], metadata.get("namespace"), dry_run=self.dry_run
                )
                self._report(each, "of another installation deleted")

    async def _served(self, defined: list[Object]) -> None:
        if self.dry_run:
            return
        try:
            await within(self.clock, _TIMEOUT, definitions.served(self.client, self.clock, defined))
        except TimeoutError:
            raise InstallError(
                f"the cluster accepted the kinds but did not serve them within {_TIMEOUT:g} s; "
                "kubectl describe crd sandboxes.agents.x-k8s.io says why"
            ) from None
        self.report(f"{len(defined)} kinds are served")


def is_ours(present: SharedObject) -> bool:
    """Whether ``sandpool install`` has written an object: made it, or taken it over."""
    return any(each["manager"] == FIELD_MANAGER for each in present["metadata"].get("managedFields") or ())


def _is_other_policy(wanted: Object, present: SharedObject) -> bool:
    """Whether a StatefulSet has another policy, which the API does not let anyone change."""
    name, default = "podManagementPolicy", "OrderedReady"
    return bool(wanted["spec"].get(name, default) != present["spec"].get(name, default))


def _same(before: SharedObject, after: SharedObject | None) -> bool:
    """Compare without the fields that every write changes; a dry run returns the old resourceVersion."""
    return after is not None and _content(before) == _content(after)


def _content(object: SharedObject) -> Object:
    metadata = {
        key: value
        for key, value in object["metadata"].items()
        if key not in ("managedFields", "resourceVersion", "generation")
    }
    return {**{key: value for key, value in object.items() if key != "status"}, "metadata": metadata}
