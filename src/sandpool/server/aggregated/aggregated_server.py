"""Our kinds behind a kube-apiserver: the store, the verbs, and everything that connects them with that cluster.

``start`` follows an order, because kube-controller-manager believes what this server says. First the server learns who
may ask and which namespaces exist, and checks that the volume belongs to this cluster (``volume``). Only then does it
listen. Until that moment kube-apiserver answers 503 for our kinds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from sandpool.api.kinds import API_SERVICES
from sandpool.engine.clock import Clock
from sandpool.engine.ratelimit import Backoff
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, Conflict
from sandpool.server.aggregated.authentication_config import AuthenticationConfig
from sandpool.server.aggregated.certificates import CHECK_SECONDS, ServingCertificate
from sandpool.server.aggregated.handler import ForwardedHandler
from sandpool.server.aggregated.kinds_server import GROUPS, KindsServer
from sandpool.server.aggregated.namespaces import NamespaceMirror
from sandpool.server.aggregated.registration import ApiServiceRegistration
from sandpool.server.aggregated.request_header import RequestHeaderAuthenticator, RequestHeaderConfig
from sandpool.server.aggregated.storage_move import AGGREGATED, COPIED, CRD, FROZEN, TO, MoveRecord
from sandpool.server.aggregated.subject_access import SubjectAccess
from sandpool.server.aggregated.volume import Volume
from sandpool.server.auth.impersonation import NoImpersonation
from sandpool.server.http import HttpLimits, HttpServer
from sandpool.server.http.server import AuditSink
from sandpool.server.serving.inprocess import InProcessTransport
from sandpool.server.store.store import Store

_log = logging.getLogger(__name__)

# All connections come from the few addresses of kube-apiserver, which opens one for each request in flight.
_LIMITS: Final = HttpLimits(strangers_per_address=1024)


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """``names`` are those by which kube-apiserver reaches the server, for its certificate."""

    data_dir: Path
    host: str = ""  # all addresses
    port: int = 6443
    names: tuple[str, ...] = ()
    namespace: str = ""  # in which a move of the storage is recorded; empty: it never moves
    accept_lost: bool = False  # serve although sandboxes of the cluster are not on the volume


class AggregatedServer:
    """``start`` returns when the server listens, ``stop`` when all is closed but the store. ``wait`` raises the failure
    of a part. ``leads`` tells whether this process may write."""

    def __init__(
        self,
        client: Client,
        store: Store,
        clock: Clock,
        rng: Random,
        options: ServingOptions,
        *,
        leads: Callable[[], bool] = lambda: True,
        audit: AuditSink | None = None,
        volume: Volume | None = None,
    ) -> None:
        """``client`` leads to kube-apiserver. Without a ``volume`` the cluster does not remember which one it has."""
        self.options = options
        self.port = options.port  # the actual port, once started
        self.waits_for = "the process is starting"  # empty once it serves
        self._client = client
        self._store = store
        self._clock = clock
        self._rng = rng
        self._leads = leads
        self._audit = audit
        self._volume = volume or Volume(options.data_dir, store)
        self._config = AuthenticationConfig(client, clock, rng)
        self._namespaces = NamespaceMirror(client, clock, rng)
        self._move = MoveRecord(client, options.namespace, clock, rng) if options.namespace else None
        self._certificate = ServingCertificate(options.data_dir / "pki", options.names, clock)
        self._kinds = KindsServer(store, self._namespaces.find, clock, rng, audit=audit)
        #: What kube-apiserver passes on goes here.
        self.handler = ForwardedHandler(
            self._kinds.handler, SubjectAccess(client, clock), self._namespaces, self._leads
        )
        self._frozen = False
        self._stack = AsyncExitStack()
        self._parts: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start. Raises ``WrongVolume``, and ``OSError`` if the port cannot be opened. Call ``stop`` in any case."""
        self._run(self._config.run())
        self._run(self._namespaces.run())
        self.waits_for = "kube-apiserver: its ConfigMap extension-apiserver-authentication"
        await self._config.found.wait()
        self.waits_for = "kube-apiserver: its namespaces"
        await self._namespaces.synced.wait()
        await self._take_in()
        self.waits_for = "kube-apiserver: which volume the cluster has"
        await self._check_volume()
        if self._move is not None:
            self._run(self._move_out(self._move))
        await self._kinds.start(collecting=not self.leaves)
        if self.leaves:  # a process before this one may have said that writes have ended
            await self.handler.freeze()
        self._stack.push_async_callback(self._kinds.stop)
        http = self._http()
        await http.start()
        self._stack.push_async_callback(http.stop)
        self.port = http.port
        registration = ApiServiceRegistration(self._client, API_SERVICES, self._certificate.ca, self._clock, self._rng)
        self._run(registration.run())
        self._run(self._renew(http, registration))
        self.waits_for = ""
        _log.info("serving %s on port %d", " and ".join(GROUPS), http.port)

    async def wait(self) -> None:
        """Wait until a part ends, which it does only by failing, and raise its failure."""
        done, _ = await asyncio.wait(self._parts, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()

    @property
    def leaves(self) -> bool:
        """Whether the storage moves away from here, so that nothing may be written."""
        return self._move is not None and self._move.data.get(TO) == CRD

    async def leaving(self) -> None:
        """Return when the storage begins to move away from here."""
        if self._move is None:
            await asyncio.Event().wait()
        else:
            await self._move.until(lambda data: data.get(TO) == CRD)

    async def freeze(self) -> None:
        """Refuse writes, and report when none is under way. The controllers have stopped."""
        self._frozen = True
        await self._kinds.stop_collecting()
        await self.handler.freeze()
        if self._move is not None:
            _log.info("writes have ended at revision %d, because the storage moves", self._store.revision)
            await self._move.report(FROZEN, str(self._store.revision))

    async def stop(self) -> None:
        if self._frozen:
            self._store.expire_watches()
        self.waits_for = "the process is stopping"
        await self._stack.aclose()

    def transport(self, name: str) -> InProcessTransport:
        """A transport to our kinds in this process. ``name`` is the user and the user agent in the audit log."""
        return self._kinds.transport(name)

    def _run(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(part)
        self._parts.append(task)
        self._stack.push_async_callback(_end, task)

    async def _take_in(self) -> None:
        """Take the objects in if the storage moves here."""
        if self._move is None:
            return
        self._run(self._move.run())
        self.waits_for = "kube-apiserver: whether the storage moves"
        await self._move.synced.wait()
        self.waits_for = "`sandpool storage move`: the custom resources to take in"
        await self._move.take_in(self._store, self.options.data_dir)

    async def _move_out(self, move: MoveRecord) -> None:
        """Have the cluster forget the volume when all its objects are custom resources."""
        await move.until(_has_moved_out)
        self._volume.move_out()
        await asyncio.Event().wait()

    async def _check_volume(self) -> None:
        """Check the volume as soon as kube-apiserver answers."""
        pauses: Backoff[None] = Backoff(self._rng, first=0.5, longest=10.0)
        while True:
            move = self._move.data if self._move is not None else {}
            if _has_moved_out(move):
                self._volume.move_out()
            try:
                return await self._volume.open(
                    self._client,
                    accept_lost=self.options.accept_lost,
                    moves=bool(move),
                    taken_in=move.get(TO) == AGGREGATED,
                )
            except Conflict:  # the lease was renewed or taken meanwhile
                continue
            except (ApiError, OSError) as error:
                _log.warning("kube-apiserver did not say which sandboxes the cluster has: %s", error)
            await self._clock.sleep(pauses.next_delay(None))

    def _http(self) -> HttpServer:
        config, certificate = self._config, self._certificate
        assert config.current is not None
        authenticator = RequestHeaderAuthenticator(config.current, self._clock)
        http = HttpServer(
            self.handler,
            authenticator,
            authorizer=NoImpersonation(),
            tls=certificate.tls(config.current.client_ca),
            limits=_LIMITS,
            host=self.options.host,
            port=self.options.port,
            audit=self._audit,
            clock=self._clock,
            superseded=lambda: self._store.superseded_bytes,
        )

        def follow(changed: RequestHeaderConfig) -> None:
            before, authenticator.config = authenticator.config, changed
            if changed.client_ca != before.client_ca:
                _log.info("the CA of the proxy has changed")
                http.replace_tls(certificate.tls(changed.client_ca), distrust=True)

        config.on_change = follow
        return http

    async def _renew(self, http: HttpServer, registration: ApiServiceRegistration) -> None:
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            config, trusted = self._config.current, self._certificate.ca
            self._certificate.replace_ca(published=registration.published)
            if self._certificate.ca != trusted:
                _log.info("replacing the CA of this server")
                registration.publish(self._certificate.ca)
            if self._certificate.renewed() and config is not None:
                _log.info("renewed the serving certificate")
                http.replace_tls(self._certificate.tls(config.client_ca), distrust=False)


def _has_moved_out(move: Mapping[str, str]) -> bool:
    return move.get(TO) == CRD and COPIED in move


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
