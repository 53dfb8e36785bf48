"""``sandpool why``: explain the state of an object in one sentence and a chain of causes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import click

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.printable import one_line
from sandpool.api.times import timestamp
from sandpool.cli.sessions import Target, target_options
from sandpool.engine.clock import SystemClock
from sandpool.explain.claim import Explanation, Link
from sandpool.explain.objects import explain_object
from sandpool.kube.errors import Forbidden, NotFound
from sandpool.service.errors import unknown_name
from sandpool.service.service import Service

#: Kinds by the words of users, in the order in which a name without a kind is looked for.
_KINDS: Final = {
    "claim": SANDBOX_CLAIM,
    "sandbox": SANDBOX,
    "pool": SANDBOX_WARM_POOL,
    "template": SANDBOX_TEMPLATE,
    "pod": POD,
}


class _AnyName(click.Group):
    """``why NAME`` and ``why KIND/NAME`` work like ``why KIND NAME``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        kind, slash, name = args[0].partition("/")
        if slash and kind in self.commands and name:
            return super().resolve_command(ctx, [kind, name, *args[1:]])
        if args[0] not in self.commands and not args[0].startswith("-"):
            return super().resolve_command(ctx, ["object", *args])
        return super().resolve_command(ctx, args)


@click.group(cls=_AnyName)
def why() -> None:
    """Explain why a claim, sandbox, pool, template or pod is in its state.

    \b
    sandpool why NAME
    sandpool why pool NAME
    """


def _command(kind: str, text: str) -> click.Command:
    def explain_one(name: str, target: Target) -> None:
        target.run(lambda service: _show(service, kind, name))

    return click.command(name=kind, help=text)(click.argument("name")(target_options(explain_one)))


for _kind, _text in {
    "claim": """Explain why a claim is ready or not.

    Needs permission to get claims. Permission to read pools, templates, sandboxes, events and pods makes the answer
    more precise.""",
    "sandbox": "Explain why a sandbox is ready, suspended or not ready.",
    "pool": "Explain why a pool is full or not.",
    "template": "Explain what uses a template, and its problems.",
    "pod": "Explain why a pod is ready or not.",
}.items():
    why.add_command(_command(_kind, _text))


@why.command(name="object", hidden=True)
@click.argument("name")
@target_options
def any_object(name: str, target: Target) -> None:
    """Explain the object with a name: a claim, or else a sandbox, a pool, a template or a pod."""

    async def work(service: Service) -> None:
        client, namespace = service.client, service.namespace
        for kind, type in _KINDS.items():
            try:
                await client.get(type, name, namespace)
            except (NotFound, Forbidden):
                continue
            await _show(service, kind, name)
            return
        known = [
            item["metadata"]["name"]
            for type in (SANDBOX_CLAIM, SANDBOX_WARM_POOL, SANDBOX_TEMPLATE)
            for item in (await client.list(type, namespace))["items"]
        ]
        raise unknown_name(
            "claim, sandbox, pool, template or pod", name, namespace, known, "List claims with: sandpool ls"
        )

    target.run(work)


async def _show(service: Service, kind: str, name: str) -> None:
    namespace = service.namespace
    try:
        explanation = await explain_object(service.client, kind, namespace, name, SystemClock().now())
    except NotFound:
        history = f"; with an audit log, `sandpool trace {kind} {name}` shows its history"
        raise click.ClickException(
            f'there is no {kind} "{name}" in namespace "{namespace}"{history if kind in ("claim", "sandbox") else ""}'
        ) from None
    except Forbidden as error:
        raise click.ClickException(f"{error}\nThis needs permission to get {_KINDS[kind].plural}") from None
    for line in lines(explanation):
        click.echo(line)


def lines(explanation: Explanation) -> Iterator[str]:
    yield one_line(explanation.sentence)
    yield ""
    for link in explanation.chain:
        yield f"  {_moment(link):<27}  {one_line(link.text)}"
    if explanation.advice:
        yield from ("", f"To do: {one_line(explanation.advice)}.")
    if explanation.unknown:
        yield from ("", "Unknown, because reading it is forbidden:")
        yield from (f"  {one_line(each)}" for each in explanation.unknown)


def _moment(link: Link) -> str:
    return "" if link.at is None else _shown(link.at)


def _shown(moment: datetime) -> str:
    """Format a time with the precision it has: seconds in API objects, microseconds in annotations and events."""
    return moment.isoformat(timespec="microseconds")[:26] + "Z" if moment.microsecond else timestamp(moment)
