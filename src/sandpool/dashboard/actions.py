"""Actions of users: claim a sandbox, release it, suspend it, scale a pool, start a rollout and undo it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from aiohttp import web

from sandpool.dashboard import requests
from sandpool.dashboard.requests import BadRequest, body, number, object_name, text
from sandpool.dashboard.target import DashboardTarget
from sandpool.engine.clock import Clock, timestamp
from sandpool.service.pools import STRATEGIES
from sandpool.service.templates import TemplateChange

_MAX_REPLICAS: Final = 100_000
_LONGEST_WAIT: Final = 60.0
_MAX_MINUTES: Final = 60 * 24 * 366


class Actions:
    """Handlers that change objects. Each returns what the page needs to go on."""

    def __init__(self, target: DashboardTarget, clock: Clock) -> None:
        self.target = target
        self.clock = clock

    async def claim(self, request: web.Request) -> Any:
        """Claim a sandbox of a pool and wait until it is ready."""
        fields = await body(request)
        namespace = text(fields, "namespace")
        requests.check_namespace(namespace, self.target)
        minutes = number(fields, "minutes", 0, _MAX_MINUTES)
        end = self.clock.now() + timedelta(minutes=minutes)
        made = await self.target.service(namespace).claims.create(
            text(fields, "pool"),
            name=text(fields, "name", "") or None,
            shutdown_time=timestamp(end) if minutes else None,
            timeout=_LONGEST_WAIT,
        )
        return {"namespace": made.namespace, "name": made.name, "sandbox": made.sandbox}

    async def release(self, request: web.Request) -> Any:
        namespace, name = object_name(request, self.target)
        fields = await body(request)
        await self.target.service(namespace).claims.release(name, uid=text(fields, "uid"))
        return {}

    async def set_mode(self, request: web.Request) -> Any:
        """Suspend or resume a sandbox."""
        namespace, name = object_name(request, self.target)
        suspended = (await body(request)).get("suspended")
        if not isinstance(suspended, bool):
            raise BadRequest("suspended has to be true or false")
        sandboxes = self.target.service(namespace).sandboxes
        await (sandboxes.suspend if suspended else sandboxes.resume)(f"sandbox/{name}")
        return {}

    async def scale(self, request: web.Request) -> Any:
        namespace, name = object_name(request, self.target)
        replicas = number(await body(request), "replicas", 0, _MAX_REPLICAS)
        await self.target.service(namespace).pools.scale(name, replicas)
        return {}

    async def roll_out(self, request: web.Request) -> Any:
        """Change the template of a pool, and set how the pool follows it.

        The strategy is written first, because the pool follows a changed template at once. So the API checks the change
        before the strategy is switched, and a change that it refuses in spite of that switches the strategy back.
        """
        namespace, name = object_name(request, self.target)
        fields = await body(request)
        service = self.target.service(namespace)
        pool = await service.pools.get(name)
        strategy = text(fields, "strategy", pool.strategy)
        if strategy not in STRATEGIES:
            raise BadRequest(f"strategy has to be one of {', '.join(STRATEGIES)}")
        change = TemplateChange(
            *(text(fields, each) if each in fields else None for each in ("image", "cpu", "memory"))
        )
        await service.templates.change(pool.template, change, dry_run=True)
        if strategy != pool.strategy:
            await service.pools.set_strategy(name, strategy)
        try:
            await service.templates.change(pool.template, change)
        except Exception:
            if strategy != pool.strategy:
                await service.pools.set_strategy(name, pool.strategy)
            raise
        return {}

    async def undo(self, request: web.Request) -> Any:
        """Return to the template before the last change."""
        namespace, name = object_name(request, self.target)
        service = self.target.service(namespace)
        await service.templates.undo((await service.pools.get(name)).template)
        return {}
