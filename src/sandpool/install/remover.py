"""Remove an installation from a cluster.

The controller is deleted first, or it would refill pools while they are deleted. The CustomResourceDefinitions follow,
and with them all their objects; the garbage collector deletes the pods. Therefore the removal is refused while
sandboxes are in use.

Behind an aggregated API server the order is another: only as long as that server runs does the garbage collector learn
that the owners of pods are gone. So all objects are deleted first, and the server after their last pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from sandpool.api.kinds import (
    API_SERVICE,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    STATEFUL_SET,
)
from sandpool.api.kinds import SANDBOX_WARM_POOL as POOL
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import Clock, within
from sandpool.install.errors import InstallError
from sandpool.install.installer import Report, is_ours, title, type_of
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound

_TIMEOUT: Final = 120.0
_PAUSE: Final = 0.2
_SHOWN: Final = 5


class Remover:
    """Removes an installation.

    ``keep_kinds`` keeps the definitions, and with them every sandbox, pool and claim. ``with_claims`` deletes sandboxes
    that are in use.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        report: Report,
        *,
        dry_run: bool = False,
        keep_kinds: bool = False,
        with_claims: bool = False,
    ) -> None:
        self.client = client
        self.clock = clock
        self.report = report
        self.dry_run = dry_run
        self.keep_kinds = keep_kinds
        self.with_claims = with_claims

    async def remove(self, objects: Iterable[Object]) -> None:
        """Delete the objects, given in the order of their installation. Raises ``InstallError``.

        Objects of these names that another tool has made are kept."""
        objects = [each for each in objects if await self._is_installed(each)]
        workloads = [each for each in objects if type_of(each) in (DEPLOYMENT, STATEFUL_SET)]
        kinds = [each for each in objects if type_of(each) in (CUSTOM_RESOURCE_DEFINITION, API_SERVICE)]
        if kinds and not (self.keep_kinds or self.with_claims):
            await self._refuse_if_used()
        aggregated = any(type_of(each) is API_SERVICE for each in kinds)
        if aggregated and not self.keep_kinds:
            await self._empty()
        spaces = [each for each in objects if type_of(each) is NAMESPACE]
        rest = [each for each in objects if each not in (*workloads, *kinds, *spaces)]
        for each in workloads:
            await self._delete(each)
        if not self.keep_kinds:
            for each in kinds:
                await self._delete(each)
            await self._gone(kinds)
        for each in reversed(rest):
            await self._delete(each)
        for each in spaces:
            if aggregated and self.keep_kinds:
                self.report(f"{title(each)} kept: it contains the volume with the sandboxes")
            else:
                await self._delete_if_empty(each)

    async def _is_installed(self, object: Object) -> bool:
        metadata = object["metadata"]
        try:
            present = await self.client.get(type_of(object), metadata["name"], metadata.get("namespace"))
        except NotFound:
            return False
        if not is_ours(present):
            self.report(f"{title(object)} kept: `sandpool install` did not make it")
            return False
        return True

    async def _refuse_if_used(self) -> None:
        claims = [_title(each) for each in await self._all(SANDBOX_CLAIM)]
        if claims:
            raise InstallError(
                f"these claims would lose their sandboxes: {_some(claims)}\n"
                "Delete them first, pass --with-claims, or keep everything but the controller with --keep-kinds"
            )
        alone = [_title(each) for each in await self._all(SANDBOX) if not _of_a_pool(each)]
        if alone:
            raise InstallError(
                f"these sandboxes belong to no pool and would be deleted: {_some(alone)}\n"
                "Delete them first, pass --with-claims, or keep everything but the controller with --keep-kinds"
            )

    async def _empty(self) -> None:
        """Delete all objects of our kinds, pools first, and wait until their pods are gone."""
        for type in (POOL, SANDBOX_CLAIM, SANDBOX, SANDBOX_TEMPLATE):
            found = await self._all(type)
            for each in found if not self.dry_run else ():
                metadata = each["metadata"]
                with suppress(NotFound):
                    await self.client.delete(
                        type, metadata["name"], metadata["namespace"], propagation_policy="Background"
                    )
            if found:
                self.report(f"{len(found)} {type.plural} deleted{' (dry run)' if self.dry_run else ''}")
        if self.dry_run:
            return
        try:
            await within(self.clock, _TIMEOUT, self._without_pods())
        except TimeoutError:
            raise InstallError(
                f"pods of sandboxes still exist after {_TIMEOUT:g} s: "
                f"kubectl get pods --all-namespaces --selector {SANDBOX_NAME_HASH}\n"
                "Nothing else was removed; run this command again when they are gone"
            ) from None

    async def _without_pods(self) -> None:
        while (await self.client.list(POD, label_selector=SANDBOX_NAME_HASH, limit=1))["items"]:
            await self.clock.sleep(_PAUSE)

    async def _all(self, type: ResourceType) -> list[Object]:
        try:
            items: list[Object] = (await self.client.list(type))["items"]
        except NotFound:
            return []
        return items

    async def _delete(self, object: Object) -> None:
        metadata = object["metadata"]
        try:
            await self.client.delete(
                type_of(object),
                metadata["name"],
                metadata.get("namespace"),
                propagation_policy="Background",
                dry_run=self.dry_run,
            )
        except NotFound:
            return
        self.report(f"{title(object)} deleted{' (dry run)' if self.dry_run else ''}")

    async def _gone(self, kinds: list[Object]) -> None:
        """Wait until the definitions are gone. A definition exists until its last object is deleted."""
        kinds = [each for each in kinds if type_of(each) is CUSTOM_RESOURCE_DEFINITION]
        if self.dry_run:
            return
        try:
            for each in kinds:
                await within(self.clock, _TIMEOUT, self._missing(each["metadata"]["name"]))
        except TimeoutError:
            raise InstallError(
                f"the kinds still exist after {_TIMEOUT:g} s: no controller removes finalizers of their objects"
            ) from None

    async def _missing(self, name: str) -> None:
        while True:
            try:
                await self.client.get(CUSTOM_RESOURCE_DEFINITION, name)
            except NotFound:
                return
            await self.clock.sleep(_PAUSE)

    async def _delete_if_empty(self, space: Object) -> None:
        """Delete the namespace unless other Deployments run in it."""
        name = space["metadata"]["name"]
        others = [each["metadata"]["name"] for each in (await self.client.list(DEPLOYMENT, name))["items"]]
        if others and not self.dry_run:
            self.report(f"{title(space)} kept: it also contains {_some(others)}")
        else:
            await self._delete(space)


def _title(object: Object) -> str:
    return f"{object['metadata']['namespace']}/{object['metadata']['name']}"


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _of_a_pool(sandbox: Object) -> bool:
    """Whether a pool owns a sandbox, compared by group and kind: older references name an older version."""
    return any(
        each.get("controller") and each["kind"] == POOL.kind and each["apiVersion"].startswith(f"{POOL.group}/")
        for each in sandbox["metadata"].get("ownerReferences") or ()
    )
