"""``sandpool server`` or ``sandpool up`` as a child process, for tests, benchmarks and the demo."""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import yaml

from sandpool.bench.child_process import Component, Rig

#: The user of the kubeconfig that ``sandpool server`` and ``sandpool up`` write.
ADMIN: Final = "admin"

# The line that the process prints when it serves.
_GREETING: Final = {"server": "serving https://", "up": " is running, pid "}
# Isolated from other homes: on free ports, and removed at the end.
_UP: Final = (
    "--keep=false",
    *("--router-bind-address", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0"),
    *("--dashboard-bind-address", "127.0.0.1:0"),
)
# Options of env(1) without which the register of homes would be elsewhere.
_OWN_REGISTER: Final = tuple(f"--unset={name}" for name in ("XDG_DATA_HOME", "SUDO_UID"))


def token_file(tokens: Mapping[str, str], users: Mapping[str, tuple[str, ...]]) -> str:
    """Render the static token file of kube-apiserver and ``sandpool server``: token, user, uid and groups per line."""
    return "".join(f'{tokens[user]},{user},{user}-uid,"{",".join(groups)}"\n' for user, groups in users.items())


class ServerProcess(Rig):
    """The embedded API, alone (``server``) or with the controllers (``up``).

    Reached like a ``ControlPlane``: ``url``, ``ca``, ``tokens`` by user, and a ``kubeconfig`` of the administrator.
    After ``restart`` it serves the same data, on another port. ``seconds`` is how long the last start took. A
    ``data_dir`` that is passed in stays when it stops. ``network`` is the namespace it runs in, if not ours.
    ``up`` is not announced to other commands, except to those of a user with the home directory ``user_home``.
    """

    def __init__(
        self,
        command: str = "server",
        *,
        data_dir: Path | None = None,
        users: Mapping[str, tuple[str, ...]] | None = None,
        options: Sequence[str] = (),
        network: Path | None = None,
        user_home: Path | None = None,
    ) -> None:
        self.command = command
        self.data_dir = data_dir
        self.users = dict(users or {})
        self.options = options
        self.network = network
        self.user_home = user_home
        self.tokens = {user: f"token-of-{user}" for user in self.users}
        self.seconds = 0.0

    def start(self, within: float = 30.0) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="sandpool-server-"))
        self.kubeconfig = self.directory / "kubeconfig"
        (self.directory / "tokens.csv").write_text(token_file(self.tokens, self.users))
        command: list[str | Path] = [
            *(() if self.network is None else ("nsenter", f"--net={self.network}")),
            *(() if self.user_home is None else ("env", *_OWN_REGISTER, f"HOME={self.user_home}")),
            *(sys.executable, "-m", "sandpool.cli.main", self.command),
            *("--data-dir", self.data_dir or self.directory / "data", "--port", "0"),
            *("--kubeconfig", self.kubeconfig, "--token-file", self.directory / "tokens.csv"),
            *(_UP if self.command == "up" else ()),
            *(("--unlisted",) if self.command == "up" and self.user_home is None else ()),
            *self.options,
        ]
        self.process = Component(f"sandpool {self.command}", command, self.directory / "log")
        try:
            self._start(within)
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self, *, crash: bool = False, within: float = 30.0) -> None:
        """Stop or crash the process and start it again."""
        if crash:
            self.process.kill()
        else:
            self.process.stop(within)
        self._start(within)

    def _start(self, within: float) -> None:
        log = self.process.log
        logged = log.stat().st_size if log.exists() else 0
        started = time.monotonic()
        self.process.start()
        self.process.wait_for(_GREETING[self.command], within, since=logged)
        self.seconds = time.monotonic() - started
        config = yaml.safe_load(self.kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.url: str = cluster["server"]
        self.ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.tokens[ADMIN] = config["users"][0]["user"]["token"]

    @property
    def router(self) -> str:
        """Return the URL of the router, as ``sandpool up`` printed it."""
        lines = (line.split() for line in self.process.tail(1000).splitlines())
        return next(words[1] for words in lines if words[:1] == ["router"])

    @property
    def dashboard(self) -> str:
        """Return the URL that logs in to the dashboard once, as ``sandpool up`` printed it."""
        lines = (line.split() for line in self.process.tail(1000).splitlines())
        return next(words[1] for words in lines if words[:1] == ["dashboard"])

    def stop(self) -> None:
        self.process.stop(30.0)  # a node ends its sandboxes first
        shutil.rmtree(self.directory)
