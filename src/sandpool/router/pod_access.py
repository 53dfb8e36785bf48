"""Access to pods for the API server (exec, attach, logs, port-forward), with the router's own pods among them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from typing import Final

from sandpool.api.kinds import POD
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.kube.pod_access import LogQuery, PodAccess, PodAccessError, StreamClient
from sandpool.router.authorization import is_allowed
from sandpool.router.registration import PORT
from sandpool.router.tokens import ALL

_PORT_ONLY: Final = "it is a process of the API server: only its port can be forwarded"


class PortForwardGrants:
    """Decides which sandboxes a port-forward to a pod of the router reaches without a token: those to whose pods its
    user may forward ports anyway. Without this, a user of the router's namespace would reach every tenant."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def namespace(self, user: Object, namespace: str) -> str:
        """Return ``ALL``, the namespace of the router's pod, or nothing: then each request needs a token. Raises
        ``PodAccessError`` if the API server does not answer."""
        try:
            if await self._may_forward(user, ""):
                return ALL
            return namespace if await self._may_forward(user, namespace) else ""
        except (ApiError, ConnectionError, TimeoutError) as error:
            raise PodAccessError(f"the access to the router could not be checked: {error}") from error

    async def _may_forward(self, user: Object, namespace: str) -> bool:
        """Whether the user may forward ports to all pods of the namespace; empty: of all namespaces."""
        attributes = {
            "version": POD.version,
            "resource": POD.plural,
            "subresource": "portforward",
            "verb": "create",
            "namespace": namespace,
        }
        return await is_allowed(self.client, user, attributes)


class RouterPodAccess:
    """Forwards the port of the router's pods to the router and leaves all other pods to ``other``.

    ``own`` are the UIDs of the router's pods. ``connect`` opens a connection to the router that grants the namespace of
    its argument. ``other`` is None if no node of this server runs pods."""

    def __init__(
        self,
        own: Container[str],
        grants: PortForwardGrants,
        connect: Callable[[str], Awaitable[socket.socket]],
        other: PodAccess | None,
    ) -> None:
        self.own = own
        self.grants = grants
        self.connect = connect
        self.other = other

    def serves(self, pod: SharedObject) -> bool:
        return pod["metadata"]["uid"] in self.own or (self.other is not None and self.other.serves(pod))

    async def execute(self, pod: SharedObject, container: str, command: tuple[str, ...], client: StreamClient) -> int:
        return await self._other(pod).execute(pod, container, command, client)

    async def attach(self, pod: SharedObject, container: str, client: StreamClient) -> int:
        return await self._other(pod).attach(pod, container, client)

    async def dial(self, pod: SharedObject, port: int, user: Object) -> socket.socket:
        if pod["metadata"]["uid"] not in self.own:
            return await self._other(pod).dial(pod, port, user)
        if port != PORT:
            raise ConnectionRefusedError(f"the router listens on port {PORT} only")
        return await self.connect(await self.grants.namespace(user, pod["metadata"]["namespace"]))

    def logs(self, pod: SharedObject, query: LogQuery) -> AsyncIterator[bytes]:
        return self._other(pod).logs(pod, query)

    async def stats(self, node: str) -> Object | None:
        return None if self.other is None else await self.other.stats(node)

    def _other(self, pod: SharedObject) -> PodAccess:
        metadata = pod["metadata"]
        if metadata["uid"] in self.own:
            raise PodAccessError(f'pod "{metadata["name"]}" is the router: {_PORT_ONLY}')
        if self.other is None:
            raise PodAccessError(f'pod "{metadata["name"]}" cannot be reached: no node of this server runs it')
        return self.other
