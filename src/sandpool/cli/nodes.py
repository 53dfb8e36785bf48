"""The nodes of ``sandpool up``: this machine, simulated nodes, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sandpool.cli.flags import switch
from sandpool.cli.identities import NODE
from sandpool.node.simulated import SimulatedNode
from sandpool.router import registration
from sandpool.server.api_server import ApiServer

F = TypeVar("F", bound=Callable[..., Any])


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
        default=1000,
        show_default=True,
        help="Maximum number of pods on the node.",
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
    switch("--keep", False, "Leave pods running on exit; the next start adopts them."),
)
NAMES: Final = ("max_pods", "pod_cidr", "host_netns", "allow_host_path", "allow_unsafe_process_runtime", "keep")


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
    max_pods: int
    pod_cidr: IPv4Network | None
    host_netns: Path | None
    allow_host_path: bool
    allow_unsafe_process_runtime: bool
    keep: bool


class Running:
    """Running nodes. A coroutine of ``parts`` returns only when a node fails."""

    def __init__(self, parts: list[Callable[[], Coroutine[Any, Any, None]]], greeting: str) -> None:
        self.parts = parts
        self.greeting = greeting


def nodeless(choice: Choice) -> frozenset[str]:
    """Return the node names of pods without a Node object, which pod garbage collection must spare."""
    return frozenset((registration.NODE, *_names(choice.simulated)))


def _names(simulated: int) -> list[str]:
    return [f"simulated-{number}" for number in range(1, simulated + 1)]


@asynccontextmanager
async def nodes(server: ApiServer, directory: Path, choice: Choice) -> AsyncIterator[Running]:
    """Run the chosen nodes for the length of the block."""
    if choice.simulated:
        async with _simulated(server, choice.simulated) as running:
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
async def _simulated(server: ApiServer, count: int) -> AsyncIterator[Running]:
    made = [
        SimulatedNode(
            server.client(NODE, name=name),
            server.clock,
            name=name,
            brief=True,
            first_address=f"10.{number}.0.1",
        )
        for number, name in enumerate(_names(count), start=1)
    ]
    tasks = [asyncio.create_task(node.run(), name=node.name) for node in made]

    async def ended() -> None:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    try:
        plural = "s" if count > 1 else ""
        yield Running([ended], f"{count} simulated node{plural}: pods become ready, but nothing runs in them")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
