"""The verbs of our kinds over a store, without the rest of a Kubernetes API.

Namespaces, accounts, roles and all other kinds are kube-apiserver's. What remains are the four kinds of the two groups
and the collection of those objects whose owners, of the same kinds, are gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import NoReturn

from sandpool.api.kinds import SANDPOOL
from sandpool.api.resource import Object
from sandpool.api.schema.crds import crd
from sandpool.engine.clock import Clock
from sandpool.kube.errors import NotFound
from sandpool.server.aggregated.handler import Authorized
from sandpool.server.auth.groups import MASTERS, authenticated
from sandpool.server.controllers.crds import from_crd
from sandpool.server.controllers.garbage_collector import GarbageCollector
from sandpool.server.controllers.owner_graph import Ref
from sandpool.server.controllers.system_client import SystemClient
from sandpool.server.http.server import AuditSink
from sandpool.server.registry.context import RegistryContext
from sandpool.server.request.handler import Handler
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.request.nonresource import NO_SUCH_RESOURCE, NonResourceHandler
from sandpool.server.request.subresources import Subresources
from sandpool.server.resources import Resource, ResourceTable
from sandpool.server.serving.inprocess import InProcessTransport
from sandpool.server.store.entry import Change
from sandpool.server.store.store import Store

log = logging.getLogger(__name__)

#: The groups that this server serves.
GROUPS = tuple(dict.fromkeys(type.group for type in SANDPOOL))


class KindsServer:
    """``start`` returns when requests can be served, ``stop`` when the collector has ended. The caller owns the store.

    ``find_namespace`` returns a namespace with its phase, or None.
    """

    def __init__(
        self,
        store: Store,
        find_namespace: Callable[[str], Object | None],
        clock: Clock,
        rng: Random,
        *,
        audit: AuditSink | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.audit = audit
        self.ready = False
        resources = self.resources = ResourceTable()
        for type in SANDPOOL:
            for resource in from_crd(crd(type)):
                resources.add(resource)
        context = RegistryContext(store, clock, rng, find_namespace)
        subresources = Subresources(context, _issues_no_tokens)
        self.collector = GarbageCollector(
            SystemClient(context, resources, subresources), clock, Random(0), partial=True
        )
        self.handler = Handler(
            context,
            resources,
            NonResourceHandler(resources, lambda: "", lambda: self.ready),
            Authorized(),
            _NoAdmission(),
            subresources,
            _reviews_nothing,
            _streams_nothing,
        )
        self._collecting: asyncio.Task[None] | None = None

    async def start(self, *, collecting: bool = True) -> None:
        self.store.ensure_revision()
        self.collector.start()
        self.store.observe(self._notice)
        if collecting:
            self._collecting = asyncio.create_task(self.collector.controller.run(), name="garbage collector")
        self.ready = True

    async def stop_collecting(self) -> None:
        """End the collector, which writes."""
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)

    async def stop(self) -> None:
        self.ready = False
        await self.stop_collecting()
        self.handler.close()

    def transport(self, name: str) -> InProcessTransport:
        """A transport in this process. ``name`` is the user and the user agent in the audit log."""
        user = authenticated(User(name, (MASTERS,)))
        return InProcessTransport(self.handler, user, clock=self.clock, audit=self.audit, user_agent=name)

    def _notice(self, resource: str, change: Change) -> None:
        self.collector.notice(change.type, Ref(resource, *change.entry.key), change.object)


class _NoAdmission:
    """Our kinds grant no permissions, so no write needs a check of its writer's."""

    def guard(self, user: User, resource: Resource) -> None:
        return None


def _issues_no_tokens(account: Object, request: Object) -> NoReturn:
    raise NotFound(NO_SUCH_RESOURCE)


def _reviews_nothing(user: User, resource: Resource, namespace: str, body: object) -> NoReturn:
    raise NotFound(NO_SUCH_RESOURCE)


async def _streams_nothing(request: ServerRequest, subresource: str, pod: Object) -> Response:
    raise NotFound(NO_SUCH_RESOURCE)
