"""``sandpool context``: which API commands talk to, and how to choose another one.

The choice is a file of Sandpool's own. Only ``export --into`` changes another file, with a backup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from sandpool.cli.output import Column, document_option, output_option, show, show_document
from sandpool.home import connection, contexts, discovery
from sandpool.home.connection import Source
from sandpool.home.contexts import Context
from sandpool.home.owned_directory import open_directory
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.kubeconfig import KubeconfigError


@dataclass(frozen=True, slots=True)
class Choice:
    """A context that can be chosen: of a running home, without a kubeconfig, or of a kubeconfig."""

    name: str
    server: str
    kubeconfig: Path | None


@click.group()
def context() -> None:
    """Show or choose the API that commands talk to."""


@context.command("show")
@document_option
@click.option("--kubeconfig-path", is_flag=True, help="Print only the path of the kubeconfig.")
def show_context(output: str, kubeconfig_path: bool) -> None:
    """Show the API that commands talk to now, and why."""
    target = connection.resolve()
    if kubeconfig_path:
        if target.source is Source.POD:
            raise click.ClickException("the service account of a pod has no kubeconfig")
        click.echo(os.pathsep.join(map(str, target.kubeconfig)))
        return
    found = {
        "server": target.connection().server,
        "source": str(target.source),
        "kubeconfig": os.pathsep.join(map(str, target.kubeconfig)) or None,
        "context": target.context,
        "home": None if target.home is None else target.home.name,
    }
    if output != "table":
        show_document(found, output)
        return
    for name, value in found.items():
        if value is not None:
            click.echo(f"{name:<11} {value}")


@context.command("ls")
@output_option
def list_contexts(output: str) -> None:
    """List the running homes and the contexts of kubeconfigs."""
    used = _used()
    show(
        list(_choices()),
        (
            Column("", lambda each: "*" if (each.name, each.kubeconfig) == used else ""),
            Column("NAME", lambda each: each.name),
            Column("SERVER", lambda each: each.server),
            Column("FROM", lambda each: "local home" if each.kubeconfig is None else str(each.kubeconfig)),
        ),
        output=output,
        name=lambda each: f"context/{each.name}",
        document=lambda each: {
            "name": each.name,
            "server": each.server,
            "kubeconfig": None if each.kubeconfig is None else str(each.kubeconfig),
            "used": (each.name, each.kubeconfig) == used,
        },
        nothing="no local home runs, and no kubeconfig has a context",
    )


@context.command("use")
@click.argument("name", required=False)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Kubeconfig with the context. [default: those that `context ls` shows]",
)
@click.option("--default", "reset", is_flag=True, help="Go back to the default order, which finds the local home.")
def use_context(name: str | None, kubeconfig: Path | None, reset: bool) -> None:
    """Choose the API for all further commands: a running home or a context of a kubeconfig, by NAME.

    KUBECONFIG and --kubeconfig still come first."""
    if reset == (name is not None):
        raise click.UsageError("give the NAME of a context, or --default")
    if name is None:
        contexts.choose(None)
        click.echo("commands use the local home if one runs, else the cluster of ~/.kube/config")
        return
    offered = list(_choices() if kubeconfig is None else _in_file(kubeconfig.absolute()))
    chosen = next((each for each in offered if each.name == name), None)
    if chosen is None:
        names = ", ".join(each.name for each in offered) or "none"
        raise click.ClickException(f"there is no context {name}; known: {names}")
    contexts.choose(Context(chosen.name, chosen.kubeconfig))
    click.echo(f"commands use {chosen.name}, {chosen.server}")
    if os.environ.get("KUBECONFIG"):
        click.echo("KUBECONFIG is set and comes first: unset it to use the chosen context", err=True)


@context.command("export")
@click.option(
    "--into",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig to add the context to, such as ~/.kube/config. A backup is kept.",
)
@click.option("--name", default="sandpool", show_default=True, help="Name of the context there.")
@click.option("--use", "make_current", is_flag=True, help="Make it the current context there.")
def export_context(into: Path | None, name: str, make_current: bool) -> None:
    """Print the kubeconfig of the running home, or add its context to another kubeconfig."""
    home = discovery.running()
    if home is None:
        raise click.ClickException("no local home runs: start one with `sandpool up`")
    if into is None:
        click.echo(home.kubeconfig.read_text(), nl=False)
        return
    import yaml

    into = into.expanduser()
    present = kubeconfigs.read_document(into) if into.exists() else {"apiVersion": "v1", "kind": "Config"}
    merged = _merged(present, kubeconfigs.read_document(home.kubeconfig), name, make_current)
    backup = None
    if into.exists():
        backup = _unused(into.with_name(f"{into.name}.backup"))
    into.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open_directory(into.parent, uid=into.parent.stat().st_uid, gid=into.parent.stat().st_gid) as directory:
        if backup is not None:
            directory.write(backup.name, into.read_bytes())
        directory.write(into.name, yaml.safe_dump(merged, sort_keys=False).encode())
    click.echo(f"added the context {name} to {into}" + ("" if backup is None else f"; before: {backup}"))
    if not make_current:
        click.echo(f"use it with: kubectl --context {name} get sandboxes")


def _unused(path: Path) -> Path:
    """Return the path, with a number at its end if a file is there."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def _merged(present: dict[str, Any], own: dict[str, Any], name: str, make_current: bool) -> dict[str, Any]:
    """Return ``present`` with the cluster, user and context of ``own`` under ``name``, replacing those of that name."""
    added = {
        "clusters": {"name": name, "cluster": own["clusters"][0]["cluster"]},
        "users": {"name": name, "user": own["users"][0]["user"]},
        "contexts": {"name": name, "context": {"cluster": name, "user": name}},
    }
    merged = dict(present)
    for kind, entry in added.items():
        merged[kind] = [each for each in present.get(kind) or () if each.get("name") != name] + [entry]
    if make_current or not merged.get("current-context"):
        merged["current-context"] = name
    return merged


def _used() -> tuple[str, Path | None] | None:
    """Return name and kubeconfig of the context in use."""
    try:
        target = connection.resolve()
    except KubeconfigError:
        return None
    if target.home is not None:
        return target.home.name, None
    for file in target.kubeconfig:
        document = kubeconfigs.read(file)
        name = target.context or document.get("current-context")
        if any(each.name == name for each in _in_file(file)):
            return str(name), file
    return None


def _choices() -> Iterator[Choice]:
    for home in discovery.all_running():
        yield Choice(home.name, home.url, None)
    listed = os.environ.get("KUBECONFIG")
    files = [Path(name).expanduser() for name in listed.split(os.pathsep) if name] if listed else []
    files = files or [Path(kubeconfigs.DEFAULT_PATH).expanduser()]
    homes = {os.path.realpath(home.kubeconfig) for home in discovery.all_running()}
    for file in files:
        if file.exists() and os.path.realpath(file) not in homes:
            yield from _in_file(file)


def _in_file(file: Path) -> Iterator[Choice]:
    document = kubeconfigs.read(file)
    servers = {each["name"]: each["cluster"].get("server", "") for each in document.get("clusters") or ()}
    for each in document.get("contexts") or ():
        yield Choice(each["name"], servers.get(each["context"].get("cluster"), "unknown"), file)
