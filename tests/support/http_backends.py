"""Backends over HTTPS: the embedded API in this process, and a real Kubernetes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from sandpool.api.kinds import DEPLOYMENT
from sandpool.engine.clock import SystemClock
from sandpool.explain.audit import Audit, AuditedRequest, request_of_kubernetes, request_of_sandpool
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions, controller, namespace
from sandpool.install.names import CONTROLLER
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists
from sandpool.server.serving.audit import AuditLog
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.testing.backend import WRITERS, grant, wait_until_granted
from tests.support.api_access import HttpEndpoint
from tests.support.control_plane import ControlPlane
from tests.support.custom_kinds import install
from tests.support.installed_cluster import ACCOUNT, account_token
from tests.support.users import ADMIN, token_file

_CRDS: Final = Path(__file__).parents[2] / "deploy" / "crds"


def _with_backend_user(line: Any) -> AuditedRequest:
    """Replace the service account of the controllers by the user name that backends give them."""
    asked = request_of_kubernetes(line)
    return replace(asked, user="controllers") if asked.user == ACCOUNT else asked


class HttpBackend(HttpEndpoint):
    """The embedded API in this process, called over HTTPS."""

    name = "http"

    def __init__(self, daemon: Daemon, log: AuditLog, tokens: dict[str, str]) -> None:
        super().__init__(daemon.url, daemon.server.root_ca or "", tokens)
        self.daemon = daemon
        self.audit = Audit(log.path, request_of_sandpool, log.flush)

    @classmethod
    async def start(cls, directory: Path) -> HttpBackend:
        tokens = {user: f"token-of-{user}" for user in WRITERS}
        users = directory / "tokens.csv"
        users.write_text(token_file(tokens, WRITERS))
        settings = ServerOptions(directory / "data", port=0, token_file=users, audit_log=directory / "audit.log")
        daemon = Daemon(settings)
        await daemon.start()
        assert daemon.audit is not None
        backend = cls(daemon, daemon.audit, tokens)
        await grant(backend, daemon.server.client())
        return backend

    def client_for(self, user: str) -> Client:
        return Client(super().client_for(user).transport, field_manager=user)

    async def close(self) -> None:
        await super().close()
        await self.daemon.stop()


class KubernetesBackend(HttpEndpoint):
    """A real Kubernetes: etcd, kube-apiserver and kube-controller-manager, without nodes. The controllers use their
    installed service account."""

    name = "kubernetes"

    def __init__(self, plane: ControlPlane, account: str = "") -> None:
        """``plane`` must have the ``WRITERS`` among its users, and an audit log of them and of the service account,
        whose token is ``token``."""
        super().__init__(plane.url, plane.ca, {**plane.tokens, **({"controllers": account} if account else {})})
        self.plane = plane
        self.audit = Audit(plane.audit_log, _with_backend_user)

    @classmethod
    async def start(cls, plane: ControlPlane) -> KubernetesBackend:
        endpoint = HttpEndpoint(plane.url, plane.ca, plane.tokens)
        admin = endpoint.client_for(ADMIN)
        for manifest in sorted(_CRDS.glob("*.yaml")):
            with suppress(AlreadyExists):  # another test session uses the same control plane
                await install(admin, yaml.load(manifest.read_text(), yaml.CSafeLoader))
        # All but the Deployment: the controllers of a backend run in this process.
        accounts = [each for each in controller(InstallOptions()) if each["kind"] != DEPLOYMENT.kind]
        await Installer(admin, SystemClock(), lambda line: None).install([namespace(), *accounts])
        backend = cls(plane, await account_token(admin, CONTROLLER))
        await endpoint.close()
        await wait_until_granted(backend)
        # The garbage collector discovers new kinds every 30 seconds, and at its start. Not in another thread: a
        # component ends with the thread that has started it, and those of a pool end with the event loop.
        plane.restart(plane.controller_manager)
        return backend

    def client_for(self, user: str) -> Client:
        return Client(super().client_for(user).transport, field_manager=user)
