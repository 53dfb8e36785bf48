"""Takes an installation out of a cluster again, in an order in which nobody makes anything anew.

The controller goes first, or it would refill its pools while they are deleted. Then the definitions, and with them all
objects of their kinds; Kubernetes collects the pods. Because of that nothing is done while somebody uses a sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION, DEPLOYMENT, NAMESPACE, SANDBOX, SANDBOX_CLAIM
from sandpool.api.kinds import SANDBOX_WARM_POOL as POOL
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import Clock, within
from sandpool.install.errors import InstallError
from sandpool.install.installer import Say, title, type_of
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound

_PATIENCE: Final = 120.0
_PAUSE: Final = 0.2
_SHOWN: Final = 5


class Remover:
    """``keep_kinds`` leaves the definitions, and so every sandbox, pool and claim, as they are. ``with_claims`` deletes
    them although they are in use."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        say: Say,
        *,
        dry_run: bool = False,
        keep_kinds: bool = False,
        with_claims: bool = False,
    ) -> None:
        self.client = client
        self.clock = clock
        self.say = say
        self.dry_run = dry_run
        self.keep_kinds = keep_kinds
        self.with_claims = with_claims

    async def remove(self, objects: Iterable[Object]) -> None:
        """These, given in the order in which they were installed. Raises ``InstallError``."""
        objects = list(objects)
        if not (self.keep_kinds or self.with_claims):
            await self._refuse_if_used()
        workloads = [each for each in objects if type_of(each) is DEPLOYMENT]
        kinds = [each for each in objects if type_of(each) is CUSTOM_RESOURCE_DEFINITION]
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
            await self._delete_if_empty(each)

    async def _refuse_if_used(self) -> None:
        claims = [_title(each) for each in await self._all(SANDBOX_CLAIM)]
        if claims:
            raise InstallError(
                f"these claims would lose their sandboxes: {_some(claims)}\n"
                "Delete them first, or say --with-claims, or keep everything but the controller with --keep-kinds"
            )
        alone = [_title(each) for each in await self._all(SANDBOX) if not _of_a_pool(each)]
        if alone:
            raise InstallError(
                f"these sandboxes belong to no pool and would be lost: {_some(alone)}\n"
                "Delete them first, or say --with-claims, or keep everything but the controller with --keep-kinds"
            )

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
        self.say(f"{title(object)} deleted{' (dry run)' if self.dry_run else ''}")

    async def _gone(self, kinds: list[Object]) -> None:
        """A definition goes when the last of its objects has gone."""
        if self.dry_run:
            return
        try:
            for each in kinds:
                await within(self.clock, _PATIENCE, self._missing(each["metadata"]["name"]))
        except TimeoutError:
            raise InstallError(
                f"the kinds were not gone within {_PATIENCE:g} s: objects of theirs have finalizers that nobody removes"
            ) from None

    async def _missing(self, name: str) -> None:
        while True:
            try:
                await self.client.get(CUSTOM_RESOURCE_DEFINITION, name)
            except NotFound:
                return
            await self.clock.sleep(_PAUSE)

    async def _delete_if_empty(self, space: Object) -> None:
        """What somebody else runs in the namespace stays."""
        name = space["metadata"]["name"]
        others = [each["metadata"]["name"] for each in (await self.client.list(DEPLOYMENT, name))["items"]]
        if others and not self.dry_run:
            self.say(f"{title(space)} kept: {_some(others)} run in it")
        else:
            await self._delete(space)


def _title(object: Object) -> str:
    return f"{object['metadata']['namespace']}/{object['metadata']['name']}"


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _of_a_pool(sandbox: Object) -> bool:
    """By group and kind, because older references carry an older version."""
    return any(
        each.get("controller") and each["kind"] == POOL.kind and each["apiVersion"].startswith(f"{POOL.group}/")
        for each in sandbox["metadata"].get("ownerReferences") or ()
    )
