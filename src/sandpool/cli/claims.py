"""``sandpool claim``, ``release`` and ``ls``: sandboxes that stay until they are released."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from sandpool.api.printable import one_line
from sandpool.cli.execution import parse_duration
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.output import Column, age, output_option, show
from sandpool.cli.pool_choice import choose_pool, pool_options, waiting_for_sandbox
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.claims import Claim
    from sandpool.service.sandboxes import Sandbox
    from sandpool.service.service import Service


@click.command(cls=GroupedCommand)
@click.argument("name", required=False)
@pool_options
@option(
    "--ttl",
    callback=parse_duration,
    metavar="DURATION",
    help="Release it after this time, such as 1h. [default: never]",
)
@target_options
def claim(
    name: str | None, pool: str | None, template: str | None, ttl: float | None, wait: float, target: Target
) -> None:
    """Claim a sandbox, and print the name of the claim.

    The sandbox is yours until you release it. Without NAME the claim gets a random name.

    \b
    box=$(sandpool claim)
    sandpool exec $box -- python3 -c 'print(6*7)'
    sandpool release $box
    """
    from sandpool.api.times import timestamp

    end = None if ttl is None else timestamp(datetime.now(UTC) + timedelta(seconds=ttl))

    async def work(service: Service) -> Claim:
        chosen = await choose_pool(service, pool, template, wait)
        with waiting_for_sandbox(chosen):
            return await service.claims.create(chosen, name=name, shutdown_time=end, timeout=wait)

    click.echo(target.run(work, start_home=True).name)


@click.command(cls=GroupedCommand)
@click.argument("names", nargs=-1, metavar="NAME...")
@option("--all", "everything", is_flag=True, help="Release all claims of the namespace.")
@target_options
def release(names: tuple[str, ...], everything: bool, target: Target) -> None:
    """Release claims: their sandboxes are deleted."""
    if bool(names) == everything:
        raise click.UsageError("name the claims to release, or use --all")

    async def work(service: Service) -> list[str]:
        chosen = [each.name for each in await service.claims.list()] if everything else list(dict.fromkeys(names))
        outcomes = await asyncio.gather(*(_release(service, each) for each in chosen), return_exceptions=True)
        for each, outcome in zip(chosen, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                click.echo(f"released {each}")
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]
        return chosen

    if not target.run(work):
        click.echo("there are no claims", err=True)


async def _release(service: Service, name: str) -> None:
    await service.claims.release(name.removeprefix("claim/"))


class _Row:
    """A line of ``ls``: a claim with its sandbox, or a sandbox without a claim."""

    def __init__(self, claim: Claim | None, sandbox: Sandbox | None, frozen: Collection[tuple[str, str]] = ()) -> None:
        self.claim = claim
        self.sandbox = sandbox
        self.is_frozen = sandbox is not None and (sandbox.namespace, sandbox.name) in frozen
        shown = claim or sandbox
        assert shown is not None
        self.name, self.namespace, self.created, self.object = shown.name, shown.namespace, shown.created, shown.object

    @property
    def state(self) -> str:
        claim, sandbox = self.claim, self.sandbox
        if sandbox is not None and sandbox.suspended:
            return "Asleep" if sandbox.asleep else "Suspended"
        if claim is not None:
            return (
                "Frozen"
                if claim.ready and self.is_frozen
                else "Ready"
                if claim.ready
                else one_line(claim.reason) or "Pending"
            )
        assert sandbox is not None
        return "Frozen" if self.is_frozen else "Ready" if sandbox.ready else one_line(sandbox.reason) or "Pending"

    @property
    def origin(self) -> str:
        if self.claim is not None:
            return self.claim.pool
        assert self.sandbox is not None
        return f"{self.sandbox.pool} (idle)" if self.sandbox.pool else ""


@click.command(cls=GroupedCommand)
@option("--all", "-a", "everything", is_flag=True, help="Also show sandboxes without a claim: idle pool members.")
@option("--all-namespaces", "-A", is_flag=True, help="Show all namespaces.")
@output_option
@target_options
def ls(everything: bool, all_namespaces: bool, output: str, target: Target) -> None:
    """List claims and their sandboxes."""

    async def work(service: Service) -> list[_Row]:
        claims, sandboxes = await asyncio.gather(
            service.claims.list(all_namespaces=all_namespaces), service.sandboxes.list(all_namespaces=all_namespaces)
        )
        frozen = await service.sandboxes.frozen(sandboxes)
        found = {(each.namespace, each.name): each for each in sandboxes}
        rows = [_Row(claim, found.pop((claim.namespace, claim.sandbox), None), frozen) for claim in claims]
        if everything:
            rows += [_Row(None, sandbox, frozen) for sandbox in found.values()]
        elif not all_namespaces:
            # Sandboxes that users made themselves are theirs, as claims are.
            rows += [_Row(None, each, frozen) for each in found.values() if not each.pool and not each.claim]
        return rows

    columns = [
        Column[_Row]("NAME", lambda row: row.name),
        Column[_Row]("STATE", lambda row: row.state),
        Column[_Row]("POOL", lambda row: row.origin),
        Column[_Row]("AGE", lambda row: age(row.created)),
        Column[_Row]("SANDBOX", lambda row: row.sandbox.name if row.sandbox else "", wide=True),
        Column[_Row]("LAUNCH", lambda row: row.sandbox.launch if row.sandbox else "", wide=True),
        Column[_Row]("NODE", lambda row: row.sandbox.node if row.sandbox else "", wide=True),
        Column[_Row](
            "MESSAGE", lambda row: "" if row.state in ("Ready", "Frozen") else one_line(_message(row)), wide=True
        ),
    ]
    if all_namespaces:
        columns.insert(0, Column("NAMESPACE", lambda row: row.namespace))
    show(
        target.run(work),
        columns,
        output=output,
        name=lambda row: f"{'claim' if row.claim else 'sandbox'}/{row.name}",
        document=lambda row: row.object,
        nothing="no claims; make one with: sandpool claim",
    )


def _message(row: _Row) -> str:
    shown = row.claim or row.sandbox
    return shown.message if shown is not None else ""
