"""``sandpool server``: the embedded API alone, in the foreground."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import click

from sandpool.cli import foreground, serving, telling
from sandpool.engine.logging import TEXT
from sandpool.server.serving import gc_tuning
from sandpool.server.serving.daemon import Daemon, ServerOptions


@click.command()
@serving.server_options
@telling.log_options(TEXT)
def server(log_format: str, log_level: str, **options: Any) -> None:
    """Run the embedded Kubernetes API until it is told to stop (Ctrl-C or SIGTERM)."""
    telling.begin(log_format, log_level)
    foreground.run(partial(_serve, serving.settings(**options)))


async def _serve(settings: ServerOptions, stopping: asyncio.Event) -> None:
    daemon = Daemon(settings)
    with serving.complaints(settings):
        await daemon.start()
    gc_tuning.settle()
    click.echo(f"serving {daemon.url}   export KUBECONFIG={daemon.kubeconfig}")
    await stopping.wait()
    await daemon.stop()
