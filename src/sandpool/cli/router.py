"""``sandpool router``: route HTTP requests to the sandboxes of a Kubernetes cluster, in the foreground."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import urlsplit

import click

from sandpool import __version__
from sandpool.cli import foreground, observability
from sandpool.cli.addresses import address
from sandpool.cli.flags import duration, switch
from sandpool.cli.option_groups import SectionedCommand
from sandpool.cli.routing import connection_limits, scoped_tokens
from sandpool.engine.clock import Clock, SystemClock
from sandpool.engine.health import Checks, HealthServer, metrics_page, parse_address
from sandpool.engine.logging import JSON
from sandpool.engine.metrics.controller import export_build_info
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.transports import MeasuredTransport
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.http import HttpTransport
from sandpool.kube.pod_access import RETRY_DELAYS
from sandpool.kube.retry import backoff_delay
from sandpool.router.authorization import (
    Authorizer,
    ScopedTokenAuthorizer,
    TokenReviewAuthorizer,
    TokenReviewOptions,
    allow_all,
)
from sandpool.router.dialer import by_address
from sandpool.router.metrics import BUILD_INFO, RouterMetrics
from sandpool.router.router import Router, RouterOptions
from sandpool.router.targets import SandboxResolver
from sandpool.router.tokens import TokenSigner

ALLOW_ALL: Final = "allow-all"
TOKEN_REVIEW: Final = "tokenreview"
SCOPED_TOKEN: Final = "scoped-token"


@dataclass(frozen=True, slots=True)
class Options:
    connection: Connection
    http: str
    https: str
    metrics: str
    health: str
    tls: ssl.SSLContext | None
    mode: str
    review: TokenReviewOptions
    tokens: TokenSigner | None
    namespace: str
    shutdown: float
    router: RouterOptions

    def authorizer(self, client: Client, clock: Clock) -> Authorizer:
        if self.mode == TOKEN_REVIEW:
            return TokenReviewAuthorizer(client, clock, self.review)
        if self.tokens is not None:
            return ScopedTokenAuthorizer(self.tokens, clock)
        return allow_all


_file = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command(
    cls=SectionedCommand,
    sections={
        "Authorization": (
            *("authz_tokenreview_ttl", "authz_tokenreview_cache_size", "authz_tokenreview_require_token"),
            *("authz_tokenreview_check_access", "authz_tokenreview_audiences", "authz_scoped_token_secret_file"),
        ),
        "Limits": (
            *("proxy_timeout", "max_connections", "max_connections_per_address", "shutdown_timeout"),
            *("upstream_max_retries", "upstream_retry_initial_delay", "upstream_retry_max_delay"),
        ),
        "Metrics and logs": ("metrics_bind_address", "health_probe_bind_address", "log_format", "log_level"),
    },
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the cluster. [default: as kubectl, or the pod's service account]",
)
@click.option("--context", help="Context of the kubeconfig. [default: the current one]")
@click.option("--http-bind-address", default=":8080", show_default=True, help="Listen address for HTTP; 0 disables it.")
@click.option("--https-bind-address", default="0", show_default=True, help="Listen address for HTTPS; 0 disables it.")
@click.option(
    "--metrics-bind-address", default=":9090", show_default=True, help="Listen address for metrics; 0 disables it."
)
@click.option(
    "--health-probe-bind-address", default=":8081", show_default=True, help="Listen address for probes; 0 disables it."
)
@click.option("--tls-cert-file", type=_file, help="Serving certificate of --https-bind-address.")
@click.option("--tls-key-file", type=_file, help="Key of the serving certificate.")
@click.option("--tls-client-ca-file", type=_file, help="CA of client certificates; clients must then present one.")
@click.option(
    "--authz-mode",
    type=click.Choice([ALLOW_ALL, TOKEN_REVIEW, SCOPED_TOKEN]),
    default=TOKEN_REVIEW,
    show_default=True,
    help="Who may reach a sandbox: all clients, users with access to it, or holders of a token for it.",
)
@duration("--authz-tokenreview-ttl", "30s", "Lifetime of a cached token review.", positive=True)
@click.option(
    "--authz-tokenreview-cache-size",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Number of cached token reviews.",
)
@switch("--authz-tokenreview-require-token", True, "Reject requests without a token.")
@switch(
    "--authz-tokenreview-check-access",
    True,
    "Require access to the sandbox: verb create on sandboxes/proxy, asked by name.",
)
@click.option("--authz-tokenreview-audiences", default="", help="Audiences that tokens must have, comma-separated.")
@click.option("--authz-scoped-token-secret-file", type=_file, help="Secret that signs tokens, at least 32 bytes.")
@click.option("--cache-namespace", default="", help="Serve only the sandboxes of this namespace.")
@duration("--proxy-timeout", "180s", "Timeout of a request, and the maximum that a client may ask for.", positive=True)
@connection_limits("")
@duration("--shutdown-timeout", "30s", "Grace period for open requests on shutdown.")
@click.option(
    "--upstream-max-retries",
    type=click.IntRange(min=0),
    default=len(RETRY_DELAYS),
    show_default=True,
    help="Connection retries to a sandbox that does not listen yet.",
)
@duration("--upstream-retry-initial-delay", "20ms", "Delay before the first retry; it doubles with each.")
@duration("--upstream-retry-max-delay", "800ms", "Maximum delay between retries.")
@observability.log_options(JSON)
@click.version_option(__version__, prog_name="sandpool")
def router(
    kubeconfig: Path | None,
    context: str | None,
    http_bind_address: str,
    https_bind_address: str,
    metrics_bind_address: str,
    health_probe_bind_address: str,
    tls_cert_file: Path | None,
    tls_key_file: Path | None,
    tls_client_ca_file: Path | None,
    authz_mode: str,
    authz_tokenreview_ttl: float,
    authz_tokenreview_cache_size: int,
    authz_tokenreview_require_token: bool,
    authz_tokenreview_check_access: bool,
    authz_tokenreview_audiences: str,
    authz_scoped_token_secret_file: Path | None,
    cache_namespace: str,
    proxy_timeout: float,
    max_connections: int,
    max_connections_per_address: int,
    shutdown_timeout: float,
    upstream_max_retries: int,
    upstream_retry_initial_delay: float,
    upstream_retry_max_delay: float,
    log_format: str,
    log_level: str,
) -> None:
    """Route requests to the sandboxes that they name until Ctrl-C or SIGTERM."""
    observability.begin(log_format, log_level)
    https = address("--https-bind-address", https_bind_address)
    secret = authz_scoped_token_secret_file
    if (authz_mode == SCOPED_TOKEN) != (secret is not None):
        raise click.ClickException(f"--authz-mode={SCOPED_TOKEN} and --authz-scoped-token-secret-file go together")
    delay = partial(backoff_delay, first=upstream_retry_initial_delay, longest=upstream_retry_max_delay)
    audiences = tuple(each.strip() for each in authz_tokenreview_audiences.split(",") if each.strip())
    try:
        options = Options(
            connection=kubeconfigs.load(kubeconfig, context),
            http=address("--http-bind-address", http_bind_address),
            https=https,
            metrics=address("--metrics-bind-address", metrics_bind_address),
            health=address("--health-probe-bind-address", health_probe_bind_address),
            tls=None if https == "0" else _tls(tls_cert_file, tls_key_file, tls_client_ca_file),
            mode=authz_mode,
            review=TokenReviewOptions(
                authz_tokenreview_ttl,
                authz_tokenreview_cache_size,
                authz_tokenreview_require_token,
                audiences,
                authz_tokenreview_check_access,
            ),
            tokens=None if secret is None else scoped_tokens("--authz-scoped-token-secret-file", secret),
            namespace=cache_namespace,
            shutdown=shutdown_timeout,
            router=RouterOptions(
                max_timeout=proxy_timeout,
                retry_delays=tuple(delay(number) for number in range(1, upstream_max_retries + 1)),
                max_connections=max_connections,
                max_connections_per_address=max_connections_per_address,
            ),
        )
        foreground.run(partial(_route, options))
    except (kubeconfigs.KubeconfigError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext:
    if certificate is None or key is None:
        raise click.ClickException("--https-bind-address needs --tls-cert-file and --tls-key-file")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(f"the certificates cannot be used: {error}") from None
    return context


async def _route(options: Options, stopping: asyncio.Event) -> None:
    clock, metrics = SystemClock(), MetricsRegistry()
    host = urlsplit(options.connection.server).netloc
    transport = MeasuredTransport(HttpTransport(options.connection), metrics, clock, host)
    client = Client(transport, field_manager="sandpool-router")
    targets = SandboxResolver(client, clock, Random(), namespace=options.namespace or None)
    router = Router(
        targets,
        by_address,
        clock,
        RouterMetrics(metrics),
        authorizer=options.authorizer(client, clock),
        options=options.router,
    )
    export_build_info(metrics, BUILD_INFO)

    def unready() -> str:
        if stopping.is_set():
            return "the router is stopping"
        return "" if targets.is_synced else "the informer of sandboxes has not synced"

    ready, alive = Checks("readyz", {"sandboxes": unready}), Checks("healthz", {"ping": lambda: ""})
    pages = [HealthServer(options.metrics, metrics_page(metrics))]
    pages.append(HealthServer(options.health, {**alive.pages(), **ready.pages()}))
    knowing = asyncio.create_task(targets.run(), name="sandbox informer")
    try:
        for page in pages:
            await page.start()
        if await foreground.until(stopping, targets.synced(), _ended(knowing)):
            return
        await _listen(router, options)
        click.echo(f"routing to the sandboxes of {options.connection.server} on {_shown(router)}")
        await foreground.until(stopping, _ended(knowing))
        await router.stop(options.shutdown)
    finally:
        knowing.cancel()
        await asyncio.gather(knowing, return_exceptions=True)
        for page in pages:
            await page.stop()
        await transport.close()


async def _listen(router: Router, options: Options) -> None:
    for text, tls in ((options.http, None), (options.https, options.tls)):
        where = parse_address(text)
        if where is not None:
            await router.listen(where[0] or "0.0.0.0", where[1], tls)


def _shown(router: Router) -> str:
    return f"port{'s' if len(router.ports) > 1 else ''} {', '.join(map(str, router.ports))}"


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    task.result()
