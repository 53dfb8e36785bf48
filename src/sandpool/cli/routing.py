"""The router of ``sandpool up``: where it listens, and who may pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import click

from sandpool.cli.addresses import address
from sandpool.cli.identities import ROUTER
from sandpool.engine.health import parse_address
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.node.pod_access import NodePodAccess
from sandpool.router.authorization import ScopedTokenAuthorizer
from sandpool.router.embedded import EmbeddedRouter
from sandpool.router.router import Authorizer, allow_all
from sandpool.router.tokens import TokenSigner
from sandpool.server.api_server import ApiServer

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option(
        "--router-bind-address",
        default="127.0.0.1:0",
        show_default=True,
        help="Where clients reach into their sandboxes; port 0: the system chooses; just 0: nowhere.",
    ),
    click.option(
        "--router-token-secret-file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Let only those pass who bring a token for their sandbox, signed with this. [default: everybody]",
    ),
)
NAMES: Final = ("router_bind_address", "router_token_secret_file")


def router_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def scoped_tokens(option: str, file: Path) -> TokenSigner:
    """Made and checked with the secret in a file."""
    try:
        return TokenSigner(file.read_bytes())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{option}: {error}") from None


@asynccontextmanager
async def router(
    server: ApiServer, metrics: MetricsRegistry, router_bind_address: str, router_token_secret_file: Path | None
) -> AsyncIterator[EmbeddedRouter | None]:
    """For the length of the block; None if there is to be none. The server's door leads to it too."""
    where = parse_address(address("--router-bind-address", router_bind_address))
    if where is None:
        yield None
        return
    guard: Authorizer = allow_all
    if router_token_secret_file is not None:
        guard = ScopedTokenAuthorizer(
            scoped_tokens("--router-token-secret-file", router_token_secret_file), server.clock
        )
    nodes = server.door
    agent = nodes.agent if isinstance(nodes, NodePodAccess) else None
    made = EmbeddedRouter(server.client(ROUTER, name="router"), agent, server.clock, Random(), metrics, guard=guard)
    try:
        await made.start(where[0] or "0.0.0.0", where[1])
    except OSError as error:
        raise click.ClickException(f"the router cannot listen at {router_bind_address}: {error.strerror}") from None
    server.door = made.door(nodes)
    try:
        yield made
    finally:
        server.door = nodes
        await made.stop()


def greeting(router: EmbeddedRouter | None) -> str:
    return "" if router is None else f"router {router.url}"


def example(router: EmbeddedRouter | None) -> str:
    """A line of Python that works once there is a pool called python; nothing if more than the address is needed, or if
    nothing runs in sandboxes."""
    if router is None or router.agent is None or not router.router.is_open:
        return ""
    client = f'SandboxClient(models.SandboxDirectConnectionConfig(api_url="{router.url}"), cleanup=True)'
    call = f'print({client}.create_sandbox("python").commands.run("echo hello").stdout)'
    return f"then, in Python with k8s-agent-sandbox: from k8s_agent_sandbox import SandboxClient, models; {call}"
