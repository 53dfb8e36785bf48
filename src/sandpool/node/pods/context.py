"""Dependencies that the pod workers of a node share: the API client, the clock, and the parts that do the work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from sandpool.api.resource import SharedObject
from sandpool.engine.clock import Clock
from sandpool.engine.events import EventRecorder
from sandpool.kube.client import Client
from sandpool.node.pods.host_users import HostUsers
from sandpool.node.pods.interfaces import Images, Logs, Network, RootDisks, Volumes
from sandpool.node.runtimes.handlers import refusal
from sandpool.node.runtimes.runtime import DEFAULT_PIDS, Runtime

#: Below the state directory: one directory per pod, named by its UID.
PODS: Final = "pods"
_AT_ONCE: Final = 8


class NoRuntime(Exception):
    """No runtime of this node runs pods of that class. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Runtimes:
    """Runtimes by handler, the name that a RuntimeClass refers to. A pod runs with the handler it asks for or not at
    all."""

    available: Mapping[str, Runtime]
    default: str
    unavailable: Mapping[str, str] = field(default_factory=dict)
    # Guarantees that do not hold on this node: type of a node condition -> its message.
    weaknesses: Mapping[str, str] = field(default_factory=dict)
    # Runtimes whose self-test failed. They start no containers, but containers of an earlier agent keep running and can
    # be stopped: a self-test may fail only because the machine is busy.
    failed: Mapping[str, Runtime] = field(default_factory=dict)

    @property
    def every(self) -> Mapping[str, Runtime]:
        """The available runtimes and those whose self-test failed."""
        return {**self.failed, **self.available}

    def choose(self, handler: str) -> Runtime:
        """Return the runtime of a handler, or the default one if ``handler`` is empty. Raises ``NoRuntime``."""
        found = self.available.get(handler or self.default)
        if found is not None:
            return found
        wanted = handler or self.default
        raise NoRuntime(refusal(wanted, self.unavailable.get(wanted, "")))


@dataclass(frozen=True, slots=True)
class PodOptions:
    """Settings of the pods of a node."""

    node_name: str
    directory: Path  # holds everything that belongs to pods
    cluster_domain: str = "cluster.local"
    allow_host_paths: bool = False
    pids: int = DEFAULT_PIDS  # per container
    resolv_conf: Path = Path("/etc/resolv.conf")

    def pod_directory(self, uid: str) -> Path:
        return self.pods / uid

    @property
    def pods(self) -> Path:
        return self.directory / PODS


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Dependencies of a pod worker.

    * ``service_links`` returns the environment variables for pods of a namespace.
    * ``runtime_handler`` returns the handler of a RuntimeClass, or None if the class does not exist.
    * ``record_write`` receives the API's answer to every write of a pod, for the cache.
    * ``background_turn`` waits for the background gate: every step of starting a warm pod yields to the claims in the
      same loop.
    """

    client: Client
    clock: Clock
    rng: Random
    recorder: EventRecorder
    options: PodOptions
    runtimes: Runtimes
    images: Images
    network: Network
    volumes: Volumes
    logs: Logs
    host_users: HostUsers
    allocatable: Mapping[str, str]
    service_links: Callable[[str, bool], Mapping[str, str]]
    runtime_handler: Callable[[str], str | None]
    record_write: Callable[[SharedObject], None]
    background_turn: Callable[[], Awaitable[None]]
    root_disks: RootDisks | None = None  # None: containers write to memory
    # Limits on pods prepared and containers started at the same time. Beyond them each one takes longer and none is
    # done sooner.
    preparing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
