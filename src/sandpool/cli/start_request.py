"""The request of a user to ``sandpool up``: the given options, and whether a running home already meets them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from sandpool.cli import dashboards, e2b_of_home, nodes, routing, serving
from sandpool.cli.home_report import program, report, with_sudo
from sandpool.cli.progress import steps
from sandpool.cli.tuning import TunedCommand
from sandpool.engine.health import parse_address
from sandpool.home import discovery, start
from sandpool.home.discovery import Home
from sandpool.home.start import StartFailed
from sandpool.home.users import default_data_dir, sudo_caller

_ARGUMENTS: Final = "sandpool.arguments"
_NOT_PASSED_ON: Final = ("-d", "--detach", "--systemd-unit")
# Options that say how to start and not what runs.
_HOW: Final = frozenset({"data_dir", "detach", "log_format", "log_level"})


# The options that most users need, and the other ones by the part of the home that they are about.
_MAIN: Final = (
    *("detach", "data_dir", "ephemeral", "port", "router_bind_address", "audit_log", "allow_host_path"),
    *("simulated_nodes", "no_node", "systemd_unit", "help"),
)
_SECTIONS: Final = {
    "Options": _MAIN,
    "API": ("unlisted", *serving.NAMES),
    "Node": (*nodes.NAMES, "keep"),
    "Router": routing.NAMES,
    "Dashboard": dashboards.NAMES,
    "Clients of E2B": e2b_of_home.NAMES,
    "Metrics, logs and traces": (
        *("metrics_bind_address", "health_probe_bind_address", "log_format", "log_level", "enable_tracing"),
    ),
}


class UpCommand(TunedCommand):
    """Shows its options in sections. Keeps the arguments as they were typed, to start the same in the background."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left = {each.name: each.get_help_record(ctx) for each in self.get_params(ctx)}
        for title, names in _SECTIONS.items():
            records = [left.pop(name, None) for name in names]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])
        with formatter.section("Controller tuning"):
            formatter.write_dl([record for record in left.values() if record is not None])

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        typed = list(args)
        context = super().make_context(info_name, args, *rest, **extra)
        context.meta[_ARGUMENTS] = typed
        return context


@dataclass(frozen=True, slots=True)
class StartRequest:
    """``data_dir`` is None if the default one is wanted. ``settings`` are the options that were given, by name."""

    data_dir: Path | None
    settings: dict[str, str]
    arguments: Sequence[str]

    @classmethod
    def of(cls, context: click.Context) -> StartRequest:
        given = {
            name: value
            for name, value in context.params.items()
            if context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
        }
        settings = {f"--{name.replace('_', '-')}": _shown(value) for name, value in given.items() if name not in _HOW}
        typed: Sequence[str] = context.meta.get(_ARGUMENTS, ())
        arguments = [word for word in typed if word not in _NOT_PASSED_ON]
        return cls(given.get("data_dir"), settings, arguments)

    def is_given(self, option: str) -> bool:
        return option in self.settings

    def running(self) -> Home | None:
        """Return the home that already runs: that of the data directory or, if none was given, any of this user."""
        return discovery.running() if self.data_dir is None else discovery.home_of(self.data_dir)

    def check(self, home: Home) -> None:
        """Raise if a running home was started with other settings than those asked for."""
        differing = [
            f"{option} {value}" for option, value in self.settings.items() if home.settings.get(option) != value
        ]
        if differing:
            raise click.ClickException(
                f"a home already runs without {', '.join(differing)}: pid {home.pid}, {home.url}\n"
                f"Stop it first with `{program()} down`, or start a second one with another --data-dir"
            )

    def start_in_background(self) -> None:
        """Start the home, or find the one that another process started meanwhile, and describe it."""
        directory = self.data_dir or default_data_dir()
        try:
            with steps() as progress:
                home = start.ensure_running(
                    progress.step, options=self.arguments, data_dir=directory, cwd=Path(os.getcwd())
                )
        except StartFailed as error:
            raise click.ClickException(str(error)) from None
        click.echo(report(home))
        stop = f"{program()} down" if sudo_caller() is None else with_sudo("down")
        click.echo(f"  stop     {stop}")


def preferred(address: str) -> str:
    """Return an address to listen at: ``address``, or one with a free port if a process listens there already."""
    where = parse_address(address)
    if where is None or where[1] == 0:
        return address
    return f"{address.rpartition(':')[0]}:{preferred_port(*where)}"


def preferred_port(host: str | None, port: int) -> int:
    """Return ``port``, or 0, which stands for any free port, if a process listens there already."""
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((host or "", port))
        except OSError as error:
            return 0 if error.errno == errno.EADDRINUSE else port
    return port


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
