"""Finds the ``sandpool up`` processes of this machine, the local homes, without KUBECONFIG.

A home announces itself when it serves, in the register of each user it belongs to: the user of the process and, under
sudo, the user who called sudo. A register is the directory ``homes`` in the user's data directory, with a subdirectory
for each home:

- ``home.json`` describes the home. It is replaced atomically and removed when the home stops.
- ``run.sock`` is the socket at which the home serves ``sandpool run`` (``home.run_socket``).
- ``kubeconfig``, ``router-token``, ``dashboard-token`` and ``e2b-key`` are copies for the user who called sudo, who
  cannot read those of root.

A killed home leaves its description behind. A description therefore carries the identity of its process (pid, start
time and boot), and one whose process is gone is ignored. It contains no secrets.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from sandpool.home import users
from sandpool.home.locations import DESCRIPTION, LOCAL, PREFERRED, REGISTER, RUN_SOCKET, SUDO
from sandpool.home.owned_directory import NotOwned, open_directory, read_owned
from sandpool.home.process import ProcessIdentity

_DATA_DIR: Final = (".local", "share", "sandpool")  # of the user who called sudo, below the home directory

#: Default ports of ``sandpool up`` on the loopback interface.
API_PORT: Final = 6443
ROUTER_PORT: Final = 6490
METRICS_PORT: Final = 6491
E2B_PORT: Final = 6495
DASHBOARD_PORT: Final = 6492

#: In the description of a node that has no runtime that works.
NO_PODS: Final = "cannot run pods"


@dataclass(frozen=True, slots=True)
class Home:
    """A running ``sandpool up``. All paths are absolute and readable for the user whose register had it."""

    name: str
    process: ProcessIdentity
    url: str
    kubeconfig: Path
    router_url: str | None
    router_token_file: Path | None
    metrics_url: str | None
    data_dir: Path
    log: Path | None  # the log file of a home in the background
    node: str  # what runs its pods, in a line; further lines name what is missing
    settings: Mapping[str, str]  # options of ``sandpool up`` that were given, by name
    version: str
    started: datetime
    dashboard_url: str | None = None
    dashboard_token_file: Path | None = None
    e2b_url: str | None = None
    e2b_key_file: Path | None = None
    audit_log: Path | None = None

    @property
    def shortcomings(self) -> list[str]:
        """Features that the node lacks, a line each: limits and a network without root, or any way to run pods."""
        first, *missing = self.node.splitlines() or [""]
        return [first] if NO_PODS in first else missing

    @property
    def pid(self) -> int:
        return self.process.pid


def running(environ: Mapping[str, str] = os.environ) -> Home | None:
    """Return the running home of this user: the one with the default data directory, else the one started last."""
    return next(iter(all_running(environ)), None)


def all_running(environ: Mapping[str, str] = os.environ) -> list[Home]:
    """Return the running homes of this user; the best one first.

    Under sudo the homes of the user who called it do not count: that user can write any description, with any
    kubeconfig, and root would follow it."""
    found = _read(users.default_data_dir(environ) / REGISTER, os.geteuid())
    newest = sorted(found, key=lambda home: home.started, reverse=True)
    return sorted(newest, key=lambda home: PREFERRED.index(home.name) if home.name in PREFERRED else len(PREFERRED))


def home_of(data_dir: Path, environ: Mapping[str, str] = os.environ) -> Home | None:
    """Return the running home of this user with a data directory."""
    directory = Path(os.path.realpath(data_dir))
    return next((home for home in all_running(environ) if home.data_dir == directory), None)


def homes_of(user: users.User) -> tuple[Home, ...]:
    """Return the running homes of another user, of which only the processes can be trusted: that user can write any
    description."""
    return tuple(_read(user.home.joinpath(*_DATA_DIR, REGISTER), user.uid))


def seen_by_caller(home: Home, environ: Mapping[str, str] = os.environ) -> Home:
    """Return a home as the user who called sudo sees it, with the copies of that user; without sudo as it is."""
    caller = users.sudo_caller(environ)
    theirs = () if caller is None else homes_of(caller)
    return next((each for each in theirs if each.process == home.process), home)


@contextmanager
def announced(
    home: Home, environ: Mapping[str, str] = os.environ, *, sockets: list[socket.socket] | None = None
) -> Iterator[Home]:
    """Let the commands of this user, and of the user who called sudo, find ``home`` for the length of the block.

    Yields the home as the user who typed the command sees it: under sudo with the copies of that user. Listens beside
    each description for ``sandpool run``, and adds the listening sockets to ``sockets``, which the caller closes.
    Raises ``OSError`` if a register cannot be written."""
    name = name_of(home.data_dir, environ)
    own = replace(home, name=name)
    base = users.default_data_dir(environ)
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _registered(own, base, os.geteuid(), os.getegid(), sockets=sockets):
        caller = users.sudo_caller(environ)
        if caller is None:
            yield own
            return
        with handed_over(own, caller, sockets=sockets) as theirs:
            yield theirs


@contextmanager
def handed_over(home: Home, user: users.User, *, sockets: list[socket.socket] | None = None) -> Iterator[Home]:
    """Announce ``home`` to another user too, with copies of its kubeconfig and router token. ``sockets`` is that of
    ``announced``."""
    name = SUDO if home.name == LOCAL else home.name
    with open_directory(user.home, *_DATA_DIR, REGISTER, name, uid=user.uid, gid=user.gid) as directory:
        kubeconfig = directory.write("kubeconfig", read_kubeconfig(home, user))
        token_file = home.router_token_file
        if token_file is not None:
            token_file = directory.write("router-token", _read_private(token_file, user))
        dashboard = home.dashboard_token_file
        if dashboard is not None:
            dashboard = directory.write("dashboard-token", _read_private(dashboard, user))
        e2b_key = home.e2b_key_file
        if e2b_key is not None:
            e2b_key = directory.write("e2b-key", _read_private(e2b_key, user))
    theirs = replace(
        home,
        name=name,
        kubeconfig=kubeconfig,
        router_token_file=token_file,
        dashboard_token_file=dashboard,
        e2b_key_file=e2b_key,
    )
    with _registered(theirs, user.home, user.uid, user.gid, *_DATA_DIR, sockets=sockets):
        yield theirs


def hand_over(kubeconfig: Path, content: bytes, user: users.User) -> None:
    """Give a kubeconfig that this process has written to ``user``, if it is in a directory of that user: with a copy
    that takes its place, because a path may lead elsewhere by now. Raises ``OSError``."""
    with open_directory(kubeconfig.parent, uid=user.uid, gid=user.gid) as directory:
        directory.write(kubeconfig.name, content)


def read_kubeconfig(home: Home, user: users.User) -> bytes:
    """Return the kubeconfig of a home, for ``user``. It may be in a directory that the user can have lead elsewhere, so
    any other file of root under its path is refused. Raises ``OSError``."""
    content = _read_private(home.kubeconfig, user)
    if f'"server": {json.dumps(home.url)}'.encode() not in content:
        raise NotOwned(f"{home.kubeconfig} is not the kubeconfig of this home any more")
    return content


def _read_private(path: Path, user: users.User) -> bytes:
    """Return the content of a file of this process, or of the copy that ``hand_over`` made of it."""
    try:
        return read_owned(path, os.geteuid())
    except NotOwned:
        return read_owned(path, user.uid)


def name_of(data_dir: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the home with a data directory: ``local`` for the default one, else a short hash."""
    directory = os.path.realpath(data_dir)
    if directory == os.path.realpath(users.default_data_dir(environ)):
        return LOCAL
    return sha256(directory.encode()).hexdigest()[:8]


