"""Read a claim and the objects it depends on, as far as permissions allow."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import TypeVar

from sandpool.api import labels
from sandpool.api.claim_policies import policy_advice
from sandpool.api.kinds import CORE_EVENT, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim.late_binding import opted_in
from sandpool.explain.observed import EventView, Observed, failure_of, frozen_since, idle_containers, waits_before
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden, NotFound

T = TypeVar("T")


async def observe_claim(client: Client, namespace: str, name: str, now: datetime) -> Observed:
    """Read the claim's state. Raises ``NotFound`` or ``Forbidden`` for the claim only; see ``Observed.unseen``."""
    claim = ClaimView.from_object(await client.get(SANDBOX_CLAIM, name, namespace))
    reader = Reader(client, namespace)
    pool = await reader.get(SANDBOX_WARM_POOL, claim.warm_pool)
    pool_view = None if pool is None else WarmPoolView.from_object(pool)
    found = None if pool_view is None else await reader.get(SANDBOX_TEMPLATE, pool_view.template)
    template = None if found is None else TemplateView.from_object(found)
    sandbox = await _sandbox(reader, claim)
    pod = None
    if sandbox is not None and (not sandbox.ready or _may_freeze(sandbox)):
        pod = await reader.get(POD, sandbox.pod_name)
    names = dict.fromkeys([claim.name, *([] if sandbox is None else [sandbox.name, sandbox.pod_name])])
    events = [
        event for about in names for event in await reader.find(CORE_EVENT, fields=f"involvedObject.name={about}")
    ]
    others: list[Object] = []
    if sandbox is None and not claim.sandbox_name:
        others = await reader.find(SANDBOX_CLAIM)
    views = [EventView.from_object(event) for event in events]
    return Observed(
        now,
        claim,
        pool_view,
        template is not None,
        sandbox,
        () if pod is None else idle_containers(pod),
        "" if pod is None else failure_of(pod),
        tuple(sorted(views, key=lambda event: event.at or now)),
        sum(waits_before(ClaimView.from_object(other), claim) for other in others),
        frozenset(reader.unseen),
        binds_late=template is not None and opted_in(template),
        policy_advice="" if template is None else policy_advice(claim, template),
        frozen_since="" if pod is None else frozen_since(pod),
    )


def _may_freeze(sandbox: SandboxView) -> bool:
    return labels.IDLE_FREEZE_AFTER in ((sandbox.pod_template.get("metadata") or {}).get("annotations") or {})


async def _sandbox(reader: Reader, claim: ClaimView) -> SandboxView | None:
    """The claim's sandbox. Between adoption and the claim's status update only the sandbox's label names the claim."""
    name = claim.sandbox_name or claim.annotations.get(labels.SANDBOX_NAME)
    found = [await reader.get(SANDBOX, name)] if name else await reader.find(SANDBOX, f"{labels.CLAIM_UID}={claim.uid}")
    return next((SandboxView.from_object(each) for each in found if each is not None), None)


class Reader:
    """Reads objects of one namespace and records the kinds that it may not read."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.unseen: set[str] = set()

    async def get(self, type: ResourceType, name: str) -> SharedObject | None:
        """One object; None if it does not exist or may not be read."""
        if not name:
            return None
        return await self._allowed(type, self._client.get(type, name, self._namespace))

    async def find(self, type: ResourceType, selector: str = "", *, fields: str = "") -> list[Object]:
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
