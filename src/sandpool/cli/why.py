"""``sandpool why``: explain the state of a claim in one sentence and a chain of causes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click

from sandpool.api.times import timestamp
from sandpool.cli.cluster import change
from sandpool.engine.clock import SystemClock
from sandpool.explain.claim import Explanation, Link, explain_claim
from sandpool.explain.observe import observe_claim
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden, NotFound


@click.group()
def why() -> None:
    """Explain why an object is in its state."""


@why.command()
@click.argument("name")
@click.option("--namespace", "-n", default="default", show_default=True)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the cluster. [default: as kubectl]",
)
@click.option("--context", help="Context of the kubeconfig. [default: the current one]")
def claim(name: str, namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Explain why a claim is ready or not.

    Needs permission to get claims. Permission to read pools, templates, sandboxes, events and pods makes the answer
    more precise."""

    async def work(client: Client) -> None:
        try:
            observed = await observe_claim(client, namespace, name, SystemClock().now())
        except NotFound:
            raise click.ClickException(
                f'there is no claim "{name}" in namespace "{namespace}"; with an audit log, '
                f"`sandpool trace claim {name}` shows its history"
            ) from None
        except Forbidden as error:
            raise click.ClickException(f"{error}\nThis needs permission to get sandboxclaims") from None
        for line in lines(explain_claim(observed)):
            click.echo(line)

    change(kubeconfig, context, work)


def lines(explanation: Explanation) -> Iterator[str]:
    yield explanation.sentence
    yield ""
    for link in explanation.chain:
        yield f"  {_moment(link):<27}  {link.text}"
    if explanation.advice:
        yield from ("", f"To do: {explanation.advice}.")
    if explanation.unknown:
        yield from ("", "Unknown, because reading it is forbidden:")
        yield from (f"  {each}" for each in explanation.unknown)


def _moment(link: Link) -> str:
    return "" if link.at is None else _shown(link.at)


def _shown(moment: datetime) -> str:
    """Format a time with the precision it has: seconds in API objects, microseconds in annotations and events."""
    return moment.isoformat(timespec="microseconds")[:26] + "Z" if moment.microsecond else timestamp(moment)
