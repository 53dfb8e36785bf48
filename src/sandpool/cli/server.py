"""``sandpool server``: run the embedded API alone, in the foreground."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import click

from sandpool.cli import foreground, observability, serving
from sandpool.engine.logging import TEXT
from sandpool.server.serving import gc_tuning
from sandpool.server.serving.daemon import Daemon, ServerOptions


@click.command()
@serving.server_options
@observability.log_options(TEXT)
def server(log_format: str, log_level: str, **options: Any) -> None:
    """Run the embedded Kubernetes API until Ctrl-C or SIGTERM."""
    observability.begin(log_format, log_level)
    foreground.run(partial(_serve, serving.settings(**options)))


async def _serve(settings: ServerOptions, stopping: asyncio.Event) -> None:
    daemon = Daemon(settings)
    with serving.complaints(settings):
        await daemon.start()
    gc_tuning.settle()
    click.echo(f"serving {daemon.url}   export KUBECONFIG={daemon.kubeconfig}")
    await stopping.wait()
    await daemon.stop()
