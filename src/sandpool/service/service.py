"""The entrance of the service layer: one connection to an API, and what can be done with it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from sandpool.kube.client import Client

if TYPE_CHECKING:
    from sandpool.kube.connection import Connection
    from sandpool.kube.pod_client import PodClient
    from sandpool.service.claims import Claims
    from sandpool.service.commands import Commands
    from sandpool.service.files import Files
    from sandpool.service.filesystem import Filesystem
    from sandpool.service.inspection import Inspection
    from sandpool.service.pools import Pools
    from sandpool.service.ports import Ports
    from sandpool.service.sandboxes import Sandboxes
    from sandpool.service.templates import Templates
    from sandpool.service.usage import Usage
    from sandpool.service.waking import Waker

#: Who writes, in the field ownership of objects.
FIELD_MANAGER: Final = "sandpool-cli"
#: The namespace of a connection that names none.
DEFAULT_NAMESPACE: Final = "default"


#: The modules of the parts that are imported on first use, for a process that cannot read files by then.
PARTS: Final = tuple(
    f"sandpool.{name}"
    for name in (
        *("kube.http", "kube.late_binding", "kube.pod_client", "kube.port_forward", "api.quantity"),
        *("service.claims", "service.commands", "service.files", "service.filesystem", "service.inspection"),
        *("service.pools", "service.ports", "service.sandboxes", "service.templates", "service.usage"),
        *("service.waking",),
    )
)


class Service:
    """Sandboxes of one namespace. Close it, or use it as a context manager.

    Its parts are imported and created on first use, because a short command uses only few of them.
    """

    def __init__(self, client: Client, pods: PodClient, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.client = client
        self.pods = pods
        self.namespace = namespace

    @classmethod
    def connect(cls, connection: Connection, namespace: str | None = None) -> Self:
        """Connect over HTTP. The default namespace is that of the connection."""
        from sandpool.kube.http import HttpTransport
        from sandpool.kube.pod_client import HttpPodClient

        client = Client(HttpTransport(connection), field_manager=FIELD_MANAGER)
        return cls(client, HttpPodClient(connection), namespace or connection.namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()

    @cached_property
    def claims(self) -> Claims:
        """Claim sandboxes, wait for them, release them."""
        from sandpool.service.claims import Claims

        return Claims(self.client, self.namespace)

    @cached_property
    def sandboxes(self) -> Sandboxes:
        """Find sandboxes by name, read their logs, suspend and resume them."""
        from sandpool.service.sandboxes import Sandboxes

        return Sandboxes(self.client, self.pods, self.namespace)

    async def wake(self, namespace: str, name: str) -> object:
        """Resume a sandbox that sleeps, and return when it is ready. Raises ``WakeFailed``."""
        return await self._waker.wake(namespace, name)

    @cached_property
    def _waker(self) -> Waker:
        from sandpool.service.waking import Waker

        return Waker(self.client)

    @cached_property
    def commands(self) -> Commands:
        """Run commands in sandboxes."""
        from sandpool.service.commands import Commands

        return Commands(self.pods, self.wake)

    @cached_property
    def files(self) -> Files:
        """Copy files into and out of sandboxes."""
        from sandpool.service.files import Files

        return Files(self.commands)

    @cached_property
    def filesystem(self) -> Filesystem:
        """Read, write, list, move and remove single files and directories in sandboxes."""
        from sandpool.service.filesystem import Filesystem

        return Filesystem(self.commands)

    @cached_property
    def inspection(self) -> Inspection:
        """Read the processes and open ports of sandboxes."""
        from sandpool.service.inspection import Inspection

        return Inspection(self.commands)

    @cached_property
    def ports(self) -> Ports:
        """Forward local ports to sandboxes."""
        from sandpool.service.ports import Ports

        return Ports(self.pods, self.wake)

    @cached_property
    def pools(self) -> Pools:
        """Create, scale and follow warm pools."""
        from sandpool.service.pools import Pools

        return Pools(self.client, self.namespace)

    @cached_property
    def templates(self) -> Templates:
        """Create and read templates."""
        from sandpool.service.templates import Templates

        return Templates(self.client, self.namespace)

    @cached_property
    def usage(self) -> Usage:
        """Read the CPU and memory that sandboxes use."""
        from sandpool.service.usage import Usage

        return Usage(self.client)
