"""The network of a node's pods: attach one before its first container, detach it after its last.

On disk there is a directory per pod with its address and its namespace, and the switchyard's namespace. A new process
finds them there and goes on; the firewall is written anew, which changes nothing for who is connected.

Work on links and namespaces waits for the kernel, so it is done in threads. One of them lives in the switchyard; the
others are made for one namespace each (see ``namespaces``).
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

from sandpool.api.resource import Object
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.node.network import links, ruleset
from sandpool.node.network.address_pool import Addresses, NoAddressAvailable
from sandpool.node.network.dns import DnsServer, ResolveName, ServerAddress
from sandpool.node.network.enforcer import Enforcer
from sandpool.node.network.netns import NetworkNamespace, connect_inside
from sandpool.node.network.pod_cidr import RANGES
from sandpool.node.network.policy import Endpoint, Port
from sandpool.node.pods.interfaces import Attachment, NetworkFailure

T = TypeVar("T")

_SWITCHYARD: Final = "switchyard"
_PODS: Final = "pods"
_ADDRESS: Final = "address"
_NAMESPACE: Final = "namespace"
_FORWARDING: Final = "forwarding-before"
# The type of the condition that says that the firewall is not what policies say.
_NOT_ENFORCED: Final = "NetworkPoliciesNotEnforced"
#: Pods that are connected at once. The kernel does most of it under one lock.
_AT_ONCE: Final = 4


class NetworkUnavailable(Exception):
    """This machine does not let us make networks; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pod is."""

    address: IPv4Address
    namespace: Path

    @property
    def attachment(self) -> Attachment:
        return Attachment(self.namespace, (str(self.address),))


def interface(instance: str) -> str:
    """The name of the machine's link to pods; names of links are no longer than this."""
    return f"sandpool{instance}"[:15]


@dataclass(frozen=True, slots=True)
class Settings:
    """``instance`` tells several nodes on one machine apart. ``host`` is the namespace of the node, if not ours."""

    directory: Path
    pods: IPv4Network = RANGES[0]
    instance: str = ""
    uid: int = 0  # whose processes on the node may connect to pods
    host: Path | None = None
    resolve: ResolveName | None = None  # names for pods; None: no DNS of our own
    name_servers: tuple[ServerAddress, ...] = ()

    @property
    def plan(self) -> links.Plan:
        return links.Plan(self.pods, interface(self.instance))

    @property
    def table(self) -> str:
        return f"sandpool_node{self.instance}"


