"""The routed pod network: attach a pod before its first container, detach it after its last.

On disk there is a directory per pod with its address and namespace, and the router namespace. The next agent finds them
there and continues; it rewrites the firewall, which does not interrupt connections.

Work on links and namespaces waits for the kernel, so it is done in threads. One thread stays in the router namespace;
others are made for one namespace each (see ``netns``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, TypeVar

from sandpool.api.resource import Object, SharedObject
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.node.network import links, ruleset
from sandpool.node.network.address_pool import AddressPool, NoAddressAvailable
from sandpool.node.network.dns import DnsServer, ResolveName, ServerAddress
from sandpool.node.network.enforcer import Enforcer
from sandpool.node.network.netns import NetworkNamespace, connect_inside
from sandpool.node.network.pod_cidr import CANDIDATES
from sandpool.node.network.policy import PodEndpoint, Port
from sandpool.node.pods.interfaces import Attachment, NetworkFailure

T = TypeVar("T")

_ROUTER_NETNS: Final = "router"
# The name that earlier versions gave it. Their pods keep their network when the agent is upgraded.
_FORMER_ROUTER_NETNS: Final = "switchyard"
_PODS: Final = "pods"
_ADDRESS: Final = "address"
_NAMESPACE: Final = "namespace"
_FORWARDING: Final = "forwarding-before"
# The type of the node condition for a firewall that is not what the policies say.
_NOT_ENFORCED: Final = "NetworkPoliciesNotEnforced"
# Pods connected concurrently. The kernel does most of the work under one lock.
_CONCURRENCY: Final = 4


class NetworkUnavailable(Exception):
    """A routed network cannot be set up on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class _PodLink:
    """A connected pod."""

    address: IPv4Address
    namespace: Path

    @property
    def attachment(self) -> Attachment:
        return Attachment(self.namespace, (str(self.address),))


def uplink_name(instance: str) -> str:
    """The name of the machine's link to pods, cut to the maximum length of an interface name."""
    return f"sandpool{instance}"[:15]


@dataclass(frozen=True, slots=True)
class RoutedNetworkOptions:
    """``instance`` tells several nodes on one machine apart. ``host`` is the node's network namespace, if it is not
    that of this process."""

    directory: Path
    pods: IPv4Network = CANDIDATES[0]
    instance: str = ""
    uid: int = 0  # the user on the node that may connect to pods
    host: Path | None = None
    resolve: ResolveName | None = None  # cluster names; None: no DNS server
    name_servers: tuple[ServerAddress, ...] = ()

    @property
    def plan(self) -> links.AddressPlan:
        return links.AddressPlan(self.pods, uplink_name(self.instance))

    @property
    def table(self) -> str:
        return f"sandpool_node{self.instance}"


