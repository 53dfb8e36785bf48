"""Connections of the everyday commands: which API, which namespace, and what Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from sandpool.cli.option_groups import option
from sandpool.cli.progress import steps

if TYPE_CHECKING:
    from sandpool.kube.connection import Connection
    from sandpool.service.service import Service

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_GROUP = "Where"
#: Exit codes of shells for a program that a signal ended.
INTERRUPTED = 128 + signal.SIGINT


class Target(NamedTuple):
    """The options that choose an API and a namespace."""

    kubeconfig: Path | None
    context: str | None
    namespace: str | None

    def connection(self, *, start_home: bool = False) -> Connection:
        """The connection to the API. ``start_home`` starts the local home if there is no API to talk to."""
        from sandpool.home.connection import NoTarget, resolve

        try:
            return resolve(self.kubeconfig, self.context).connection()
        except NoTarget:
            if not start_home or self.kubeconfig is not None or self.context is not None:
                raise
        from sandpool.home.start import ensure_running

        with steps(in_terminal_only=True) as progress:

            def show(line: str) -> None:
                progress.show(line)
                progress.step("starting the local home")

            home = ensure_running(show)
        if home.shortcomings:
            from sandpool.cli.home_report import missing

            click.echo(missing(home), err=True)
        return resolve(self.kubeconfig, self.context).connection()

    def run(self, work: Callable[[Service], Coroutine[Any, Any, T]], *, start_home: bool = False) -> T:
        """Run ``work`` with a service. Ctrl-C, SIGTERM and SIGHUP cancel it, and it cleans up before the end."""
        from sandpool.service.service import Service

        connection = self.connection(start_home=start_home)

        async def connected() -> T:
            async with Service.connect(connection, self.namespace) as service:
                return await work(service)

        return interruptible(connected())


def target_options(command: F) -> F:
    """Options that choose the namespace and the API; the command receives them as ``target``."""
    for add in (
        option("--context", group=_GROUP, help="Context of the kubeconfig, or name of a local home."),
        option(
            "--kubeconfig",
            group=_GROUP,
            type=click.Path(path_type=Path, dir_okay=False),
            help="Kubeconfig of the cluster. [default: KUBECONFIG, the chosen context, the local home]",
        ),
        option("--namespace", "-n", group=_GROUP, help="Namespace. [default: that of the context]"),
    ):
        command = add(command)

    def with_target(*, namespace: str | None, kubeconfig: Path | None, context: str | None, **options: Any) -> Any:
        return command(target=Target(kubeconfig, context, namespace), **options)

    with_target.__doc__ = command.__doc__
    with_target.__name__ = command.__name__
    with_target.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return with_target  # type: ignore[return-value]


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. A signal that ends programs cancels it; the exit code is then that of the signal."""

    async def supervised() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        received: list[int] = []

        def end(number: int) -> None:
            received.append(number)
            if len(received) == 1:
                task.cancel()

        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in signals:
            loop.add_signal_handler(number, end, number)
        try:
            return await work
        except asyncio.CancelledError:
            if not received:
                raise
            raise click.exceptions.Exit(128 + received[0]) from None
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    return asyncio.run(supervised())


@contextmanager
def interrupted_is_success() -> Iterator[None]:
    """For commands that run until Ctrl-C: it ends them as they are meant to end."""
    try:
        yield
    except click.exceptions.Exit as end:
        if end.exit_code != INTERRUPTED:
            raise
