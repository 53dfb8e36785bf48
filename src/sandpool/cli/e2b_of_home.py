"""The E2B endpoint of ``sandpool up --e2b``: its options, its key, and what clients need to find it."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import click

from sandpool.cli.addresses import address
from sandpool.cli.identities import E2B
from sandpool.cli.pool_choice import DEFAULT_POOL, ensure_default_pool
from sandpool.e2b.keys import KEY_NAMESPACE, ApiKeys, is_of
from sandpool.e2b.role import KEY_RULES, ROLE_NAME, RULES
from sandpool.engine.clock import Clock
from sandpool.engine.health import parse_address
from sandpool.home.discovery import E2B_PORT
from sandpool.kube.connection import is_loopback
from sandpool.kube.user_roles import grant_role
from sandpool.process import confinement
from sandpool.process.on_demand import OnDemandProcess, Program
from sandpool.server.auth.private_files import write_private
from sandpool.server.serving.daemon import Daemon
from sandpool.service.service import Service

F = TypeVar("F", bound=Callable[..., Any])

E2B_ADDRESS: Final = f"127.0.0.1:{E2B_PORT}"
KEY_FILE: Final = "e2b-key"
PROGRAM: Final = Program("E2B endpoint", "sandpool.e2b", confinement.E2B)
_KEY_NAME: Final = "sandpool up"
_OPTIONS: Final = (
    click.option("--e2b", is_flag=True, help="Serve clients of E2B too, with an API key for the user of this home."),
    click.option(
        "--e2b-bind-address",
        default=E2B_ADDRESS,
        show_default=True,
        help="Loopback address for clients of E2B; port 0 picks a free one.",
    ),
)
NAMES: Final = ("e2b", "e2b_bind_address")


def e2b_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class RunningE2b:
    url: str
    key_file: Path


def variables(url: str, key_file: Path) -> str:
    """The line that leads programs with the packages of E2B to an endpoint, for a shell. It names the file of the key,
    because lines of a terminal and of a log are seen by others."""
    where = f"E2B_API_URL={url} E2B_SANDBOX_URL={url} E2B_DOMAIN={domain(url)}"
    return f"export {where} E2B_API_KEY=$(cat {shlex.quote(str(key_file))})"


def domain(url: str) -> str:
    """The domain of the names of ports. Names below localhost are those of this machine, without any DNS."""
    return f"localhost:{url.rpartition(':')[2]}"


@asynccontextmanager
async def endpoint(
    clock: Clock, service: Service, daemon: Daemon, *, e2b: bool, e2b_bind_address: str, replaceable: bool
) -> AsyncIterator[RunningE2b | None]:
    """Listen for clients of E2B for the length of the block; yields None if there is to be no endpoint. A
    ``replaceable`` address gets another port if its own is taken."""
    if not e2b:
        yield None
        return
    where = parse_address(address("--e2b-bind-address", e2b_bind_address))
    if where is None:
        raise click.ClickException("--e2b-bind-address: an address is needed; leave out --e2b for no endpoint")
    host, port = where[0] or "0.0.0.0", where[1]
    if not is_loopback(host):
        raise click.ClickException(
            f"--e2b-bind-address {e2b_bind_address}: the endpoint of a home is served on this machine alone\n"
            "For other machines run `sandpool e2b serve` with --tls-cert-file and --tls-key-file"
        )
    key_file = daemon.kubeconfig.absolute().with_name(KEY_FILE)
    pool = await _pool(service)
    await _ensure_key(service, key_file)
    await grant_role(service.client, E2B.name, ROLE_NAME, RULES)
    await grant_role(service.client, E2B.name, ROLE_NAME, KEY_RULES, KEY_NAMESPACE)
    kubeconfig = daemon.kubeconfig_of(E2B)
    with _directory() as directory:

        def settings(restarts: int) -> dict[str, Any]:
            return {"kubeconfig": kubeconfig, "domain": domain(process.url), "pool": pool, "directory": directory}

        process = OnDemandProcess(PROGRAM, clock, Random(), settings)
        try:
            process.listen(host, port, replaceable=replaceable)
        except OSError as error:
            reason = f"the E2B endpoint cannot listen at {e2b_bind_address}: {error.strerror}"
            raise click.ClickException(reason) from None
        running = asyncio.create_task(process.run(), name="E2B endpoint")
        try:
            yield RunningE2b(process.url, key_file)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await process.stop()


@contextmanager
def _directory() -> Iterator[str]:
    """A directory of the process for its sockets, for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="sandpool-e2b-", ignore_cleanup_errors=True) as directory:
        user = PROGRAM.user
        if user.uid != os.geteuid():
            # A root that cannot become another user keeps the directory, as its child does.
            with suppress(OSError):
                os.chown(directory, *user)
        yield directory


async def _pool(service: Service) -> str:
    """The pool of clients that name no template: ``python`` or the only one. It is made if there is none."""
    names = [each.name for each in await service.pools.list()]
    if len(names) == 1:
        return names[0]
    if not names:
        await ensure_default_pool(service)
    return DEFAULT_POOL


async def _ensure_key(service: Service, file: Path) -> None:
    """Keep the key of an earlier start if it is valid, so that programs can keep it too; else make a new one."""
    keys, kept = ApiKeys(service.client), _kept(file)
    await keys.secret()  # the endpoint may not make it
    if kept and any(is_of(kept, each) for each in await keys.list()):
        return
    made, _ = await keys.create(service.namespace, _KEY_NAME)
    write_private(file, made.encode())


def _kept(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
