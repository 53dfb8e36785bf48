"""Describes a local home to its user: what runs, where, and the next command to type."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from sandpool.cli.main import COMMANDS
from sandpool.home import discovery
from sandpool.home.discovery import Home


def report(home: Home) -> str:
    """Return the table that ``sandpool up`` ends with, for the user who typed the command."""
    home = discovery.seen_by_caller(home)
    rows = [
        ("API", home.url, f"export KUBECONFIG={shlex.quote(str(home.kubeconfig))}"),
        ("router", home.router_url or "none", f"token in {home.router_token_file}" if home.router_token_file else ""),
        *_dashboard(home),
        *_e2b(home),
        ("metrics", home.metrics_url or "none", ""),
        ("node", home.node.replace("\n", f"\n{'':<14}"), ""),
        ("data", str(home.data_dir), ""),
        ("log", "" if home.log is None else str(home.log), ""),
    ]
    width = max(len(url) for url in (home.url, home.router_url or ""))
    lines = [f"Sandpool {home.version} is running, pid {home.pid}:"]
    lines += [f"  {name:<9} {where:<{width}}  {note}".rstrip() for name, where, note in rows if where]
    lines += ["", *_next(home)]
    return "\n".join(lines)


def missing(home: Home) -> str:
    """Return what a home lacks and how to get it, for the first command that uses it."""
    lines = [f"note: {line}" for line in home.shortcomings]
    if os.geteuid() != 0:
        lines.append(f"note: `{program()} down && {with_sudo('up', '-d')}` has all of it (docs/local.md)")
    return "\n".join(lines)


def _dashboard(home: Home) -> Iterator[tuple[str, str, str]]:
    """The dashboard with a link that logs in once. Users who cannot read its token get the address."""
    if home.dashboard_url is None or home.dashboard_token_file is None:
        return
    from sandpool.dashboard.access import login_url
    from sandpool.engine.clock import SystemClock

    try:
        url = login_url(home.dashboard_url, home.dashboard_token_file.read_text(), SystemClock())
    except OSError:
        url = home.dashboard_url
    yield ("dashboard", url, "")


def _e2b(home: Home) -> Iterator[tuple[str, str, str]]:
    """The endpoint for clients of E2B, with the line to paste."""
    if home.e2b_url is None or home.e2b_key_file is None:
        return
    from sandpool.cli.e2b_of_home import variables

    yield ("e2b", home.e2b_url, variables(home.e2b_url, home.e2b_key_file))


def program() -> str:
    """Return how to call this program from a shell: its name if that is on PATH, else its path."""
    called = Path(sys.argv[0])
    if called.name != "sandpool":
        return f"{sys.executable} -m sandpool.cli.main"
    found = shutil.which("sandpool")
    if found is not None and os.path.realpath(found) == os.path.realpath(called) and not os.environ.get("SUDO_UID"):
        return "sandpool"
    return shlex.quote(str(called.absolute()))


def with_sudo(*arguments: str) -> str:
    """Return a command line for root, with the path of this program: sudo searches another PATH."""
    called = Path(sys.argv[0])
    words = [str(called.absolute())] if called.name == "sandpool" else [sys.executable, "-m", "sandpool.cli.main"]
    return shlex.join(["sudo", *words, *arguments])


def _next(home: Home) -> Iterator[str]:
    this = program()
    if "run" in COMMANDS:
        yield f"  next     {this} run -- python3 -c 'print(6 * 7)'"
    if shutil.which("kubectl"):
        yield f"  kubectl  kubectl --kubeconfig {shlex.quote(str(home.kubeconfig))} get sandboxes"
    yield f"  more     {this} --help"
