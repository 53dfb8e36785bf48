"""The API server behind HTTPS: the process that ``sandpool server`` runs."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, SystemClock
from sandpool.kube.connection import with_address
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.tokens import ADMIN, admin_token
from sandpool.server.http import HttpServer
from sandpool.server.request.messages import User
from sandpool.server.serving.audit import AuditLog
from sandpool.server.serving.kubeconfig import document, write_kubeconfig
from sandpool.server.serving.pki import Authority


@dataclass(frozen=True, slots=True)
class ServerOptions:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 6443
    names: tuple[str, ...] = ()  # additional names and addresses for the serving certificate
    kubeconfig: Path | None = None  # default: in the data directory
    token_file: Path | None = None
    audit_log: Path | None = None
    nodeless: frozenset[str] | None = None  # nodes whose pods stay without a Node; None: all


@dataclass
class Daemon:
    """One server behind TLS. ``start`` returns when it serves; ``stop`` when it has shut down."""

    settings: ServerOptions
    clock: Clock = field(default_factory=SystemClock)

    async def start(self) -> None:
        settings = self.settings
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._authority = authority = Authority(settings.data_dir / "pki", self.clock)
        authority.kubelet_client()  # issue it now rather than during the first exec
        self.audit = AuditLog(settings.audit_log) if settings.audit_log is not None else None
        self.server = ApiServer(
            settings.data_dir,
            audit=self.audit,
            clock=self.clock,
            root_ca=authority.ca_pem,
            kubelet_client=authority.kubelet_client,
            nodeless=settings.nodeless,
        )
        try:
            await self.server.start()
            try:
                await self._start_http(authority)
            except BaseException:
                await self.server.stop()
                raise
        except BaseException:
            self._close_audit()
            raise

    async def _start_http(self, authority: Authority) -> None:
        settings, server = self.settings, self.server
        token = admin_token(settings.data_dir / "admin-token")
        server.tokens.add(token, ADMIN)
        if settings.token_file is not None:
            server.tokens.load(settings.token_file)
        names = settings.names if _is_wildcard(settings.host) else (*settings.names, settings.host)
        self.http = HttpServer(
            server.handler,
            server.authenticator,
            authorizer=server.authorizer,
            tls=authority.tls(names),
            host=settings.host,
            port=settings.port,
            audit=self.audit,
            clock=self.clock,
            superseded=lambda: server.store.superseded_bytes,
        )
        await self.http.start()
        host = "127.0.0.1" if _is_wildcard(settings.host) else settings.host
        server.address = f"[{host}]:{self.http.port}" if ":" in host else f"{host}:{self.http.port}"
        self.url = f"https://{server.address}"
        self.kubeconfig = settings.kubeconfig or settings.data_dir / "kubeconfig"
        try:
            write_kubeconfig(self.kubeconfig, self.url, authority.ca_pem, token)
        except BaseException:
            await self.http.stop(0)
            raise

    def kubeconfig_of(self, user: User) -> Object:
        """A kubeconfig for another process of this home. Its token is new, and only in memory. It has the address of
        the server instead of a name, because a confined process reads no file to resolve one."""
        token = secrets.token_urlsafe(32)
        self.server.tokens.add(token, user)
        url = with_address(self.url)
        return document(url, self._authority.ca_pem, token, "" if url == self.url else self.settings.host)

    async def stop(self, grace: float = 10.0) -> None:
        await self.http.stop(grace)
        await self.server.stop()
        self._close_audit()

    def _close_audit(self) -> None:
        if self.audit is not None:
            self.audit.close()


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""