@contextmanager
def _registered(
    home: Home, base: Path, uid: int, gid: int, *below: str, sockets: list[socket.socket] | None
) -> Iterator[None]:
    description = json.dumps(_document(home), indent=2).encode() + b"\n"
    names = (*below, REGISTER, home.name)
    with open_directory(base, *names, uid=uid, gid=gid) as directory:
        if sockets is not None:
            with suppress(OSError):  # not every file system has sockets; `sandpool run` then uses the API
                sockets.append(directory.listen(RUN_SOCKET))
        directory.write(DESCRIPTION, description)
    try:
        yield
    finally:
        try:
            with open_directory(base, *names, uid=uid, gid=gid) as directory:
                if directory.read(DESCRIPTION) == description:
                    directory.remove(DESCRIPTION)
                    directory.remove(RUN_SOCKET)
        except OSError:
            pass  # the register is gone or was replaced; a description that is left is ignored


def _read(register: Path, uid: int) -> Iterator[Home]:
    """Yield the running homes in a register. Descriptions that do not belong to ``uid`` are ignored."""
    try:
        entries = sorted(register.iterdir())
    except OSError:
        return
    for entry in entries:
        home = _description(entry / DESCRIPTION, uid)
        if home is not None and home.process.is_running():
            yield home


def _description(path: Path, uid: int) -> Home | None:
    """Read a description; None if there is none, or if another version wrote one that cannot be understood."""
    try:
        return _home(json.loads(read_owned(path, uid)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _document(home: Home) -> dict[str, Any]:
    process = home.process
    return {
        "name": home.name,
        "process": {"pid": process.pid, "started": process.started, "boot": process.boot},
        "url": home.url,
        "kubeconfig": str(home.kubeconfig),
        "routerUrl": home.router_url,
        "routerTokenFile": None if home.router_token_file is None else str(home.router_token_file),
        "metricsUrl": home.metrics_url,
        "dataDir": str(home.data_dir),
        "log": None if home.log is None else str(home.log),
        "node": home.node,
        "settings": dict(home.settings),
        "version": home.version,
        "started": home.started.isoformat(),
        "dashboardUrl": home.dashboard_url,
        "dashboardTokenFile": None if home.dashboard_token_file is None else str(home.dashboard_token_file),
        "e2bUrl": home.e2b_url,
        "e2bKeyFile": None if home.e2b_key_file is None else str(home.e2b_key_file),
        "auditLog": None if home.audit_log is None else str(home.audit_log),
    }


def _home(document: Mapping[str, Any]) -> Home:
    process = document["process"]
    token_file, log = document["routerTokenFile"], document["log"]
    dashboard = document.get("dashboardTokenFile")  # a home of an earlier version has none
    e2b_key = document.get("e2bKeyFile")
    audit_log = document.get("auditLog")
    return Home(
        name=document["name"],
        process=ProcessIdentity(int(process["pid"]), int(process["started"]), str(process["boot"])),
        url=document["url"],
        kubeconfig=Path(document["kubeconfig"]),
        router_url=document["routerUrl"],
        router_token_file=None if token_file is None else Path(token_file),
        metrics_url=document["metricsUrl"],
        data_dir=Path(document["dataDir"]),
        log=None if log is None else Path(log),
        node=document["node"],
        settings=dict(document["settings"]),
        version=document["version"],
        started=datetime.fromisoformat(document["started"]),
        dashboard_url=document.get("dashboardUrl"),
        dashboard_token_file=None if dashboard is None else Path(dashboard),
        e2b_url=document.get("e2bUrl"),
        e2b_key_file=None if e2b_key is None else Path(e2b_key),
        audit_log=None if audit_log is None else Path(audit_log),
    )
