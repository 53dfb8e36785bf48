"""``sandpool server``: the embedded API alone, in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
from pathlib import Path

import click

from sandpool.engine import logs
from sandpool.server import memory
from sandpool.server.daemon import Daemon, Settings
from sandpool.server.kubeconfig import ForeignFile
from sandpool.server.store.journal import StoreDamaged, StoreInUse


@click.command()
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where everything is kept."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=6443, show_default=True, help="0 lets the system choose."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--tls-san", multiple=True, metavar="NAME", help="Another name or address for the server's certificate.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the kubeconfig. [default: in the data directory]",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help='More users: token,user,uid,"groups" per line.',
)
@click.option(
    "--audit-log", type=click.Path(path_type=Path, dir_okay=False), help="Record every request here, as JSON lines."
)
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    default=logs.TEXT,
    show_default=True,
    help="Form of the server's own log, on standard error.",
)
def server(
    data_dir: Path,
    port: int,
    host: str,
    tls_san: tuple[str, ...],
    kubeconfig: Path | None,
    token_file: Path | None,
    audit_log: Path | None,
    log_format: str,
) -> None:
    """Run the embedded Kubernetes API until it is told to stop (Ctrl-C or SIGTERM)."""
    logs.configure(log_format)
    if not _is_loopback(host):
        click.echo(
            f"warning: {host} is reachable from other machines; whoever has the token is administrator", err=True
        )
    settings = Settings(data_dir, host, port, tls_san, kubeconfig, token_file, audit_log)
    try:
        _run(settings)
    except (StoreInUse, StoreDamaged, ForeignFile, ValueError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot serve {host}:{port} from {data_dir}: {error.strerror or error}") from None


def _run(settings: Settings) -> None:
    loop_factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)  # asked twice: somebody is in a hurry
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    daemon = Daemon(settings)
    await daemon.start()
    memory.settle()
    click.echo(f"serving {daemon.url}   export KUBECONFIG={daemon.kubeconfig}")
    await stopping.wait()
    await daemon.stop()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
