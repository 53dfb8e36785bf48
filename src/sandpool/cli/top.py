"""``sandpool top``: pools, claims, CPU and memory, live."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from sandpool.api.printable import one_line
from sandpool.cli.execution import parse_duration
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.output import age, size, table
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
@target_options
def top(once: bool, interval: float, all_namespaces: bool, target: Target) -> None:
    """Show pools and claims with the CPU and memory they use, until Ctrl-C.

    CPU is the number of CPUs used since the screen before, memory the working set. Both come from the nodes and need
    permission to get nodes/proxy.
    """
    live = not once and sys.stdout.isatty()

    async def work(service: Service) -> None:
        before = await _sample(service, all_namespaces)
        await asyncio.sleep(_FIRST)
        while True:
            now = await _sample(service, all_namespaces)
            screen = "\n".join(_screen(now, before))
            click.echo(_CLEAR + screen if live else screen)
            if not live:
                return
            before = now
            await asyncio.sleep(interval)

    with interrupted_is_success():
        target.run(work)


class _State:
    """What one screen shows."""

    def __init__(
        self, pools: tuple[Pool, ...], claims: tuple[Claim, ...], sandboxes: tuple[Sandbox, ...], sample: Sample
    ) -> None:
        self.pools = pools
        self.claims = claims
        self.sandboxes = {(each.namespace, each.name): each for each in sandboxes}
        self.sample = sample


async def _sample(service: Service, all_namespaces: bool) -> _State:
    pools, claims, sandboxes = await asyncio.gather(
        service.pools.list(all_namespaces=all_namespaces),
        service.claims.list(all_namespaces=all_namespaces),
        service.sandboxes.list(all_namespaces=all_namespaces),
    )
    usage = await service.usage.sample({each.node for each in sandboxes if each.node})
    return _State(pools, claims, sandboxes, usage)


def _screen(now: _State, before: _State) -> list[str]:
    lines = []
    if now.pools:
        head = ["POOL", "READY", "CLAIMED", "CPU", "MEMORY"]
        lines += [table(head, [_pool(pool, now, before) for pool in now.pools]), ""]
    if now.claims:
        rows = [_claim(claim, now, before) for claim in now.claims]
        rows.sort(key=lambda row: -_number(row[2]))
        lines += [table(["CLAIM", "STATE", "CPU", "MEMORY", "AGE"], rows), ""]
    if not lines:
        lines = ["no pools and no claims", ""]
    lines += [f"CPU and memory are incomplete: {one_line(problem)}" for problem in now.sample.problems]
    return lines if lines[-1] else lines[:-1]


def _pool(pool: Pool, now: _State, before: _State) -> list[str]:
    claimed = [each for each in now.claims if (each.namespace, each.pool) == (pool.namespace, pool.name)]
    held = {each.sandbox for each in claimed}
    members = [
        each
        for each in now.sandboxes.values()
        if each.namespace == pool.namespace and (each.name in held or each.pool == pool.name)
    ]
    cores = [now.sample.cores((each.namespace, each.pod), before.sample) for each in members]
    memory = [usage.memory for each in members if (usage := now.sample.pods.get((each.namespace, each.pod)))]
    return [
        pool.name,
        f"{pool.ready}/{pool.desired}",
        str(len(claimed)),
        _cpu(sum(each for each in cores if each is not None) if any(each is not None for each in cores) else None),
        size(sum(memory)) if memory else "-",
    ]


def _claim(claim: Claim, now: _State, before: _State) -> list[str]:
    sandbox = now.sandboxes.get((claim.namespace, claim.sandbox))
    state = "Ready" if claim.ready else one_line(claim.reason) or "Pending"
    if sandbox is None:
        return [claim.name, state, "-", "-", age(claim.created)]
    key = (sandbox.namespace, sandbox.pod)
    usage = now.sample.pods.get(key)
    return [
        claim.name,
        "Asleep" if sandbox.asleep else "Suspended" if sandbox.suspended else state,
        _cpu(now.sample.cores(key, before.sample)),
        "-" if usage is None else size(usage.memory),
        age(claim.created),
    ]


def _cpu(cores: float | None) -> str:
    return "-" if cores is None else f"{cores:.2f}"


def _number(text: str) -> float:
    return 0.0 if text == "-" else float(text)
