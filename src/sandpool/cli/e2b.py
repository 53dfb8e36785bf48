"""``sandpool e2b``: serve clients of E2B, and manage their API keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.output import Column, age, output_option, show
from sandpool.cli.sessions import Target, target_options
from sandpool.home.discovery import E2B_PORT

if TYPE_CHECKING:
    from sandpool.e2b.keys import ApiKey
    from sandpool.kube.connection import Connection
    from sandpool.service.service import Service

ADDRESS = f"127.0.0.1:{E2B_PORT}"
KEY_NAMESPACE = "sandpool-e2b"


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Mapping[str, str]:
    pairs = {}
    for value in values:
        template, separator, pool = value.partition("=")
        if not separator or not template or not pool:
            raise click.BadParameter(f"{value!r} is not TEMPLATE=POOL", context, parameter)
        pairs[template] = pool
    return pairs


@click.group()
def e2b() -> None:
    """Serve clients of E2B, and manage their API keys.

    \b
    sandpool e2b serve &
    export E2B_API_URL=http://127.0.0.1:6495 E2B_SANDBOX_URL=http://127.0.0.1:6495
    export E2B_API_KEY=$(sandpool e2b key create)
    python -c 'from e2b import Sandbox; print(Sandbox.create().commands.run("uname").stdout)'
    """


@e2b.command(cls=GroupedCommand)
@option(
    "--bind-address",
    default=ADDRESS,
    show_default=True,
    help="Listen address; port 0 picks a free one. Other addresses than loopback need TLS.",
)
@option("--domain", help="Domain of the sandboxes' ports, as in PORT-ID.DOMAIN. [default: localhost:PORT]")
@option("--tls-cert-file", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Serve TLS with this.")
@option("--tls-key-file", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Key of the certificate.")
@option("--behind-tls-proxy", is_flag=True, help="Serve other machines without TLS: a proxy in front has it.")
@option("--pool", default="python", show_default=True, help="Pool of clients that name no template.")
@option("--template", "templates", multiple=True, metavar="TEMPLATE=POOL", callback=_pairs, help="Pool of a template.")
@option("--max-timeout", type=click.IntRange(1), default=24 * 3600, show_default=True, help="Longest timeout, seconds.")
@option("--max-connections", type=click.IntRange(1), default=2048, show_default=True, help="Connections of clients.")
@option(
    "--max-connections-per-address",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Connections from one IP address.",
)
@option("--key-namespace", default=KEY_NAMESPACE, show_default=True, help="Namespace of the Secrets of API keys.")
@target_options
def serve(
    bind_address: str,
    domain: str | None,
    tls_cert_file: Path | None,
    tls_key_file: Path | None,
    behind_tls_proxy: bool,
    pool: str,
    templates: Mapping[str, str],
    max_timeout: int,
    max_connections: int,
    max_connections_per_address: int,
    key_namespace: str,
    target: Target,
) -> None:
    """Serve clients of E2B until Ctrl-C.

    Every client needs an API key: make one with `sandpool e2b key create`."""
    from sandpool.cli import foreground
    from sandpool.cli.addresses import address, require_loopback
    from sandpool.engine.health import parse_address
    from sandpool.engine.logging import TEXT, configure_logging

    where = parse_address(address("--bind-address", bind_address))
    if where is None:
        raise click.ClickException("--bind-address: an address is needed")
    if (tls_cert_file is None) != (tls_key_file is None):
        raise click.ClickException("--tls-cert-file and --tls-key-file belong together")
    if tls_cert_file is None and not behind_tls_proxy:
        remedy = "add --tls-cert-file and --tls-key-file, or --behind-tls-proxy if a proxy in front has TLS"
        require_loopback("--bind-address", bind_address, where[0] or "0.0.0.0", remedy)
    configure_logging(TEXT, "INFO")
    settings = {
        "pool": pool,
        "templates": templates,
        "max_timeout": max_timeout,
        "max_connections": max_connections,
        "max_connections_per_address": max_connections_per_address,
    }
    tls = None if tls_cert_file is None or tls_key_file is None else (tls_cert_file, tls_key_file)
    foreground.run(partial(_serve, target.connection(start_home=True), where, domain, tls, key_namespace, settings))


async def _serve(
    connection: Connection,
    where: tuple[str | None, int],
    domain: str | None,
    tls: tuple[Path, Path] | None,
    key_namespace: str,
    settings: Mapping[str, object],
    stopping: asyncio.Event,
) -> None:
    from dataclasses import replace

    from sandpool.e2b.endpoint import Endpoint
    from sandpool.e2b.keys import ApiKeys
    from sandpool.e2b.listener import listening, tls_context
    from sandpool.e2b.options import EndpointOptions
    from sandpool.engine.clock import SystemClock
    from sandpool.service.service import Service

    host, port = where
    options = replace(EndpointOptions(domain or f"localhost:{port}"), **settings)  # type: ignore[arg-type]
    context = None if tls is None else tls_context(*tls)
    async with Service.connect(connection.of_program("e2b")) as service:
        keys = ApiKeys(service.client, key_namespace)
        async with Endpoint.opened(service.client, service.pods, keys, options, SystemClock()) as endpoint:
            try:
                listener = listening(endpoint, host or "0.0.0.0", port, context)
                async with listener as (_, chosen):
                    if domain is None and port == 0:
                        endpoint.set_domain(f"localhost:{chosen}")
                    url = f"{'http' if tls is None else 'https'}://{host or '127.0.0.1'}:{chosen}"
                    click.echo(f"serving clients of E2B at {url}")
                    if tls is None:
                        click.echo(f"  export E2B_API_URL={url} E2B_SANDBOX_URL={url}")
                    await stopping.wait()
            except OSError as error:
                raise click.ClickException(f"cannot listen at {host}:{port}: {error.strerror or error}") from None


@e2b.group()
def key() -> None:
    """Create, list and revoke API keys."""


_key_namespace = option(
    "--key-namespace", default=KEY_NAMESPACE, show_default=True, help="Namespace of the Secrets of API keys."
)


@key.command(cls=GroupedCommand)
@click.argument("name", default="")
@option("--max-sandboxes", type=click.IntRange(1), default=100, show_default=True, help="Sandboxes of it at once.")
@_key_namespace
@target_options
def create(name: str, max_sandboxes: int, key_namespace: str, target: Target) -> None:
    """Create an API key, and print it. It is shown this once.

    Its sandboxes are claimed in the namespace, from the pools that are there; a pool is made if there is none."""
    from sandpool.cli.pool_choice import choose_pool
    from sandpool.e2b.keys import ApiKeys, ensure_namespace

    async def work(service: Service) -> str:
        await ensure_namespace(service.client, service.namespace)
        if not await service.pools.list():
            await choose_pool(service, None, None, 120.0)
        made, _ = await ApiKeys(service.client, key_namespace).create(service.namespace, name, max_sandboxes)
        return made

    click.echo(target.run(work, start_home=True))


@key.command("list", cls=GroupedCommand)
@output_option
@_key_namespace
@target_options
def list_keys(output: str, key_namespace: str, target: Target) -> None:
    """List API keys. The keys themselves are not stored."""
    from sandpool.e2b.keys import ApiKeys

    async def work(service: Service) -> tuple[ApiKey, ...]:
        return await ApiKeys(service.client, key_namespace).list()

    columns: list[Column[ApiKey]] = [
        Column("ID", lambda key: key.id),
        Column("NAME", lambda key: key.name),
        Column("NAMESPACE", lambda key: key.namespace),
        Column("MAX-SANDBOXES", lambda key: str(key.max_sandboxes)),
        Column("AGE", lambda key: age(key.created)),
    ]
    show(
        target.run(work),
        columns,
        output=output,
        name=lambda key: key.id,
        document=lambda key: {
            "id": key.id,
            "name": key.name,
            "namespace": key.namespace,
            "maxSandboxes": key.max_sandboxes,
            "created": key.created,
        },
        nothing="no API keys; make one with: sandpool e2b key create",
    )


@key.command(cls=GroupedCommand)
@click.argument("key_id", metavar="ID")
@_key_namespace
@target_options
def revoke(key_id: str, key_namespace: str, target: Target) -> None:
    """Revoke an API key. Sandboxes that it made live until their timeout."""
    from sandpool.e2b.keys import ApiKeys
    from sandpool.kube.errors import NotFound

    async def work(service: Service) -> None:
        try:
            await ApiKeys(service.client, key_namespace).revoke(key_id)
        except NotFound:
            raise click.ClickException(f"there is no API key {key_id}; list them with: sandpool e2b key list") from None

    target.run(work)
    click.echo(f"revoked {key_id}")
