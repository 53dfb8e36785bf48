"""What the workers of a node share: the API, the clock, and the parts that do the work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.engine.events import EventRecorder
from sandpool.kube.client import Client
from sandpool.node.pods.host_users import HostUsers
from sandpool.node.pods.interfaces import Images, Logs, Network, Volumes
from sandpool.node.runtimes.handlers import refusal
from sandpool.node.runtimes.runtime import DEFAULT_PIDS, Runtime

#: Below the state directory: one directory per pod, named by its UID.
PODS: Final = "pods"
_AT_ONCE: Final = 8


class NoRuntime(Exception):
    """Nothing on this node runs pods of that class; the message says why."""


@dataclass(frozen=True, slots=True)
class Runtimes:
    """By handler, which is what RuntimeClasses name. Those that failed their self-test are there with what they failed
    on. A pod is never run by another than the one it asks for."""

    available: Mapping[str, Runtime]
    default: str
    unavailable: Mapping[str, str] = field(default_factory=dict)
    # What the operator has allowed although it does not hold: type of a node condition -> a sentence.
    weaknesses: Mapping[str, str] = field(default_factory=dict)
    # Those that failed. Nothing is started with them, but what an earlier node has started runs on and can be ended: a
    # self-test may fail for no better reason than that the machine is busy.
    failed: Mapping[str, Runtime] = field(default_factory=dict)

    @property
    def every(self) -> Mapping[str, Runtime]:
        return {**self.failed, **self.available}

    def choose(self, handler: str) -> Runtime:
        """The runtime of a handler, the default one if it is empty."""
        found = self.available.get(handler or self.default)
        if found is not None:
            return found
        wanted = handler or self.default
        raise NoRuntime(refusal(wanted, self.unavailable.get(wanted, "")))


@dataclass(frozen=True, slots=True)
class PodOptions:
    """What the operator decides about the pods of a node."""

    node_name: str
    directory: Path  # where everything of pods is kept
    cluster_domain: str = "cluster.local"
    allow_host_paths: bool = False
    pids: int = DEFAULT_PIDS  # of one container
    resolv_conf: Path = Path("/etc/resolv.conf")

    def pod_directory(self, uid: str) -> Path:
        return self.pods / uid

    @property
    def pods(self) -> Path:
        return self.directory / PODS


@dataclass(frozen=True, slots=True)
class NodeContext:
    """``service_links`` gives the variables for pods of a namespace, ``handler`` the handler of a RuntimeClass or None
    if there is no such class. ``wrote`` is told the answer of every write of a pod. Each step of the start of a pod
    that nobody waits for waits for its ``turn``."""

    client: Client
    clock: Clock
    random: Random
    recorder: EventRecorder
    settings: PodOptions
    runtimes: Runtimes
    images: Images
    network: Network
    volumes: Volumes
    logs: Logs
    host_users: HostUsers
    allocatable: Mapping[str, str]
    service_links: Callable[[str, bool], Mapping[str, str]]
    handler: Callable[[str], str | None]
    wrote: Callable[[Object], None]
    turn: Callable[[], Awaitable[None]]
    # How many pods are prepared and how many containers started at the same time: with more, all of them take longer
    # and none is done sooner.
    preparing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