class RoutedNetwork:
    def __init__(
        self, options: RoutedNetworkOptions, policies: Cache[Object], namespaces: Cache[Object], clock: Clock
    ) -> None:
        self.options = options
        self.plan = options.plan
        self.addresses = AddressPool(options.pods)
        self.enforcer = Enforcer(self._filter, policies, namespaces, clock)
        self.dns = None if options.resolve is None else DnsServer(options.resolve, options.name_servers)
        former = NetworkNamespace(options.directory / _FORMER_ROUTER_NETNS)
        self._router_netns = former if former.exists else NetworkNamespace(options.directory / _ROUTER_NETNS)
        self._router_thread: ThreadPoolExecutor | None = None  # in the router namespace
        self._threads = ThreadPoolExecutor(_CONCURRENCY, thread_name_prefix="network")
        self._router_links: links.RouterLinks | None = None
        self._pods: dict[str, _PodLink] = {}  # by UID

    @property
    def nameservers(self) -> tuple[str, ...]:
        return () if self.dns is None else (str(self.plan.gateway),)

    @property
    def host_addresses(self) -> tuple[str, ...]:
        """The node's addresses as pods see them."""
        return (str(self.plan.node),)

    @property
    def weaknesses(self) -> dict[str, str]:
        failure = self.enforcer.failure
        return {_NOT_ENFORCED: f"network policies are not enforced as written: {failure}"} if failure else {}

    async def start(self) -> None:
        """Adopt the network of an earlier agent, or set up a new one. Attached pods stay attached."""
        try:
            await self._threaded(self._open)
        except OSError as error:
            with contextlib.suppress(OSError):
                await self._threaded(self._close)
            raise NetworkUnavailable(f"pods cannot have a network of their own: {error}") from error
        try:
            self._adopt()
            await self.enforcer.enforce()
            if self.dns is not None:
                await self.dns.start(*await self._in_router_netns(self._dns_sockets))
        except BaseException:
            await self.stop(keep=bool(self._pods))
            raise

    async def stop(self, *, keep: bool = False) -> None:
        """Release what this process holds and, unless ``keep``, remove the network from the machine."""
        if self.dns is not None:
            await self.dns.stop()
        if not keep:
            for uid in list(self._pods):
                await self.detach(uid)
        await self.enforcer.close()
        if self._router_links is not None:
            self._router_links.close()
        if self._router_thread is not None:
            self._router_thread.shutdown()
        if not keep:
            await self._threaded(self._close)
        self._threads.shutdown()

    async def attached(self) -> set[str]:
        return set(self._pods)

    async def attach(self, pod: SharedObject) -> Attachment:
        """Connect a pod. Returns when it has its namespace and its policies are in force. Idempotent."""
        uid: str = pod["metadata"]["uid"]
        try:
            link = self._pods.get(uid) or await self._connect(uid)
            await self.enforcer.add(uid, pod_endpoint(pod, link.address))
        except (OSError, NoAddressAvailable) as error:
            raise NetworkFailure(f"cannot connect the pod: {error}") from error
        return link.attachment

    async def detach(self, uid: str) -> None:
        """Disconnect a pod. Can be repeated if it fails. A process that is still inside keeps the namespace alive,
        without a link."""
        link = self._pods.get(uid)
        if link is None:
            return
        await self._threaded(lambda: self._require_router_links().disconnect(link.address))
        await self.enforcer.remove(uid)
        await self._threaded(lambda: self._forget(uid))
        if self._pods.pop(uid, None) is not None:
            self.addresses.release(link.address)

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        """Connect from inside the pod's namespace: its loopback interface can be reached and no policy applies."""
        link = self._pods.get(uid)
        if link is None:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        return await connect_inside(NetworkNamespace(link.namespace), (host or str(link.address), port))

    # --- pods --------------------------------------------------------------------------------------------------------

    async def _connect(self, uid: str) -> _PodLink:
        address = self.addresses.allocate()
        directory = self._directory(uid)
        link = _PodLink(address, directory / _NAMESPACE)

        def make() -> None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The address first: after a crash, a namespace without a recorded address could not be adopted.
            (directory / _ADDRESS).write_text(str(address))
            links.make_pod_netns(link.namespace, self.plan, self._router_netns.path, address)
            self._require_router_links().connect(address)

        made = asyncio.ensure_future(self._threaded(make))
        try:
            await asyncio.shield(made)
        except BaseException:
            # A thread cannot be cancelled: wait for it, then remove what it has made.
            await asyncio.gather(made, return_exceptions=True)
            await self._threaded(lambda: self._forget(uid))
            self.addresses.release(address)
            raise
        self._pods[uid] = link
        return link

    def _adopt(self) -> None:
        pods = self.options.directory / _PODS
        for directory in pods.iterdir() if pods.exists() else ():
            with contextlib.suppress(OSError, ValueError):
                address = IPv4Address((directory / _ADDRESS).read_text())
                if NetworkNamespace(directory / _NAMESPACE).exists:
                    self.addresses.reserve(address)
                    self._pods[directory.name] = _PodLink(address, directory / _NAMESPACE)
                    continue
            self._forget(directory.name)  # incomplete

    def _forget(self, uid: str) -> None:
        directory = self._directory(uid)
        NetworkNamespace(directory / _NAMESPACE).remove()
        shutil.rmtree(directory, ignore_errors=True)

    def _directory(self, uid: str) -> Path:
        return self.options.directory / _PODS / uid

    # --- the router namespace ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._router_netns.exists:
            # Without a router namespace no pod is connected, so nothing is lost.
            self._on_node(lambda: links.disconnect_node(self.plan))
            shutil.rmtree(self.options.directory / _PODS, ignore_errors=True)
            links.make_router_netns(self._router_netns.path, self.plan, self.options.host)
            self._on_node(lambda: links.connect_node(self.plan))
            before = self.options.directory / _FORWARDING
            before.touch(mode=0o600)
            before.write_text(self._on_node(lambda: links.set_forwarding("1")))
        rules = ruleset.node_script(self.options.table, self.plan.uplink, self.options.pods, self.options.uid)
        self._on_node(lambda: _nft(rules))
        self._router_thread = self._router_netns.executor()
        self._router_links = self._router_thread.submit(links.RouterLinks, self.plan).result()

    def _close(self) -> None:
        self._on_node(lambda: links.disconnect_node(self.plan))
        self._on_node(lambda: _nft(f"table inet {self.options.table}\ndelete table inet {self.options.table}\n"))
        with contextlib.suppress(FileNotFoundError):
            before = (self.options.directory / _FORWARDING).read_text()
            self._on_node(lambda: links.set_forwarding(before))
        self._router_netns.remove()
        shutil.rmtree(self.options.directory, ignore_errors=True)

    def _on_node(self, function: Callable[[], T]) -> T:
        return function() if self.options.host is None else NetworkNamespace(self.options.host).call(function)

    def _dns_sockets(self) -> tuple[socket.socket, socket.socket]:
        bound = []
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            sock = socket.socket(socket.AF_INET, kind)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(self.plan.gateway), 53))
            bound.append(sock)
        return bound[0], bound[1]

    def _require_router_links(self) -> links.RouterLinks:
        assert self._router_links is not None, "start first"
        return self._router_links

    async def _filter(self, script: str) -> None:
        await self._in_router_netns(lambda: _nft(script))

    async def _in_router_netns(self, function: Callable[[], T]) -> T:
        assert self._router_thread is not None, "start first"
        return await asyncio.get_running_loop().run_in_executor(self._router_thread, function)

    async def _threaded(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def pod_endpoint(pod: SharedObject, address: IPv4Address) -> PodEndpoint:
    metadata = pod["metadata"]
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    ports = {
        port["name"]: Port(str(port.get("protocol") or "TCP").lower(), port["containerPort"], port["containerPort"])
        for container in containers
        for port in container.get("ports") or ()
        if port.get("name")
    }
    return PodEndpoint(metadata["namespace"], metadata["name"], str(address), metadata.get("labels") or {}, ports)


def _nft(script: str) -> None:
    """Run an nft script in the network namespace of the calling thread, which its child process inherits."""
    nft = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if nft is None:
        raise FileNotFoundError("nft is not installed; as root run: apt-get install nftables")
    done = subprocess.run([nft, "-f", "-"], input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"nft: {done.stderr.strip()}")
