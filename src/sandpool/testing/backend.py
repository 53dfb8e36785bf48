"""A backend for test worlds: an API that controllers, a node and users share, and a record of their requests.

A backend is started once and shared. Every test has a namespace of its own in it, with controllers and a node that see
only that namespace (``world``). Each writer is a user of its own, so the audit log tells writers apart. The controllers
have exactly the permissions that an installation grants, so every test in a world is also a test of that role.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, SANDBOX
from sandpool.explain.audit import Audit, request_of_sandpool
from sandpool.install.names import CONTROLLER
from sandpool.install.roles import controller_rules
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists, Forbidden
from sandpool.server.api_server import ApiServer
from sandpool.server.request.messages import User
from sandpool.server.serving.audit import AuditLog
from sandpool.testing.objects import new
from sandpool.testing.waiting import until

#: The users of a backend with their groups. Users and the node may do everything; the controllers may do what the
#: installed role grants.
WRITERS: Final[Mapping[str, tuple[str, ...]]] = {
    "users": ("system:masters",),
    "controllers": (),
    "node": ("system:masters",),
}


class Backend(Protocol):
    """An API and its audit log. ``name`` identifies the backend in test ids."""

    name: str
    audit: Audit

    def client_for(self, user: str) -> Client:
        """Return a client of one of the ``WRITERS``; its field manager is the user's name."""
        ...

    async def close(self) -> None:
        """Release what the backend holds."""
        ...


async def grant(backend: Backend, admin: Client) -> None:
    """Bind the controllers of a backend to the role that an installation creates, and wait until it has effect."""
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": CONTROLLER}
    subject = {"apiGroup": CLUSTER_ROLE.group, "kind": "User", "name": "controllers"}
    binding = new(CLUSTER_ROLE_BINDING, CONTROLLER, roleRef=reference, subjects=[subject])
    with suppress(AlreadyExists):  # another backend uses the same API
        await admin.create(CLUSTER_ROLE, new(CLUSTER_ROLE, CONTROLLER, rules=controller_rules()))
    with suppress(AlreadyExists):
        await admin.create(CLUSTER_ROLE_BINDING, binding)

    await wait_until_granted(backend)


async def wait_until_granted(backend: Backend) -> None:
    """Wait until the controllers may list Sandboxes."""

    async def granted() -> bool:
        try:
            await backend.client_for("controllers").list(SANDBOX, limit=1)
        except Forbidden:
            return False
        return True

    await until(granted)


class InProcessBackend:
    """The embedded API in this process, called without a network."""

    name = "inprocess"

    def __init__(self, server: ApiServer, log: AuditLog) -> None:
        self.server = server
        self.audit = Audit(log.path, request_of_sandpool, log.flush)
        self._log = log

    @classmethod
    async def start(cls, directory: Path) -> InProcessBackend:
        """Start an API server with its data in a directory, and grant the controllers their role."""
        log = AuditLog(directory / "audit.log")
        server = ApiServer(directory / "data", audit=log)
        await server.start()
        backend = cls(server, log)
        await grant(backend, server.client())
        return backend

    def client_for(self, user: str) -> Client:
        """See ``Backend.client_for``."""
        return self.server.client(User(user, WRITERS[user], f"{user}-uid"), name=user)

    async def close(self) -> None:
        """Stop the server and close the audit log."""
        await self.server.stop()
        self._log.close()
