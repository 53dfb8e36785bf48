"""A real Kubernetes with Sandpool installed whose sandboxes run: kube-apiserver, the controllers with their service
account and a node of ours are separate processes. Users are service accounts with the roles that a test grants.

kube-apiserver forwards requests to a node (``nodes/proxy``) at any address but a loopback one. So all processes are in
a network namespace that has a further address. The thread that starts the cluster is there too until it stops it, so
that the processes and connections of a test are. Pods have addresses there, as in a cluster.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib.resources import files
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final, Self

import yaml

from sandpool.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    NAMESPACE,
    ROLE,
    ROLE_BINDING,
    SANDBOX_CLAIM,
    SERVICE_ACCOUNT,
)
from sandpool.api.resource import Object
from sandpool.bench.child_process import Component, Rig
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions
from sandpool.install.roles import bound
from sandpool.kube.client import Client
from sandpool.node.launcher import syscalls
from sandpool.node.network import netlink
from sandpool.node.network.links import set_up_loopback
from sandpool.node.network.netlink import Netlink
from sandpool.node.network.netns import NetworkNamespace, open_namespace
from sandpool.server.serving.pki import Authority
from sandpool.service.pools import Pools
from sandpool.testing.objects import new
from tests.support.api_access import HttpEndpoint
from tests.support.assets import Assets
from tests.support.control_plane import NODE_CONTROLLERS, ControlPlane, kubelet_flags
from tests.support.installed_cluster import ACCOUNT, account_token
from tests.support.node_command import SeparateNode
from tests.support.permissions import Use
from tests.support.users import ADMIN

#: The namespace of the service accounts of users.
ACCOUNTS: Final = "accounts"
_ADDRESS: Final = "198.18.0.1"
_TIMEOUT: Final = 90.0


class ClusterWithNode(Rig):
    """``users`` are the names of the service accounts whose requests the audit log records. One thread starts and stops
    it."""

    def __init__(self, assets: Assets, directory: Path, users: Iterable[str]) -> None:
        self.directory = directory
        flags = (
            *kubelet_flags(Authority(directory / "pki", SystemClock())),
            f"--advertise-address={_ADDRESS}",  # there is no route by which it could find one
        )
        audited = (ACCOUNT, *(user_name(each) for each in users))
        self.plane = ControlPlane(
            assets, fsync=False, audit=audited, apiserver_flags=flags, controllers=NODE_CONTROLLERS
        )

    def start(self) -> Self:
        os.chmod(self.directory, 0o755)
        with ExitStack() as stack:
            network = stack.enter_context(_own_network(self.directory / "network"))
            stack.enter_context(self.plane)
            asyncio.run(self._install())
            # The garbage collector looks for new kinds every half a minute, and when it starts.
            self.plane.restart(self.plane.controller_manager)
            self._start_controllers()
            stack.callback(self.controllers.stop)
            (self.directory / "node").mkdir()
            node = SeparateNode(
                self.plane.kubeconfig, self.directory / "node", options=("--node-ip", _ADDRESS), host=network
            )
            stack.enter_context(node)
            self._running = stack.pop_all()
        return self

    def stop(self) -> None:
        self._running.close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of the administrator."""
        endpoint = HttpEndpoint(self.plane.url, self.plane.ca, self.plane.tokens)
        try:
            yield endpoint.client_for(ADMIN)
        finally:
            await endpoint.close()

    def admit(self, user: str, rules: Iterable[Object], *, everywhere: bool = False) -> Path:
        """Make a namespace of a user's name, with the pool ``python`` of the quickstart, and a service account that may
        do this in it, or ``everywhere``. Returns the kubeconfig of the account, which names the namespace."""
        return asyncio.run(self._admit(user, list(rules), everywhere=everywhere))

    def create(self, namespace: str, *documents: Object) -> None:
        """Create templates and pools in a namespace."""

        async def create() -> None:
            async with self.client() as client:
                await Pools(client, namespace).ensure(documents)

        asyncio.run(create())

    def use_of(self, user: str) -> Use:
        """What the account of a user has done so far."""
        use = Use(user_name(user))
        use.note(self.plane.audit_log)
        return use

    async def _install(self) -> None:
        objects = chosen(InstallOptions(), router=True, monitored=False)
        async with self.client() as client:
            await Installer(client, SystemClock(), lambda line: None).install(objects)
            await client.create(NAMESPACE, new(NAMESPACE, ACCOUNTS))
            for account in (names.CONTROLLER, names.ROUTER_ACCOUNT):
                token = await account_token(client, account)
                self.plane.write_kubeconfig(self.kubeconfig_of(account), account, token=token)

    async def _admit(self, user: str, rules: list[Object], *, everywhere: bool) -> Path:
        where = None if everywhere else user
        role, binding = (CLUSTER_ROLE, CLUSTER_ROLE_BINDING) if everywhere else (ROLE, ROLE_BINDING)
        quickstart = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
        async with self.client() as client:
            await client.create(NAMESPACE, new(NAMESPACE, user))
            pool = [each for each in yaml.safe_load_all(quickstart) if each["kind"] != SANDBOX_CLAIM.kind]
            pools = Pools(client, user)
            await pools.ensure(pool)
            await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, user), ACCOUNTS)
            await client.create(role, new(role, user, rules=rules), where)
            await client.create(binding, new(binding, user, **bound(role, user, user, ACCOUNTS)), where)
            token = await account_token(client, user, ACCOUNTS)
            await pools.wait_ready("python", 2, _TIMEOUT)
        return self.plane.write_kubeconfig(self.kubeconfig_of(user), user, user, token=token)

    def kubeconfig_of(self, account: str) -> Path:
        """The kubeconfig of an account that was installed, or of a user who was admitted."""
        return self.directory / f"{account}.kubeconfig"

    def _start_controllers(self) -> None:
        command: list[str | Path] = [
            *(
                sys.executable,
                "-m",
                "sandpool.cli.main",
                "controller",
                "--kubeconfig",
                self.kubeconfig_of(names.CONTROLLER),
            ),
            *("--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text"),
            *("--leader-election-namespace", names.NAMESPACE),
        ]
        self.controllers = Component("the controllers", command, self.directory / "controllers.log")
        self.controllers.start()
        self.controllers.wait_for("leading: ", _TIMEOUT)


@contextmanager
def _own_network(path: Path) -> Iterator[NetworkNamespace]:
    """Move the calling thread into a network of its own for the length of the block."""

    def prepare() -> None:
        set_up_loopback()
        with Netlink() as link:
            link.execute(netlink.address(netlink.LOOPBACK, IPv4Address(_ADDRESS)))

    network, _ = NetworkNamespace.make(path, prepare)
    with open_namespace(None) as outside:
        network.enter()
        try:
            yield network
        finally:
            syscalls.setns(outside, syscalls.CLONE_NEWNET)
            network.remove()


def user_name(user: str) -> str:
    """The name of a user's service account in audit logs."""
    return f"system:serviceaccount:{ACCOUNTS}:{user}"
