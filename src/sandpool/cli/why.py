"""``sandpool why``: what became of a claim, or what it waits for, in one sentence and the chain of causes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click

from sandpool.api.times import timestamp
from sandpool.cli.cluster import change
from sandpool.engine.clock import SystemClock
from sandpool.explain.claim import Explanation, Link, explain_claim
from sandpool.explain.observing import observe_claim
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden, NotFound


@click.group()
def why() -> None:
    """Say why something is as it is."""


@why.command()
@click.argument("name")
@click.option("--namespace", "-n", default="default", show_default=True)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="How to reach the cluster. [default: as kubectl does]",
)
@click.option("--context", help="The context to use. [default: the current one]")
def claim(name: str, namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Why a claim is ready, or is not. Takes the right to read claims; whatever else may be read makes the answer more
    precise: pools, templates, sandboxes, events, pods."""

    async def work(client: Client) -> None:
        try:
            observed = await observe_claim(client, namespace, name, SystemClock().now())
        except NotFound:
            raise click.ClickException(
                f'there is no claim "{name}" in namespace "{namespace}"; `sandpool trace claim {name}` tells what '
                "became of it if there is an audit log"
            ) from None
        except Forbidden as error:
            raise click.ClickException(f"{error}\nThis takes the right to get sandboxclaims") from None
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
        yield from ("", "Not known, because it may not be read:")
        yield from (f"  {each}" for each in explanation.unknown)


def _moment(link: Link) -> str:
    return "" if link.at is None else _shown(link.at)


def _shown(moment: datetime) -> str:
    """As precise as it is known: the API keeps whole seconds, annotations and events keep microseconds."""
    return moment.isoformat(timespec="microseconds")[:26] + "Z" if moment.microsecond else timestamp(moment)
