"""The embedded API server: wires the store, the request handler and the server's own controllers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Protocol

from sandpool.api.kinds import NODE, POD, SANDBOX, SECRET, SERVICE_ACCOUNT
from sandpool.api.labels import ASLEEP_SINCE
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.engine.clock import Clock, SystemClock
from sandpool.engine.controller import Controller
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound, ServiceUnavailable
from sandpool.kube.pod_access import PodAccess
from sandpool.server.auth.authenticator import Authenticator
from sandpool.server.auth.groups import authenticated
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.auth.rbac_source import StoreRuleSource
from sandpool.server.auth.service_accounts import ServiceAccountTokens
from sandpool.server.auth.token_request import token_request
from sandpool.server.auth.tokens import ADMIN, StaticTokens
from sandpool.server.bootstrap import bootstrap, service_account_key
from sandpool.server.builtin import built_in_resources
from sandpool.server.controllers.crds import CrdController
from sandpool.server.controllers.garbage_collector import GarbageCollector
from sandpool.server.controllers.namespaces import NamespaceController
from sandpool.server.controllers.node_lifecycle import NodeLifecycle
from sandpool.server.controllers.owner_graph import Ref
from sandpool.server.controllers.pod_gc import PodGC
from sandpool.server.controllers.system_client import SystemClient
from sandpool.server.http.server import AuditSink
from sandpool.server.registry.context import RegistryContext
from sandpool.server.request.admission import Admission
from sandpool.server.request.handler import Handler
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.request.nonresource import NonResourceHandler
from sandpool.server.request.reviews import Reviews
from sandpool.server.request.subresources import Subresources
from sandpool.server.resources import Resource, ResourceTable
from sandpool.server.serving.inprocess import InProcessTransport
from sandpool.server.serving.inprocess_pods import InProcessPodClient
from sandpool.server.serving.pki import Identity
from sandpool.server.store.entry import Change
from sandpool.server.store.journal import Journal
from sandpool.server.store.store import Store
from sandpool.service.waking import WakeFailed, Waker, is_asleep

log = logging.getLogger(__name__)

_BOUND_KINDS = {type.kind: type.group_resource for type in (SERVICE_ACCOUNT, POD, SECRET, NODE)}


class ServerController(Protocol):
    """A controller that the server runs itself."""

    @property
    def controller(self) -> Controller[Any]: ...

    @property
    def resources(self) -> Container[str] | None:
        """The resources whose changes it handles now; None: all."""

    def start(self) -> None:
        """Read existing objects. No change is committed between this and the first call of ``notice``."""

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """Handle a committed change."""


class ApiServer:
    """One server over one data directory, for clients in the same process; ``serving.daemon`` adds HTTPS.

    ``start`` returns when the server is ready, ``stop`` when everything is on disk and released. ``open_store`` opens
    the store; the default is a journal in the data directory. ``nodeless`` are nodes whose pods stay although they have
    no Node; None disables the pod GC and node lifecycle controllers.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        audit: AuditSink | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        root_ca: str | None = None,
        kubelet_client: Callable[[], Identity] | None = None,
        open_store: Callable[[Path], Store] | None = None,
        nodeless: Container[str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.audit = audit
        self.clock = clock or SystemClock()
        self.rng = rng or SystemRandom()
        self.root_ca = root_ca  # PEM; published in every namespace
        self.kubelet_client = kubelet_client  # client certificate towards kubelets; None: contact none
        self.open_store = open_store or _durable_store
        self.nodeless = nodeless
        self.address = ""  # host:port, once the HTTP server listens
        self.ready = False
        self.pod_access: PodAccess | None = None  # to pods that run in this process
        self.waker: Waker | None = None  # resumes sandboxes that sleep, for a request to their pods
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        store = self.open_store(self.data_dir)
        try:
            self._assemble(store)
            await self._begin()
        except BaseException:
            await store.close()
            raise

    async def _begin(self) -> None:
        # Nothing is committed between these lines, so the controllers miss no change.
        for each in self.controllers.values():
            each.start()
        self.store.observe(self._notice)
        await bootstrap(self.objects, self.root_ca)
        self._tasks = [self._run(each.controller.run(), name) for name, each in self.controllers.items()]
        self.ready = True

    async def stop(self) -> None:
        self.ready = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.handler.close()
        await self.store.close()

    def client(self, user: User = ADMIN, *, name: str = "sandpool") -> Client:
        """A client in this process, acting as a user. ``name`` is the user agent and the field manager."""
        user = authenticated(user)
        transport = InProcessTransport(self.handler, user, clock=self.clock, audit=self.audit, user_agent=name)
        return Client(transport, field_manager=name)

    def pod_client(self, user: User = ADMIN, *, name: str = "sandpool") -> InProcessPodClient:
        """Access to pods in this process, acting as a user. Close it when its last session has ended."""
        transport = InProcessTransport(
            self.handler, authenticated(user), clock=self.clock, audit=self.audit, user_agent=name
        )
        return InProcessPodClient(transport)

    def _assemble(self, store: Store) -> None:
        self.store = store
        self.resources = ResourceTable()
        for resource in built_in_resources():
            self.resources.add(resource)
        context = RegistryContext(store, self.clock, self.rng)
        self.service_accounts = ServiceAccountTokens(service_account_key(self.data_dir), self._find, clock=self.clock)
        self.tokens = StaticTokens()
        self.authenticator = Authenticator(self.tokens, self.service_accounts, clock=self.clock)
        self.authorizer = RbacAuthorizer(StoreRuleSource(store))
        subresources = Subresources(
            context, lambda account, request: token_request(request, account, self.service_accounts)
        )
        self.objects = SystemClient(context, self.resources, subresources)
        # For the jitter of retries only. A generator of its own keeps names and uids independent of failures.
        rng = Random(0)
        self.crds = CrdController(self.objects, self.clock, rng, self._publish)
        self.collector = GarbageCollector(self.objects, self.clock, rng)
        self.namespaces = NamespaceController(self.objects, self.clock, rng, self.root_ca)
        self.controllers: dict[str, ServerController] = {
            "CRD controller": self.crds,
            "garbage collector": self.collector,
            "namespace controller": self.namespaces,
        }
        if self.nodeless is not None:
            self.controllers["pod GC"] = PodGC(self.objects, self.clock, rng, self.nodeless)
            self.controllers["node lifecycle controller"] = NodeLifecycle(self.objects, self.clock, rng)
        self._selective = [each for each in self.controllers.values() if each is not self.collector]
        self.handler = Handler(
            context,
            self.resources,
            NonResourceHandler(self.resources, lambda: self.address, lambda: self.ready),
            self.authorizer,
            Admission(self.authorizer),
            subresources,
            Reviews(self.authenticator, self.authorizer, self.clock).answer,
            self._stream,
            self._wake_pod,
        )

    async def _stream(self, request: ServerRequest, subresource: str, pod: Object) -> Response:
        # Imported on first use: it needs a library that most servers never use.
        from sandpool.server.streams.kubelet_proxy import KubeletProxy
        from sandpool.server.streams.pods import PodStreams

        identity = self.kubelet_client
        kubelets = None if identity is None else KubeletProxy(lambda name: self._find(NODE.kind, "", name), identity)
        streams = PodStreams(self.clock, self.pod_access, kubelets, self._awake)
        if subresource.startswith("proxy"):
            if subresource != "proxy/stats/summary":
                raise NotFound("only /stats/summary of a node is served")
            return await streams.node_stats(pod)
        return await streams.answer(request, subresource, pod)

    async def _wake_pod(self, key: Key) -> None:
        """Resume the sandbox of a pod if it sleeps, or wait for it while it is resumed for another request. A sandbox
        and its pod have the same name."""
        if self.waker is None:
            return
        if not self.waker.is_waking(key):
            entry = self.store.get(SANDBOX.group_resource, key)
            if entry is None or ASLEEP_SINCE.encode() not in entry.encoded or not is_asleep(entry.decode()):
                return
        try:
            await self.waker.wake(*key)
        except WakeFailed as error:
            raise ServiceUnavailable(f'the sandbox of pod "{key.name}" sleeps, and {error.message}') from error

    async def _awake(self, pod: SharedObject) -> SharedObject:
        """The pod of a sandbox that fell asleep, or that falls asleep at this moment, after it was resumed."""
        key = Key.of(pod)
        await self._wake_pod(key)
        entry = self.store.get(POD.plural, key)
        if entry is None:
            raise NotFound(f'pods "{key.name}" not found')
        return entry.decode()

    def _find(self, kind: str, namespace: str, name: str) -> Object | None:
        """The current state of an object that a service account token or a pod refers to."""
        entry = self.store.get(_BOUND_KINDS[kind], Key(namespace, name))
        return entry.decode() if entry is not None else None

    def _publish(self, name: str, resources: list[Resource]) -> None:
        self.resources.replace(name, resources)
        self.collector.kinds_changed()

    def _notice(self, resource: str, change: Change) -> None:
        ref, obj = Ref(resource, *change.entry.key), change.entry.decode()
        self.collector.notice(change.type, ref, obj, change.previous.kept if change.previous is not None else None)
        for each in self._selective:
            resources = each.resources
            if resources is None or resource in resources:
                each.notice(change.type, ref, obj)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_report_end)
        return task


def _durable_store(data_dir: Path) -> Store:
    journal = Journal(data_dir)
    try:
        return Store(journal)
    except BaseException:
        journal.close()
        raise


def _report_end(task: asyncio.Task[None]) -> None:
    """Log the failure of a controller: it must never end by itself."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("%s has stopped", task.get_name(), exc_info=task.exception())
