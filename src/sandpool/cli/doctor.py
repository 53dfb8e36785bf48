"""``sandpool doctor``: check the machine and the running home, and say what to install."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from sandpool import __version__
from sandpool.cli.home_report import with_sudo
from sandpool.cli.output import document_option, show_document
from sandpool.cli.progress import steps
from sandpool.cli.start_request import preferred_port
from sandpool.home import discovery
from sandpool.home.discovery import API_PORT, METRICS_PORT, ROUTER_PORT, Home
from sandpool.home.users import default_data_dir
from sandpool.node.diagnosis import Finding, Level, examine

_SECONDS: Final = 3.0
_PORTS: Final = {"API": API_PORT, "router": ROUTER_PORT, "metrics": METRICS_PORT}
_COLOURS: Final = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "red"}


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Data directory to check.")
@document_option
def doctor(data_dir: Path | None, output: str) -> None:
    """Check whether this machine can run sandboxes, and the home if one runs; say what to do.

    Exits with 1 if there is a problem. A warning means that sandboxes run with less than they could have, a note
    that an optional program is missing."""
    directory = (data_dir or default_data_dir()).absolute()
    with steps(in_terminal_only=True) as progress:
        progress.step("examining this machine")
        findings = [*examine(directory, with_sudo("up", "-d")), *_home(directory if data_dir is not None else None)]
    problems = sum(each.level is Level.PROBLEM for each in findings)
    if output == "table":
        _show(findings)
    else:
        shown = [{**asdict(each), "level": str(each.level)} for each in findings]
        show_document({"ok": not problems, "findings": shown}, output)
    if problems:
        raise click.exceptions.Exit(1)


def _show(findings: list[Finding]) -> None:
    width = max(len(each.name) for each in findings)
    for each in findings:
        level = click.style(f"{each.level:<8}", fg=_COLOURS[each.level])
        click.echo(f"{level} {each.name:<{width}}  {each.found}")
        if each.advice:
            click.echo(f"{'':<{width + 11}}-> {each.advice}")
    count = {level: sum(each.level is level for each in findings) for level in (Level.PROBLEM, Level.WARNING)}
    summary = "this machine can run sandboxes" if not count[Level.PROBLEM] else "sandboxes cannot run here yet"
    click.echo(f"\n{summary}; problems: {count[Level.PROBLEM]}, warnings: {count[Level.WARNING]}")


def _home(data_dir: Path | None) -> Iterator[Finding]:
    home = discovery.running() if data_dir is None else discovery.home_of(data_dir)
    if home is None:
        yield from _ports()
        yield Finding("home", Level.NOTE, "no local home runs", "start one with `sandpool up`")
        return
    if home.version == __version__:
        yield Finding("home", Level.OK, f"pid {home.pid}, version {home.version}, {home.url}")
    else:
        yield Finding(
            "home",
            Level.WARNING,
            f"pid {home.pid} has version {home.version}, this program {__version__}",
            "`sandpool down` and `sandpool up` to upgrade; sandboxes are kept",
        )
    yield _answer("API", _api_answers(home), home.url)
    if home.router_url is not None:
        yield _answer("router", _router_answers(home.router_url), home.router_url)
    yield Finding("node", Level.PROBLEM if "cannot run pods" in home.node else Level.OK, home.node.splitlines()[0])


def _ports() -> Iterator[Finding]:
    for name, port in _PORTS.items():
        if preferred_port("127.0.0.1", port):
            yield Finding(f"port {port}", Level.OK, f"free, for the {name}")
        else:
            advice = "`sandpool up` will choose a free port and print it"
            yield Finding(f"port {port}", Level.WARNING, f"taken by another program; for the {name}", advice)


def _answer(name: str, why_not: str, url: str) -> Finding:
    if not why_not:
        return Finding(name, Level.OK, f"{url} answers")
    return Finding(name, Level.PROBLEM, f"{url} does not answer: {why_not}", "see `sandpool logs`")


def _api_answers(home: Home) -> str:
    host, _, port = home.url.removeprefix("https://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
    except OSError as error:
        return str(error)
    return ""


def _router_answers(url: str) -> str:
    try:
        urllib.request.urlopen(f"{url}/healthz", timeout=_SECONDS).close()
    except (OSError, urllib.error.URLError) as error:
        return str(error)
    return ""
