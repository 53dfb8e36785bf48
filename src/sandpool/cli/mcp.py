"""``sandpool mcp``: sandboxes as tools of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.pool_choice import choose_pool
from sandpool.cli.sessions import INTERRUPTED, Target, interrupted_is_success, interruptible, target_options

if TYPE_CHECKING:
    from sandpool.mcp.sessions import Sessions

_HTTP: Final = "Over HTTP"
_TOKEN: Final = "mcp-token"
_LEAST_TOKEN: Final = 16  # characters
_POOL_SECONDS: Final = 120.0  # to fill a pool that is made for the first sandbox


@click.command(cls=GroupedCommand)
@option("--pool", "-p", help="Take sandboxes from this pool. [default: python, or the only pool]")
@option(
    "--max-output",
    type=click.IntRange(1024),
    default=64 << 10,
    show_default=True,
    help="Bytes of each of standard output, standard error, values and traceback that a result has.",
)
@option("--http", group=_HTTP, metavar="[HOST:]PORT", help="Serve streamable HTTP at this address instead of stdio.")
@option(
    "--token-file",
    group=_HTTP,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token that clients need. [default: mcp-token in the data directory, made if missing]",
)
@option(
    "--behind-tls-proxy",
    group=_HTTP,
    is_flag=True,
    help="Serve other machines without TLS: a proxy in front has it.",
)
@option("--allowed-host", "hosts", group=_HTTP, multiple=True, help="A further name that clients call the server by.")
@target_options
def mcp(
    pool: str | None,
    max_output: int,
    http: str | None,
    token_file: Path | None,
    behind_tls_proxy: bool,
    hosts: tuple[str, ...],
    target: Target,
) -> None:
    """Serve sandboxes to language models (Model Context Protocol).

    By default for one client, at standard input and output: put `sandpool mcp` into the configuration of the host. With
    --http for several. Each session has sandboxes of its own, which are deleted with it. docs/mcp.md has
    configurations of common hosts.

    \b
    sandpool mcp
    sandpool mcp --http 6494
    """
    try:
        import mcp.server.mcpserver  # noqa: F401
    except ImportError:
        raise click.ClickException(
            "`sandpool mcp` needs the MCP SDK: pip install 'sandpool[mcp]', or pipx inject sandpool mcp"
        ) from None
    from sandpool.mcp.sessions import Sessions
    from sandpool.sdk.client import AsyncClient

    served = None if http is None else (_token(token_file), _listening(http, behind_tls_proxy=behind_tls_proxy))
    target.connection(start_home=True)  # a home that does not run yet is started

    async def work() -> None:
        async with AsyncClient(
            kubeconfig=target.kubeconfig, context=target.context, namespace=target.namespace, program="mcp"
        ) as client:
            sessions = Sessions(client, lambda: choose_pool(client.service, pool, None, _POOL_SECONDS))
            if served is None:
                await _at_stdio(sessions, max_output)
            else:
                await _over_http(sessions, max_output, *served, hosts)

    with interrupted_is_success():
        interruptible(work())


async def _at_stdio(sessions: Sessions, max_output: int) -> None:
    from sandpool.mcp.server import new_server

    serving = asyncio.create_task(new_server(sessions, max_output=max_output).run_stdio_async())
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        await sessions.close()
        os._exit(INTERRUPTED)  # reading from standard input goes on in a thread that cannot be cancelled
    finally:
        await sessions.close()


async def _over_http(
    sessions: Sessions, max_output: int, token: tuple[str, Path], listening: socket.socket, hosts: tuple[str, ...]
) -> None:
    from sandpool.mcp.http import PATH, application, serve
    from sandpool.mcp.server import new_server

    server = new_server(sessions, over_http=True, max_output=max_output)
    host, port = listening.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    with listening:
        click.echo(f"serving MCP at http://{name}:{port}{PATH}, token in {token[1]}", err=True)
        try:
            await serve(application(server, sessions, token[0], (name, *hosts)), listening)
        finally:
            await sessions.close()


def _listening(address: str, *, behind_tls_proxy: bool) -> socket.socket:
    """Listen at ``[HOST:]PORT``. Raises ``ClickException``."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65535:
        raise click.ClickException(f"--http {address}: use PORT or HOST:PORT, for example 127.0.0.1:6494")
    if not behind_tls_proxy:
        from sandpool.cli.addresses import require_loopback

        require_loopback("--http", address, host, "put a proxy with TLS in front, and add --behind-tls-proxy")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise click.ClickException(f"cannot listen at {address}: {error.strerror}") from None


def _token(file: Path | None) -> tuple[str, Path]:
    """The token of clients, and its file. Raises ``ClickException``."""
    from sandpool.home.owned_directory import open_directory
    from sandpool.home.users import default_data_dir

    if file is None:
        directory = default_data_dir()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = directory / _TOKEN
        if not file.exists():
            with open_directory(directory, uid=os.geteuid(), gid=os.getegid()) as owned:
                owned.write(_TOKEN, f"{secrets.token_urlsafe(32)}\n".encode())
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read the token in {file}: {error}") from None
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise click.ClickException(f"the token in {file} has to have at least {_LEAST_TOKEN} letters and digits")
    return token, file
