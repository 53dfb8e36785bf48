"""Costs in a world: requests from the audit log of its API, and reconciles by key."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sandpool.api.resource import Key
from sandpool.engine.controller import Controller, Result
from sandpool.explain.audit import AuditedRequest
from sandpool.testing.world import World

CONTROLLERS = "controllers"


class Costs:
    """Costs of the controllers since the creation of this object. Watches are opened once and cost nothing
    afterwards."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._since = len(world.audited_requests(None))
        self.claim_reconciles = count_reconciles(world.controllers.claims.controller)
        self.sandbox_reconciles = count_reconciles(world.controllers.sandboxes.controller)

    def all(self, user: str | None = CONTROLLERS) -> list[AuditedRequest]:
        asked = self.world.audited_requests(None)[self._since :]
        return [each for each in asked if each.verb != "watch" and user in (None, each.user)]

    def about(self, *names: str) -> list[AuditedRequest]:
        """Return the requests for objects of these names, of any kind: a pod has the name of its sandbox."""
        return [each for each in self.all() if each.name in names]

    def events(self) -> list[AuditedRequest]:
        return [each for each in self.all() if each.resource == "events"]

    def reads(self) -> list[str]:
        return [str(each) for each in self.all() if not each.writes]

    def refused(self) -> list[str]:
        """Return the requests of all users that the API did not execute, with their codes."""
        return [f"{each.user}: {each} {each.code}" for each in self.all(None) if each.code >= 400]


def count_reconciles(controller: Controller[Key]) -> Counter[str]:
    """Count the reconciles of each key from now on, by name."""
    counts: Counter[str] = Counter()
    reconcile: Any = controller.reconcile

    async def counted(key: Key) -> Result:
        counts[key.name] += 1
        result: Result = await reconcile(key)
        return result

    controller.reconcile = counted
    return counts


def told(asked: list[AuditedRequest]) -> list[str]:
    return sorted(str(each) for each in asked)
