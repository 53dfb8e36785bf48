"""``sandpool open``: a local URL for a server in a sandbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from sandpool.api.printable import one_line
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.sessions import Target, interrupted_is_success, target_options

if TYPE_CHECKING:
    from sandpool.service.service import Service


@click.command(cls=GroupedCommand)
@click.argument("name")
@click.argument("port", type=click.IntRange(1, 65535))
@option("--local-port", "-l", type=click.IntRange(0, 65535), default=0, help="Local port. [default: a free one]")
@option("--browser", is_flag=True, help="Open the URL in the browser.")
@target_options
def open(name: str, port: int, local_port: int, browser: bool, target: Target) -> None:  # noqa: A001 - the name of the command
    """Print a local URL for a server in a sandbox, and forward it until Ctrl-C.

    NAME is the name of a claim or of a sandbox, PORT the port that the server in it listens on.

    \b
    sandpool exec my-claim -- sh -c 'python3 -m http.server 8000 >/dev/null 2>&1 &'
    sandpool open my-claim 8000
    """

    def problem(line: str) -> None:
        click.echo(one_line(line), err=True)

    async def work(service: Service) -> None:
        sandbox = await service.sandboxes.find(name)
        async with service.ports.forward(sandbox, port, local_port=local_port, problem=problem) as local:
            url = f"http://127.0.0.1:{local}"
            click.echo(url)
            if browser:
                click.launch(url)
            await asyncio.get_running_loop().create_future()

    with interrupted_is_success():
        target.run(work)
