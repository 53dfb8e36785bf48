"""Looking at a claim and at everything it depends on, as far as one is allowed to."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import TypeVar

from sandpool.api import labels
from sandpool.api.kinds import CORE_EVENT, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType
from sandpool.api.views import ClaimView, SandboxView, WarmPoolView
from sandpool.explain.observed import Observed, Told, failure_of, idle_containers, waits_before
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden, NotFound

T = TypeVar("T")


async def observe_claim(client: Client, namespace: str, name: str, now: datetime) -> Observed:
    """Raises ``NotFound`` or ``Forbidden`` for the claim alone; what else may not be read is in ``unseen``."""
    claim = ClaimView.from_object(await client.get(SANDBOX_CLAIM, name, namespace))
    look = _Look(client, namespace)
    pool = await look.at(SANDBOX_WARM_POOL, claim.warm_pool)
    pool_view = None if pool is None else WarmPoolView.from_object(pool)
    template = None if pool_view is None else await look.at(SANDBOX_TEMPLATE, pool_view.template)
    sandbox = await _sandbox(look, claim)
    pod = None if sandbox is None or sandbox.ready else await look.at(POD, sandbox.pod_name)
    names = dict.fromkeys([claim.name, *([] if sandbox is None else [sandbox.name, sandbox.pod_name])])
    events = [event for about in names for event in await look.among(CORE_EVENT, fields=f"involvedObject.name={about}")]
    others: list[Object] = []
    if sandbox is None and not claim.sandbox_name:
        others = await look.among(SANDBOX_CLAIM)
    told = [Told.from_object(event) for event in events]
    return Observed(
        now,
        claim,
        pool_view,
        template is not None,
        sandbox,
        () if pod is None else idle_containers(pod),
        "" if pod is None else failure_of(pod),
        tuple(sorted(told, key=lambda event: event.at or now)),
        sum(waits_before(ClaimView.from_object(other), claim) for other in others),
        frozenset(look.unseen),
    )


async def _sandbox(look: _Look, claim: ClaimView) -> SandboxView | None:
    """The one that the claim names. Between the binding and the claim's status only the sandbox knows whose it is."""
    name = claim.sandbox_name or claim.annotations.get(labels.SANDBOX_NAME)
    found = [await look.at(SANDBOX, name)] if name else await look.among(SANDBOX, f"{labels.CLAIM_UID}={claim.uid}")
    return next((SandboxView.from_object(each) for each in found if each is not None), None)


class _Look:
    """Reads in one namespace, and remembers what it may not read."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.unseen: set[str] = set()

    async def at(self, type: ResourceType, name: str) -> Object | None:
        """One object; None if there is none, or none to be seen."""
        if not name:
            return None
        return await self._allowed(type, self._client.get(type, name, self._namespace))

    async def among(self, type: ResourceType, selector: str = "", *, fields: str = "") -> list[Object]:
        listed = await self._allowed(
            type, self._client.list(type, self._namespace, label_selector=selector, field_selector=fields)
        )
        return [] if listed is None else list(listed["items"])

    async def _allowed(self, type: ResourceType, reading: Awaitable[T]) -> T | None:
        try:
            return await reading
        except NotFound:
            return None
        except Forbidden:
            self.unseen.add(type.plural)
            return None
