"""Tells users, other commands and the service manager about a home: the steps of its start, its addresses, its end."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import click

from sandpool.cli.home_report import report
from sandpool.cli.progress import Progress
from sandpool.home import discovery
from sandpool.home.discovery import Home
from sandpool.home.notification import Notifier
from sandpool.home.owned_directory import NotOwned
from sandpool.home.users import sudo_caller


class Announcement:
    """One for the life of a home. Other commands find the home if it is ``listed``."""

    def __init__(self, settings: Mapping[str, str], *, listed: bool) -> None:
        self._settings = settings
        self._listed = listed
        self._notifier = Notifier()
        self._progress = Progress()
        self._ended = ""

    def step(self, text: str) -> None:
        self._progress.step(text)
        self._notifier.status(text)

    @contextlib.contextmanager
    def made(self, home: Home, kubeconfig: Path | None) -> Iterator[list[socket.socket]]:
        """Let others find the home for the length of the block. ``kubeconfig`` is the file that the user asked for.
        Yields the sockets at which `sandpool run` asks for the home.

        Without write access to the register the home serves all the same."""
        home = replace(home, settings=self._settings)
        warning = ""
        sockets: list[socket.socket] = []
        with contextlib.ExitStack() as stack:
            if self._listed:
                try:
                    _hand_over(home, kubeconfig)
                    home = stack.enter_context(discovery.announced(home, sockets=sockets))
                except OSError as error:
                    warning = f"warning: other commands need --kubeconfig to find this home: {error}"
            self._progress.clear()
            if warning:
                click.echo(warning, err=True)
            click.echo(report(home))
            self._notifier.ready(f"serving {home.url}")
            yield sockets

    def stopping(self, pods: int, *, keep: bool) -> None:
        """Say that the home stops; ``pods`` is how many have processes."""
        self._notifier.stopping("stopping")
        click.echo("\nstopping; a second Ctrl-C ends at once", err=True)
        if not pods:
            self._ended = ""
        elif keep:
            self._ended = (
                f", and {_sandboxes(pods)} with files and processes, which run on until the next `sandpool up`"
            )
        else:
            self._ended = f"; ended: {_sandboxes(pods)}, with all files outside of volumes"

    def stopped(self, data_dir: Path) -> None:
        click.echo(f"stopped. Kept: all objects, volumes and images in {data_dir}{self._ended}", err=True)


def _sandboxes(count: int) -> str:
    return f"{count} sandbox{'' if count == 1 else 'es'}"


def _hand_over(home: Home, kubeconfig: Path | None) -> None:
    """Give a kubeconfig that the user asked for by name to the user who called sudo. Outside of the directories of that
    user it stays root's."""
    caller = sudo_caller()
    if kubeconfig is None or caller is None:
        return
    try:
        discovery.hand_over(kubeconfig, discovery.read_kubeconfig(home, caller), caller)
    except NotOwned as error:
        click.echo(f"warning: {kubeconfig} is not given to {caller.name}: {error}", err=True)
