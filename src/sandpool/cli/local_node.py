"""Runs this machine as the node of ``sandpool up``."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from sandpool.cli.identities import NODE
from sandpool.cli.node_instance import NodeInstance
from sandpool.cli.nodes import MAX_PODS, Choice, Running
from sandpool.cli.serving import node_directory
from sandpool.home.discovery import NO_PODS
from sandpool.node.assembly import Node, NodeOptions
from sandpool.node.registration import RegistrationOptions
from sandpool.node.runtimes.handlers import tried
from sandpool.node.runtimes.process import PROCESS
from sandpool.server.api_server import ApiServer
from sandpool.service.waking import Waker


@asynccontextmanager
async def this_machine(server: ApiServer, directory: Path, choice: Choice) -> AsyncIterator[Running]:
    """Run the node for the length of the block."""
    node = Node(server.client(NODE, name="node"), server.clock, Random(), _settings(directory, choice))
    await node.start()
    server.pod_access = node.pod_access
    server.waker = Waker(server.client(NODE, name="waker"), monotonic=server.clock.monotonic)
    node.agent.sleep.is_waking = server.waker.is_waking
    running = Running([node.wait], _description_of(node), lambda: len(node.agent.workers), keep=choice.keep)
    try:
        yield running
    finally:
        server.pod_access = server.waker = None
        await node.stop(keep=running.keep and running.pods() > 0)  # the network stays for pods only


def _settings(directory: Path, choice: Choice) -> NodeOptions:
    mark = NodeInstance.of(directory)
    return NodeOptions(
        node_directory(directory),
        RegistrationOptions(platform.node().lower(), pods=choice.max_pods or MAX_PODS),
        instance=mark.instance,
        addresses=choice.pod_cidr,
        first_host_user=mark.first_host_user,
        allow_host_paths=choice.allow_host_path,
        host=choice.host_netns,
        unsafe_processes=choice.allow_unsafe_process_runtime,
    )


def _description_of(node: Node) -> str:
    runtimes, name = node.agent.parts.runtimes, node.agent.name
    if not runtimes.available:
        why = "; ".join(f"{runtime}: {reason}" for runtime, reason in sorted(tried(runtimes.unavailable).items()))
        return f"{name} {NO_PODS}: {why} (use --simulated-nodes 1 to try the API without running anything)"
    weak = "".join(f"\n{message}" for message in (*node.network.weaknesses.values(), *runtimes.weaknesses.values()))
    how = "without isolation" if runtimes.default == PROCESS else f"confined by {runtimes.default}"
    return f"{name} runs pods {how}{weak}"