class Network:
    def __init__(self, settings: Settings, policies: Cache[Object], namespaces: Cache[Object], clock: Clock) -> None:
        self.settings = settings
        self.plan = settings.plan
        self.addresses = Addresses(settings.pods)
        self.enforcer = Enforcer(self._filter, policies, namespaces, clock)
        self.dns = None if settings.resolve is None else DnsServer(settings.resolve, settings.name_servers)
        self._switchyard = NetworkNamespace(settings.directory / _SWITCHYARD)
        self._inside: ThreadPoolExecutor | None = None  # the thread in the switchyard
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="network")
        self._board: links.RouterLinks | None = None
        self._places: dict[str, _Place] = {}  # of pods, by UID

    @property
    def nameservers(self) -> tuple[str, ...]:
        return () if self.dns is None else (str(self.plan.gateway),)

    @property
    def host_addresses(self) -> tuple[str, ...]:
        """As pods see the node, if they do."""
        return (str(self.plan.node),)

    @property
    def weaknesses(self) -> dict[str, str]:
        failure = self.enforcer.failure
        return {_NOT_ENFORCED: f"network policies are not in force as they are written: {failure}"} if failure else {}

    async def start(self) -> None:
        """Find what an earlier process has left, or begin anew. Pods that were attached still are."""
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
                await self.dns.start(*await self._in_switchyard(self._dns_sockets))
        except BaseException:
            await self.stop(keep=bool(self._places))
            raise

    async def stop(self, *, keep: bool = False) -> None:
        """Release everything of this process; unless ``keep``, of the machine too."""
        if self.dns is not None:
            await self.dns.stop()
        if not keep:
            for uid in list(self._places):
                await self.detach(uid)
        await self.enforcer.close()
        if self._board is not None:
            self._board.close()
        if self._inside is not None:
            self._inside.shutdown()
        if not keep:
            await self._threaded(self._close)
        self._threads.shutdown()

    async def attached(self) -> set[str]:
        return set(self._places)

    async def attach(self, pod: Object) -> Attachment:
        """Returns when the pod has its namespace and its policies are in force. Done again it does nothing."""
        uid: str = pod["metadata"]["uid"]
        try:
            place = self._places.get(uid) or await self._connect(uid)
            await self.enforcer.add(uid, endpoint_of(pod, place.address))
        except (OSError, NoAddressAvailable) as error:
            raise NetworkFailure(f"the pod could not be connected: {error}") from error
        return place.attachment

    async def detach(self, uid: str) -> None:
        """The pod's processes must have ended: who is still inside keeps the namespace, without any wire. What fails
        can be done again."""
        place = self._places.get(uid)
        if place is None:
            return
        await self._threaded(lambda: self._require_board().disconnect(place.address))
        await self.enforcer.remove(uid)
        await self._threaded(lambda: self._forget(uid))
        if self._places.pop(uid, None) is not None:
            self.addresses.give_back(place.address)

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        """From within the pod, so its loopback can be reached too and no policy is in the way."""
        place = self._places.get(uid)
        if place is None:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        return await connect_inside(NetworkNamespace(place.namespace), (host or str(place.address), port))

    # --- pods --------------------------------------------------------------------------------------------------------

    async def _connect(self, uid: str) -> _Place:
        address = self.addresses.take()
        directory = self._directory(uid)
        place = _Place(address, directory / _NAMESPACE)

        def make() -> None:
            directory.mkdir(parents=True, exist_ok=True)
            # First the address: a namespace without one would be in nobody's books after a crash.
            (directory / _ADDRESS).write_text(str(address))
            links.make_pod(place.namespace, self.plan, self._switchyard.path, address)
            self._require_board().connect(address)

        made = asyncio.ensure_future(self._threaded(make))
        try:
            await asyncio.shield(made)
        except BaseException:
            # Threads cannot be cancelled: what this one makes is there when it has ended.
            await asyncio.gather(made, return_exceptions=True)
            await self._threaded(lambda: self._forget(uid))
            self.addresses.give_back(address)
            raise
        self._places[uid] = place
        return place

    def _adopt(self) -> None:
        pods = self.settings.directory / _PODS
        for directory in pods.iterdir() if pods.exists() else ():
            with contextlib.suppress(OSError, ValueError):
                address = IPv4Address((directory / _ADDRESS).read_text())
                if NetworkNamespace(directory / _NAMESPACE).exists:
                    self.addresses.keep(address)
                    self._places[directory.name] = _Place(address, directory / _NAMESPACE)
                    continue
            self._forget(directory.name)  # left half-made

    def _forget(self, uid: str) -> None:
        directory = self._directory(uid)
        NetworkNamespace(directory / _NAMESPACE).remove()
        shutil.rmtree(directory, ignore_errors=True)

    def _directory(self, uid: str) -> Path:
        return self.settings.directory / _PODS / uid

    # --- the switchyard ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._switchyard.exists:
            # Without it no pod of ours is connected to anything.
            self._on_node(lambda: links.disconnect_node(self.plan))
            shutil.rmtree(self.settings.directory / _PODS, ignore_errors=True)
            links.make_router_netns(self._switchyard.path, self.plan, self.settings.host)
            self._on_node(lambda: links.connect_node(self.plan))
            (self.settings.directory / _FORWARDING).write_text(self._on_node(lambda: links.set_forwarding("1")))
        rules = ruleset.node_rules(self.settings.table, self.plan.uplink, self.settings.pods, self.settings.uid)
        self._on_node(lambda: _nft(rules))
        self._inside = self._switchyard.executor()
        self._board = self._inside.submit(links.RouterLinks, self.plan).result()

    def _close(self) -> None:
        self._on_node(lambda: links.disconnect_node(self.plan))
        self._on_node(lambda: _nft(f"table inet {self.settings.table}\ndelete table inet {self.settings.table}\n"))
        with contextlib.suppress(FileNotFoundError):
            before = (self.settings.directory / _FORWARDING).read_text()
            self._on_node(lambda: links.set_forwarding(before))
        self._switchyard.remove()
        shutil.rmtree(self.settings.directory, ignore_errors=True)

    def _on_node(self, function: Callable[[], T]) -> T:
        return function() if self.settings.host is None else NetworkNamespace(self.settings.host).call(function)

    def _dns_sockets(self) -> tuple[socket.socket, socket.socket]:
        bound = []
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            sock = socket.socket(socket.AF_INET, kind)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(self.plan.gateway), 53))
            bound.append(sock)
        return bound[0], bound[1]

    def _require_board(self) -> links.RouterLinks:
        assert self._board is not None, "start first"
        return self._board

    async def _filter(self, script: str) -> None:
        await self._in_switchyard(lambda: _nft(script))

    async def _in_switchyard(self, function: Callable[[], T]) -> T:
        assert self._inside is not None, "start first"
        return await asyncio.get_running_loop().run_in_executor(self._inside, function)

    async def _threaded(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def endpoint_of(pod: Object, address: IPv4Address) -> Endpoint:
    metadata = pod["metadata"]
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    ports = {
        port["name"]: Port(str(port.get("protocol") or "TCP").lower(), port["containerPort"], port["containerPort"])
        for container in containers
        for port in container.get("ports") or ()
        if port.get("name")
    }
    return Endpoint(metadata["namespace"], metadata["name"], str(address), metadata.get("labels") or {}, ports)


def _nft(script: str) -> None:
    """A process started by a thread is in the thread's namespace."""
    nft = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if nft is None:
        raise FileNotFoundError("nft is not installed; as root run: apt-get install nftables")
    done = subprocess.run([nft, "-f", "-"], input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"nft: {done.stderr.strip()}")
