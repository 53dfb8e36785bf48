"""The server of the node's own API: its port, its certificate and its client authority."""

from __future__ import annotations

import asyncio
import logging
import platform
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from sandpool.api.kinds import CONFIG_MAP
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.kube.pod_access import PodAccess
from sandpool.node.kubelet.authorization import CertificateAuthenticator, NodeAuthorizer
from sandpool.node.kubelet.handler import FindPod, KubeletHandler
from sandpool.node.registration import KubeletEndpoint
from sandpool.server.auth.impersonation import NoImpersonation
from sandpool.server.http import HttpServer
from sandpool.server.serving.pki import Authority, Identity, server_tls

_log = logging.getLogger(__name__)

# Published by every kube-apiserver that authenticates clients by certificates.
_NAMESPACE: Final = "kube-system"
_CONFIG_MAP: Final = "extension-apiserver-authentication"
_KEY: Final = "client-ca-file"
#: Where a kubelet listens.
PORT: Final = 10250
#: Wildcard addresses, which clients cannot connect to.
EVERYWHERE: Final = ("", "0.0.0.0", "::")


class KubeletError(Exception):
    """It cannot serve. The message gives the reason and what to do."""


class NoAuthority(Exception):
    """No client can be authenticated. The message gives the reason and what to do."""


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """``address`` is the one to listen on, ``found_at`` the one reported to the API server."""

    address: str = ""  # all
    port: int = PORT  # 0: any
    found_at: str = "127.0.0.1"
    client_ca: Path | None = None  # None: the CA that the API server publishes
    identity: Identity | None = None  # None: a self-made one


class Kubelet:
    """``start`` returns the endpoint, or None if no client could be authenticated. Raises ``KubeletError``."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        settings: KubeletOptions,
        node: str,
        directory: Path,
        find: FindPod,
        pod_access: PodAccess,
    ) -> None:
        self.client = client
        self.clock = clock
        self.settings = settings
        self.node = node
        self.directory = directory
        self.handler = KubeletHandler(NodeAuthorizer(client, clock, node), find, pod_access, clock)
        self._front: HttpServer | None = None

    async def start(self) -> KubeletEndpoint | None:
        settings = self.settings
        try:
            authority = await client_authority(self.client, settings.client_ca)
        except NoAuthority as error:
            _log.warning(
                "exec, attach, port-forward and logs are not available on this node: %s (or set --client-ca-file)",
                error,
            )
            return None
        except OSError as error:
            raise KubeletError(f"cannot read the client CA: {error}") from error
        identity = settings.identity
        if identity is None:
            identity = await asyncio.to_thread(self._own_identity)
        host = settings.address or ("::" if ":" in settings.found_at else "0.0.0.0")
        front = HttpServer(
            self.handler,
            CertificateAuthenticator(self.clock),
            authorizer=NoImpersonation(),
            tls=_tls(identity, authority),
            host=host,
            port=settings.port,
            clock=self.clock,
        )
        try:
            await front.start()
        except OSError as error:
            what = f"the node's own API cannot listen on {host}, port {settings.port}"
            raise KubeletError(f"{what}: {error.strerror or error} (--kubelet-port 0 takes any)") from error
        self._front = front
        return KubeletEndpoint(settings.found_at, front.port, _fingerprint(identity))

    async def stop(self) -> None:
        """Open streams end at once: the pods behind them end too."""
        if self._front is not None:
            await self._front.stop(grace=1.0)

    def _own_identity(self) -> Identity:
        names = (self.node, platform.node().lower(), self.settings.found_at)
        return Authority(self.directory, self.clock).kubelet(self.node, names)


async def client_authority(client: Client, file: Path | None) -> str:
    """Return the CA of clients as PEM, from a file or from what the API server publishes. Raises ``NoAuthority``, or
    ``OSError`` if the file cannot be read."""
    if file is not None:
        return await asyncio.to_thread(file.read_text)
    place = f"{_KEY} in ConfigMap {_NAMESPACE}/{_CONFIG_MAP}"
    try:
        found = await client.get(CONFIG_MAP, _CONFIG_MAP, _NAMESPACE)
    except (ApiError, OSError) as error:
        raise NoAuthority(f"{place} cannot be read: {error}") from error
    authority: str = (found.get("data") or {}).get(_KEY) or ""
    if not authority:
        raise NoAuthority(f"there is no {place}: the API server does not authenticate clients by certificates")
    return authority


def local_address_toward(host: str, port: int, listening: str = "") -> str:
    """Return the address of this machine from which it reaches ``host``, and by which ``host`` probably reaches it.
    ``listening`` is a wildcard address that selects the family."""
    wanted = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}.get(listening, socket.AF_UNSPEC)
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, wanted, socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)  # a datagram socket sends nothing
            except OSError:
                continue
            return str(probe.getsockname()[0])
    raise OSError(f"no route to {host}")


def _tls(identity: Identity, authority: str) -> ssl.SSLContext:
    try:
        return server_tls(identity, authority)
    except (OSError, ValueError) as error:  # and SSLError
        files = f"{identity.certificate}, {identity.key} or the client CA"
        raise KubeletError(f"{files} cannot be used: {error}") from error


def _fingerprint(identity: Identity) -> str:
    return x509.load_pem_x509_certificate(identity.certificate.read_bytes()).fingerprint(SHA256()).hex()
