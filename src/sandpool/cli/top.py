"""``sandpool top``: pools, claims, CPU and memory, live."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from sandpool.api.printable import one_line
from sandpool.api.resource import Object
from sandpool.cli.execution import parse_duration
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.output import DOCUMENTS, Column, age, output_option, show_document, shown, size, table
from sandpool.cli.sessions import Target, interrupted_is_success, target_options

if TYPE_CHECKING:
    from sandpool.service.claims import Claim
    from sandpool.service.pools import Pool
    from sandpool.service.sandboxes import Sandbox
    from sandpool.service.service import Service
    from sandpool.service.usage import Sample

_FIRST = 0.5  # seconds between the two samples of the first screen
_CLEAR = "\x1b[H\x1b[J"


@click.command(cls=GroupedCommand)
@option("--once", is_flag=True, help="Show one screen and end. [default: if the output is not a terminal]")
@option(
    "--interval",
    default="2s",
    show_default=True,
    callback=parse_duration,
    metavar="DURATION",
    help="Time between two screens.",
)
@option("--all-namespaces", "-A", is_flag=True, help="Show all namespaces.")
@output_option
@target_options
def top(once: bool, interval: float, all_namespaces: bool, output: str, target: Target) -> None:
    """Show pools and claims with the CPU and memory they use, until Ctrl-C.

    CPU is the mean number of CPUs in use since the last refresh, memory the working set. Both come from the nodes and
    need permission to get nodes/proxy. With -o json, yaml or name, the command prints once and ends.
    """
    live = not once and sys.stdout.isatty() and output in ("table", "wide")

    async def work(service: Service) -> None:
        before = await _sample(service, all_namespaces)
        await asyncio.sleep(_FIRST)
        while True:
            now = await _sample(service, all_namespaces)
            if output in DOCUMENTS:
                show_document(_document(now, before), output)
                return
            screen = "\n".join(_names(now, before) if output == "name" else _screen(now, before, output))
            if screen or output != "name":
                click.echo(_CLEAR + screen if live else screen)
            if not live:
                return
            before = now
            await asyncio.sleep(interval)

    with interrupted_is_success():
        target.run(work)


class _State:
    """The content of one screen."""

    def __init__(
        self, pools: tuple[Pool, ...], claims: tuple[Claim, ...], sandboxes: tuple[Sandbox, ...], sample: Sample
    ) -> None:
        self.pools = pools
        self.claims = claims
        self.sandboxes = {(each.namespace, each.name): each for each in sandboxes}
        self.sample = sample


class _Used(NamedTuple):
    """A pool or a claim with what it uses; ``None`` where that is unknown."""

    namespace: str
    name: str
    state: str
    cpu: float | None
    memory: int | None
    claimed: int = 0  # of a pool
    age: str = ""  # of a claim
    node: str = ""  # of a claim

    def document(self, **more: object) -> Object:
        return {"namespace": self.namespace, "name": self.name, **more, "cpu": self.cpu, "memoryBytes": self.memory}


_CPU: Column[_Used] = Column("CPU", lambda row: "-" if row.cpu is None else f"{row.cpu:.2f}")
_MEMORY: Column[_Used] = Column("MEMORY", lambda row: "-" if row.memory is None else size(row.memory))
_NAMESPACE: Column[_Used] = Column("NAMESPACE", lambda row: row.namespace, wide=True)
_POOLS: tuple[Column[_Used], ...] = (
    Column("POOL", lambda row: row.name),
    Column("READY", lambda row: row.state),
    Column("CLAIMED", lambda row: str(row.claimed)),
    _CPU,
    _MEMORY,
    _NAMESPACE,
)
_CLAIMS: tuple[Column[_Used], ...] = (
    Column("CLAIM", lambda row: row.name),
    Column("STATE", lambda row: row.state),
    _CPU,
    _MEMORY,
    Column("AGE", lambda row: row.age),
    _NAMESPACE,
    Column("NODE", lambda row: row.node, wide=True),
)


async def _sample(service: Service, all_namespaces: bool) -> _State:
    pools, claims, sandboxes = await asyncio.gather(
        service.pools.list(all_namespaces=all_namespaces),
        service.claims.list(all_namespaces=all_namespaces),
        service.sandboxes.list(all_namespaces=all_namespaces),
    )
    usage = await service.usage.sample({each.node for each in sandboxes if each.node})
    return _State(pools, claims, sandboxes, usage)


def _used(now: _State, before: _State) -> tuple[list[_Used], list[_Used]]:
    """Return the pools, and the claims with the busiest first."""
    claims = sorted((_claim(each, now, before) for each in now.claims), key=lambda row: -(row.cpu or 0.0))
    return [_pool(each, now, before) for each in now.pools], claims


def _screen(now: _State, before: _State, output: str) -> list[str]:
    lines = []
    for rows, columns in zip(_used(now, before), (_POOLS, _CLAIMS), strict=True):
        if rows:
            lines += [table(*shown(rows, columns, wide=output == "wide")), ""]
    if not lines:
        lines = ["no pools and no claims", ""]
    lines += [f"CPU and memory are incomplete: {one_line(problem)}" for problem in now.sample.problems]
    return lines if lines[-1] else lines[:-1]


def _names(now: _State, before: _State) -> list[str]:
    pools, claims = _used(now, before)
    return [f"pool/{each.name}" for each in pools] + [f"claim/{each.name}" for each in claims]


def _document(now: _State, before: _State) -> Object:
    pools, claims = _used(now, before)
    return {
        "pools": [
            each.document(ready=pool.ready, desired=pool.desired, claimed=each.claimed)
            for each, pool in zip(pools, now.pools, strict=True)
        ],
        "claims": [each.document(state=each.state, node=each.node) for each in claims],
        "problems": list(now.sample.problems),
    }


def _pool(pool: Pool, now: _State, before: _State) -> _Used:
    claimed = [each for each in now.claims if (each.namespace, each.pool) == (pool.namespace, pool.name)]
    held = {each.sandbox for each in claimed}
    members = [
        (each.namespace, each.pod)
        for each in now.sandboxes.values()
        if each.namespace == pool.namespace and (each.name in held or each.pool == pool.name)
    ]
    cores = [found for key in members if (found := now.sample.cores(key, before.sample)) is not None]
    memory = [usage.memory for key in members if (usage := now.sample.pods.get(key))]
    return _Used(
        pool.namespace,
        pool.name,
        f"{pool.ready}/{pool.desired}",
        sum(cores) if cores else None,
        sum(memory) if memory else None,
        claimed=len(claimed),
    )


def _claim(claim: Claim, now: _State, before: _State) -> _Used:
    sandbox = now.sandboxes.get((claim.namespace, claim.sandbox))
    state = "Ready" if claim.ready else one_line(claim.reason) or "Pending"
    if sandbox is None:
        return _Used(claim.namespace, claim.name, state, None, None, age=age(claim.created))
    key = (sandbox.namespace, sandbox.pod)
    usage = now.sample.pods.get(key)
    return _Used(
        claim.namespace,
        claim.name,
        "Asleep" if sandbox.asleep else "Suspended" if sandbox.suspended else state,
        now.sample.cores(key, before.sample),
        None if usage is None else usage.memory,
        age=age(claim.created),
        node=sandbox.node,
    )
