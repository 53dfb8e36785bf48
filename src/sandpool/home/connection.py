"""Decides which API a program talks to: one order for all commands and for the Python client.

1. ``--kubeconfig`` and ``--context``
2. the files in ``KUBECONFIG``
3. the context that ``sandpool context use`` chose
4. the local home, if one runs
5. the service account of the pod
6. ``~/.kube/config``
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sandpool.home import contexts, discovery, users
from sandpool.home.discovery import Home
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.connection import Connection
from sandpool.kube.kubeconfig import KubeconfigError


class Source(StrEnum):
    """The origin of a target, in the words of messages."""

    FLAG = "--kubeconfig"
    ENVIRONMENT = "KUBECONFIG"
    CHOSEN = "sandpool context use"
    HOME = "the local home"
    POD = "the service account of this pod"
    DEFAULT = kubeconfigs.DEFAULT_PATH


class NoTarget(KubeconfigError):
    """No API was found, and none is configured: starting a local home helps. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """An API to talk to: files of kubeconfigs and a context, None for the current one. ``home`` is set if it is the API
    of a local home; its router and its router token are there."""

    source: Source
    kubeconfig: tuple[Path, ...] = ()
    context: str | None = None
    home: Home | None = None

    def connection(self, environ: Mapping[str, str] = os.environ) -> Connection:
        """Load address and credentials. Raises ``KubeconfigError``."""
        if self.source is Source.POD:
            return kubeconfigs.in_cluster(environ=environ)
        return kubeconfigs.from_files(self.kubeconfig, self.context, environ=environ)


def resolve(
    kubeconfig: Path | None = None, context: str | None = None, *, environ: Mapping[str, str] = os.environ
) -> Target:
    """Return the API to talk to. ``kubeconfig`` and ``context`` are the values of flags.

    Raises ``KubeconfigError`` for a configuration that cannot be used, ``NoTarget`` if there is none."""
    if kubeconfig is not None:
        return _with_home(Target(Source.FLAG, (kubeconfig,), context), environ)
    if listed := environ.get("KUBECONFIG"):
        # Listed files may be missing: kubectl creates them on its first write.
        files = tuple(Path(name).expanduser() for name in listed.split(os.pathsep) if name)
        if not (present := tuple(file for file in files if file.exists())):
            raise KubeconfigError(f"none of the files in KUBECONFIG exists: {listed}; unset KUBECONFIG or correct it")
        return _with_home(Target(Source.ENVIRONMENT, present, context), environ)
    if context is not None:
        return _named(context, Source.FLAG, environ)
    if (chosen := contexts.chosen(environ)) is not None:
        return _chosen(chosen, environ)
    if (home := discovery.running(environ)) is not None:
        return Target(Source.HOME, (home.kubeconfig,), None, home)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return Target(Source.POD)
    default = _default(environ)
    if default.exists():
        return Target(Source.DEFAULT, (default,), None)
    raise NoTarget(
        "no local home runs and no cluster is configured: start a home with `sandpool up`, "
        f"or set KUBECONFIG or create {kubeconfigs.DEFAULT_PATH} for a cluster"
    )


def connect(
    kubeconfig: Path | None = None, context: str | None = None, *, environ: Mapping[str, str] = os.environ
) -> Connection:
    """Return the connection to the API to talk to. Raises ``KubeconfigError``, which includes ``NoTarget``."""
    return resolve(kubeconfig, context, environ=environ).connection(environ)


def _named(name: str, source: Source, environ: Mapping[str, str]) -> Target:
    """Return a context by name: a running home, or else a context of ``~/.kube/config``."""
    for home in discovery.all_running(environ):
        if home.name == name:
            return Target(source, (home.kubeconfig,), None, home)
    if (default := _default(environ)).exists():
        return Target(source, (default,), name)
    raise KubeconfigError(f"there is no context {name}: no local home of that name runs, and {default} does not exist")


def _chosen(chosen: contexts.Context, environ: Mapping[str, str]) -> Target:
    if chosen.kubeconfig is not None:
        if not chosen.kubeconfig.exists():
            raise KubeconfigError(
                f"the chosen context {chosen.name} is in {chosen.kubeconfig}, which does not exist; "
                "choose another with `sandpool context use`"
            )
        return Target(Source.CHOSEN, (chosen.kubeconfig,), chosen.name)
    for home in discovery.all_running(environ):
        if home.name == chosen.name:
            return Target(Source.CHOSEN, (home.kubeconfig,), None, home)
    raise NoTarget(
        f"the chosen context is the local home {chosen.name}, which does not run: start it with `sandpool up`, "
        "or choose another with `sandpool context use`"
    )


def _with_home(target: Target, environ: Mapping[str, str]) -> Target:
    """Note the home to which a kubeconfig belongs, if it is the file of a running one."""
    if target.context is None and len(target.kubeconfig) == 1:
        for home in discovery.all_running(environ):
            if os.path.realpath(home.kubeconfig) == os.path.realpath(target.kubeconfig[0]):
                return Target(target.source, target.kubeconfig, None, home)
    return target


def _default(environ: Mapping[str, str]) -> Path:
    return users.home_directory(environ) / ".kube" / "config"
