"""The router of ``sandpool up``: where it listens, and which clients may reach which sandboxes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import click

from sandpool.cli.addresses import address
from sandpool.cli.identities import ROUTER, ROUTER_CONTROL
from sandpool.engine.clock import Clock
from sandpool.engine.health import parse_address
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.home.discovery import ROUTER_PORT
from sandpool.home.users import sudo_caller
from sandpool.kube.user_roles import grant_role
from sandpool.node.pod_access import NodePodAccess
from sandpool.node.sleep.metrics import report_sleep
from sandpool.process.supervisor import ProcessFailed, SupervisedProcess
from sandpool.router.dialer import NodeDialer
from sandpool.router.embedded import EmbeddedRouter
from sandpool.router.process import RouterProcess, supervised
from sandpool.router.role import ROLE_NAME, RULES
from sandpool.router.router import RouterOptions
from sandpool.router.settings import RouterSettings
from sandpool.router.tokens import ALL, MIN_SECRET_BYTES, TokenScope, TokenSigner
from sandpool.router.waking import wake_with
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.private_files import write_private
from sandpool.server.serving.daemon import Daemon

F = TypeVar("F", bound=Callable[..., Any])

# The same at every start, so that clients can keep it. The port is not assigned to another service.
ROUTER_ADDRESS: Final = f"127.0.0.1:{ROUTER_PORT}"
SECRET_NAME: Final = "router-secret"
TOKEN_NAME: Final = "router-token"
# Of the token in a file of its owner, which every start replaces.
_TOKEN_SECONDS: Final = 366 * 24 * 3600
_DEFAULTS: Final = RouterOptions()


def connection_limits(prefix: str) -> Callable[[F], F]:
    """Flags for the numbers of connections, for a command whose flags for the router begin with ``prefix``."""
    total = click.option(
        f"--{prefix}max-connections",
        type=click.IntRange(min=1),
        default=_DEFAULTS.max_connections,
        show_default=True,
        help="Connections of clients in all. Idle ones make room for new ones.",
    )
    each = click.option(
        f"--{prefix}max-connections-per-address",
        type=click.IntRange(min=1),
        default=_DEFAULTS.max_connections_per_address,
        show_default=True,
        help="Connections from one IP address.",
    )
    return lambda command: total(each(command))


_OPTIONS: Final = (
    click.option(
        "--router-bind-address",
        default=ROUTER_ADDRESS,
        show_default=True,
        help="Address of the router; port 0 picks a free one, 0 alone disables it.",
    ),
    click.option(
        "--router-token-secret-file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Secret of the router's tokens; it then accepts nothing else. [default: made beside the kubeconfig]",
    ),
    click.option("--router-insecure", is_flag=True, help="Let every client that can connect reach every sandbox."),
    click.option(
        "--router-allowed-host",
        multiple=True,
        metavar="NAME",
        help="Accept this name in the Host and Origin headers on a loopback address, besides localhost. Repeatable.",
    ),
    connection_limits("router-"),
)
NAMES: Final = (
    "router_bind_address",
    "router_token_secret_file",
    "router_insecure",
    "router_allowed_host",
    "router_max_connections",
    "router_max_connections_per_address",
)


def router_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def scoped_tokens(option: str, file: Path) -> TokenSigner:
    """Return a signer with the secret in a file."""
    try:
        return TokenSigner(file.read_bytes())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{option}: {error}") from None


@dataclass(frozen=True, slots=True)
class RouterAccess:
    """The users of the router: holders of tokens that ``token_secret`` signs (None: all clients), and loopback
    connections of ``trusted_uids``. ``token_file`` holds a token for all sandboxes."""

    token_secret: bytes | None = None
    trusted_uids: frozenset[int] = frozenset()
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class RunningRouter:
    router: EmbeddedRouter
    access: RouterAccess


@asynccontextmanager
async def process(clock: Clock, options: Mapping[str, Any]) -> AsyncIterator[SupervisedProcess]:
    """Start the process of ``router`` for the length of the block, unless there is to be none. It loads its modules
    while the caller starts other parts."""
    made = supervised(clock, Random())
    if options["router_bind_address"] != "0":
        made.spawn()
    try:
        yield made
    finally:
        await made.stop(0)


@asynccontextmanager
async def router(
    daemon: Daemon,
    process: SupervisedProcess,
    metrics: MetricsRegistry,
    router_bind_address: str,
    router_token_secret_file: Path | None,
    router_insecure: bool,
    router_allowed_host: tuple[str, ...],
    router_max_connections: int,
    router_max_connections_per_address: int,
) -> AsyncIterator[RunningRouter | None]:
    """Run the router for the length of the block; yields None if there is to be none. Port-forwards to its pods reach
    it through the API server. Its token is written beside the kubeconfig."""
    where = parse_address(address("--router-bind-address", router_bind_address))
    if where is None:
        yield None
        return
    if router_insecure and router_token_secret_file is not None:
        raise click.ClickException("--router-insecure and --router-token-secret-file exclude each other")
    server, kubeconfig = daemon.server, daemon.kubeconfig
    access = RouterAccess() if router_insecure else _access(server, kubeconfig, router_token_secret_file)
    options = RouterOptions(
        max_connections=router_max_connections,
        max_connections_per_address=router_max_connections_per_address,
        allowed_hosts=frozenset(name.lower() for name in router_allowed_host),
    )
    nodes = server.pod_access
    agent = nodes.agent if isinstance(nodes, NodePodAccess) else None
    client = server.client(ROUTER_CONTROL, name="router")
    await grant_role(client, ROUTER.name, ROLE_NAME, RULES)
    settings = RouterSettings(options, access.token_secret, access.trusted_uids)
    wake = None if server.waker is None else wake_with(server.waker)
    plane = RouterProcess(process, NodeDialer(agent), partial(daemon.http.connect, ROUTER), settings, metrics, wake)
    embedded = EmbeddedRouter(client, plane, server.clock, Random())
    try:
        await embedded.start(where[0] or "0.0.0.0", where[1])
    except OSError as error:
        raise click.ClickException(f"the router cannot listen at {router_bind_address}: {error.strerror}") from None
    except ProcessFailed as error:
        raise click.ClickException(str(error)) from None
    server.pod_access = embedded.pod_access(nodes)
    if agent is not None:
        agent.sleep.requests = plane
        report_sleep(agent.sleep, server.waker, metrics)
    try:
        yield RunningRouter(embedded, access)
    finally:
        server.pod_access = nodes
        await embedded.stop()


def _access(server: ApiServer, kubeconfig: Path, secret_file: Path | None) -> RouterAccess:
    """Write a token for the owner of the kubeconfig. With a secret of ours, trust the loopback connections of the owner
    too: that user can read the token, and not every client can send one."""
    trusted: frozenset[int] = frozenset()
    if secret_file is not None:
        signer = scoped_tokens("--router-token-secret-file", secret_file)
    else:
        path = kubeconfig.with_name(SECRET_NAME)
        if not path.exists():
            write_private(path, secrets.token_hex(MIN_SECRET_BYTES).encode())
        signer, trusted = scoped_tokens(str(path), path), frozenset(_users(kubeconfig))
    token_file = kubeconfig.with_name(TOKEN_NAME)
    until = int(server.clock.now().timestamp()) + _TOKEN_SECONDS
    write_private(token_file, signer.make(TokenScope(ALL, (ALL,), until)).encode())
    return RouterAccess(signer.secret, trusted, token_file)


def _users(kubeconfig: Path) -> set[int]:
    """Return the users who can read the token: the owner of the kubeconfig, and the user who called sudo."""
    caller = sudo_caller()
    return {kubeconfig.stat().st_uid, *(() if caller is None else (caller.uid,))}
