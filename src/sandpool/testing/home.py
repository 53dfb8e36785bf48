"""The places in which controllers live: the embedded API in this process or behind TLS, and a real Kubernetes.

A ``Home`` is started once and shared: every test has a namespace of its own in it, and controllers and a node that see
nothing else (``world``). Who asks is told apart by user, which is what audit logs record. The controllers have the
rights that an installation gives them and no others, so every test in a home is also one of the role.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, DEPLOYMENT, NAMESPACE, SANDBOX
from sandpool.engine.clock import SystemClock
from sandpool.install.installer import Installer
from sandpool.install.manifests import Choice, controller, namespace
from sandpool.install.names import CONTROLLER
from sandpool.install.roles import controller_rules
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists, Forbidden
from sandpool.server.api_server import ApiServer
from sandpool.server.request.messages import User
from sandpool.server.serving.audit import AuditLog
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.testing.audit import Asked, Audit, asked_of_kubernetes, asked_of_sandpool
from sandpool.testing.cluster import ACCOUNT, account_token
from sandpool.testing.control_plane import ControlPlane
from sandpool.testing.definitions import install
from sandpool.testing.endpoint import HttpDoor
from sandpool.testing.objects import new
from sandpool.testing.users import ADMIN, WRITERS, token_file
from sandpool.testing.watching import until

_CRDS: Final = Path(__file__).parents[3] / "deploy" / "crds"


class Home(Protocol):
    """An API and what it was asked. ``name`` is what tests call it."""

    name: str
    audit: Audit

    def client_for(self, user: str) -> Client:
        """A client of one of the ``WRITERS``, whose name is also its field manager."""
        ...

    async def close(self) -> None: ...


async def new_namespace(home: Home) -> str:
    """A namespace nobody else uses."""
    name = f"t-{secrets.token_hex(5)}"
    await home.client_for("people").create(NAMESPACE, new(NAMESPACE, name))
    return name


async def grant(home: Home, admin: Client) -> None:
    """Give the controllers of a home the role that is installed for them; returns when it has effect."""
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": CONTROLLER}
    subject = {"apiGroup": CLUSTER_ROLE.group, "kind": "User", "name": "controllers"}
    binding = new(CLUSTER_ROLE_BINDING, CONTROLLER, roleRef=reference, subjects=[subject])
    with suppress(AlreadyExists):  # somebody else uses the same API
        await admin.create(CLUSTER_ROLE, new(CLUSTER_ROLE, CONTROLLER, rules=controller_rules()))
    with suppress(AlreadyExists):
        await admin.create(CLUSTER_ROLE_BINDING, binding)

    await _granted(home)


async def _granted(home: Home) -> None:
    """Wait until the controllers have their rights."""

    async def granted() -> bool:
        try:
            await home.client_for("controllers").list(SANDBOX, limit=1)
        except Forbidden:
            return False
        return True

    await until(granted)


def _asked_in_home(line: Any) -> Asked:
    """In the words of a home, which knows the service account by what it is for."""
    asked = asked_of_kubernetes(line)
    return replace(asked, user="controllers") if asked.user == ACCOUNT else asked


class InProcessHome:
    """The embedded API, reached without a network."""

    name = "inprocess"

    def __init__(self, server: ApiServer, log: AuditLog) -> None:
        self.server = server
        self.audit = Audit(log.path, asked_of_sandpool, log.flush)
        self._log = log

    @classmethod
    async def start(cls, directory: Path) -> InProcessHome:
        log = AuditLog(directory / "audit.log")
        server = ApiServer(directory / "data", audit=log)
        await server.start()
        home = cls(server, log)
        await grant(home, server.client())
        return home

    def client_for(self, user: str) -> Client:
        return self.server.client(User(user, WRITERS[user], f"{user}-uid"), name=user)

    async def close(self) -> None:
        await self.server.stop()
        self._log.close()


class HttpHome(HttpDoor):
    """The embedded API behind TLS, in this process."""

    name = "http"

    def __init__(self, daemon: Daemon, log: AuditLog, tokens: dict[str, str]) -> None:
        super().__init__(daemon.url, daemon.server.root_ca or "", tokens)
        self.daemon = daemon
        self.audit = Audit(log.path, asked_of_sandpool, log.flush)

    @classmethod
    async def start(cls, directory: Path) -> HttpHome:
        tokens = {user: f"token-of-{user}" for user in WRITERS}
        users = directory / "tokens.csv"
        users.write_text(token_file(tokens, WRITERS))
        settings = ServerOptions(directory / "data", port=0, token_file=users, audit_log=directory / "audit.log")
        daemon = Daemon(settings)
        await daemon.start()
        assert daemon.audit is not None
        home = cls(daemon, daemon.audit, tokens)
        await grant(home, daemon.server.client())
        return home

    def client_for(self, user: str) -> Client:
        return Client(super().client_for(user).transport, field_manager=user)

    async def close(self) -> None:
        await super().close()
        await self.daemon.stop()


class KubernetesHome(HttpDoor):
    """A real Kubernetes: etcd, kube-apiserver and kube-controller-manager, without nodes. The controllers are the
    service account that is installed for them."""

    name = "kubernetes"

    def __init__(self, plane: ControlPlane, account: str = "") -> None:
        """``plane`` must have been made with the ``WRITERS`` among its users, and with ``audit`` of them and of the
        account, of which this is the token."""
        super().__init__(plane.url, plane.ca, {**plane.tokens, **({"controllers": account} if account else {})})
        self.plane = plane
        self.audit = Audit(plane.audit_log, _asked_in_home)

    @classmethod
    async def start(cls, plane: ControlPlane) -> KubernetesHome:
        door = HttpDoor(plane.url, plane.ca, plane.tokens)
        admin = door.client_for(ADMIN)
        for manifest in sorted(_CRDS.glob("*.yaml")):
            with suppress(AlreadyExists):  # somebody else uses the same control plane
                await install(admin, yaml.load(manifest.read_text(), yaml.CSafeLoader))
        # All but the Deployment, for the controllers of a home are in this process.
        accounts = [each for each in controller(Choice()) if each["kind"] != DEPLOYMENT.kind]
        await Installer(admin, SystemClock(), lambda line: None).install([namespace(), *accounts])
        home = cls(plane, await account_token(admin, CONTROLLER))
        await door.close()
        await _granted(home)
        # The garbage collector looks for new kinds every half a minute, and when it starts. Not in another thread: a
        # component ends with the thread that has started it, and those of a pool end with the event loop.
        plane.restart(plane.controller_manager)
        return home

    def client_for(self, user: str) -> Client:
        return Client(super().client_for(user).transport, field_manager=user)
