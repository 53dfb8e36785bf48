"""The nodes of ``sandpool up``: this machine, simulated nodes, or none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import click

from sandpool.cli.flags import switch
from sandpool.cli.identities import NODE
from sandpool.node.simulated_assembly import DEFAULT_PODS, SimulatedNodes, node_names, remove_other_nodes
from sandpool.router import registration
from sandpool.server.api_server import ApiServer

F = TypeVar("F", bound=Callable[..., Any])

#: Pods on a real node, unless the operator gives another number.
MAX_PODS: Final = 1000
#: Node names of pods without a Node object, which pod garbage collection must spare.
NODELESS: Final = frozenset((registration.NODE,))


class Network(click.ParamType[IPv4Network]):
    """An option whose value is an IPv4 network."""

    name = "CIDR"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> IPv4Network:
        try:
            return IPv4Network(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


_OPTIONS: Final = (
    click.option(
        "--max-pods",
        type=click.IntRange(min=1),
        help=f"Maximum number of pods on a node. [default: {MAX_PODS}; {DEFAULT_PODS} on a simulated node]",
    ),
    click.option(
        "--pod-cidr", type=Network(), help="Network of the pods. [default: the first free one from 10.231.0.0/16]"
    ),
    click.option(
        "--host-netns",
        type=click.Path(path_type=Path, exists=True),
        help="Network namespace that pods connect to. [default: the one of this process]",
    ),
    switch("--allow-host-path", False, "Allow hostPath volumes."),
    switch(
        "--allow-unsafe-process-runtime",
        False,
        "Allow the runtime class `process`, which has NO ISOLATION; without root, all pods use it.",
    ),
)
NAMES: Final = ("max_pods", "pod_cidr", "host_netns", "allow_host_path", "allow_unsafe_process_runtime", "keep")


def keep_option(default: bool) -> Callable[[F], F]:
    return switch("--keep", default, "Leave pods running on exit; the next start adopts them.")


def node_options(command: F) -> F:
    """Add the options that ``sandpool up`` and ``sandpool node`` share."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Choice:
    """Which nodes to run: ``simulated`` many, or else this machine if ``real``."""

    simulated: int
    real: bool
    max_pods: int | None
    pod_cidr: IPv4Network | None
    host_netns: Path | None
    allow_host_path: bool
    allow_unsafe_process_runtime: bool
    keep: bool


class Running:
    """Running nodes. A coroutine of ``parts`` returns only when a node fails. ``pods`` counts those with processes.
    ``keep`` decides, when the nodes stop, whether their pods run on."""

    def __init__(
        self,
        parts: list[Callable[[], Coroutine[Any, Any, None]]],
        greeting: str,
        pods: Callable[[], int] = lambda: 0,
        *,
        keep: bool = False,
    ) -> None:
        self.parts = parts
        self.greeting = greeting
        self.pods = pods
        self.keep = keep


@asynccontextmanager
async def nodes(server: ApiServer, directory: Path, choice: Choice) -> AsyncIterator[Running]:
    """Run the chosen nodes for the length of the block, and remove simulated ones of an earlier run."""
    await remove_other_nodes(server.client(NODE, name="simulated-nodes"), node_names(choice.simulated))
    if choice.simulated:
        async with _simulated(server, choice.simulated, choice.max_pods or DEFAULT_PODS) as running:
            yield running
    elif choice.real:
        # Imported here because the import takes as long as all others together.
        from sandpool.cli.local_node import this_machine

        async with this_machine(server, directory, choice) as running:
            yield running
    else:
        yield Running(
            [],
            "no node: sandboxes stay Pending; use --simulated-nodes 1 to try the API without running anything, "
            "or join a node from another process with `sandpool node --schedule`",
        )


@asynccontextmanager
async def _simulated(server: ApiServer, count: int, pods: int) -> AsyncIterator[Running]:
    running = SimulatedNodes(lambda name: server.client(NODE, name=name), server.clock, Random(), count, pods=pods)
    try:
        await running.start()
        plural = "s" if count > 1 else ""
        greeting = f"{count} simulated node{plural}: pods become ready, but nothing runs in them"
        yield Running([running.wait], greeting)
    finally:
        await running.stop()
