"""``sandpool up`` with real sandboxes and a warm pool, and the commands of a user who talks to it."""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from sandpool.bench.server_process import ServerProcess
from sandpool.kube import kubeconfig
from sandpool.node.network.netns import NetworkNamespace
from sandpool.service.service import Service

POOL_SIZE = 3
WITHIN = 30.0
# Notes in a file named by WAY which way a run took: "socket", or "API" if the command line was imported.
_ENTRY = """
import atexit, os, sys
def note():
    with open(os.environ["WAY"], "w") as file:
        file.write("API" if "click" in sys.modules else "socket")
if "WAY" in os.environ:
    atexit.register(note)
from sandpool.cli.entry import main
main()
"""


class Playground:
    """``run`` calls ``sandpool`` as a user does: a process of its own, with pipes."""

    def __init__(self, kubeconfig: Path, directory: Path, program: Sequence[str] = ("-m", "sandpool.cli.main")) -> None:
        self.kubeconfig = kubeconfig
        self.directory = directory
        self.program = program
        self.router = ""  # its URL
        self.dashboard = ""  # the URL that logs in to it once
        self.log: Callable[[], str] = str  # what ``sandpool up`` has said so far
        self.environ = {
            **{name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")},
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(directory),
        }

    def over_the_socket(self) -> Playground:
        """The same user without KUBECONFIG, whose ``sandpool run`` finds the home by its socket. The
        variable WAY names a file in which the program notes the way that a run took."""
        other = Playground(self.kubeconfig, self.directory, ("-c", _ENTRY))
        other.environ = {
            name: value
            for name, value in self.environ.items()
            if name not in ("KUBECONFIG", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "SUDO_UID")
        }
        return other

    def through_the_api(self) -> Playground:
        """The same user, with the command line alone."""
        other = Playground(self.kubeconfig, self.directory)
        other.environ = self.environ
        return other

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, *self.program, *arguments]

    def run(self, *arguments: str, stdin: bytes | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        given |= {"env": self.environ, "cwd": self.directory, "timeout": WITHIN, **options}
        return subprocess.run(self.command(*arguments), capture_output=True, check=False, **given)

    def works(self, *arguments: str, stdin: bytes | None = None, **options: Any) -> str:
        """The output of a command that has to succeed."""
        result = self.run(*arguments, stdin=stdin, **options)
        assert result.returncode == 0, f"{arguments}: {result.stderr.decode()}"
        return result.stdout.decode()

    def fails(self, *arguments: str, code: int = 1, stdin: bytes | None = None, **options: Any) -> str:
        """The complaint of a command that has to fail, without a traceback."""
        result = self.run(*arguments, stdin=stdin, **options)
        said = result.stderr.decode()
        assert result.returncode == code, f"{arguments}: {result.returncode} {said}"
        assert "Traceback" not in said
        return said

    def piped_into_head(self, lines: int, *arguments: str) -> str:
        """What ``head`` prints of a command that has to succeed without a message, although ``head`` ends first."""
        line = f"{shlex.join(self.command(*arguments))} | head -n {lines}"
        shell = ["bash", "-o", "pipefail", "-c", line]
        result = subprocess.run(shell, env=self.environ, capture_output=True, timeout=WITHIN, check=False)
        assert (result.returncode, result.stderr) == (0, b""), f"{arguments}: {result.stderr.decode()}"
        return result.stdout.decode()

    def claims(self) -> list[str]:
        return self.works("ls", "-o", "name").split()


def read_until(terminal: int, text: bytes) -> bytes:
    """Read from a terminal until a text appears."""
    seen = b""
    while text not in seen:
        assert select.select([terminal], [], [], WITHIN)[0], seen
        seen += os.read(terminal, 4096)
    return seen


@contextmanager
def playground(directory: Path, *more_options: str) -> Iterator[Playground]:
    """Start everything, and wait until the pool ``python`` of the quickstart is warm. ``more_options`` go to ``up``."""
    os.chmod(directory, 0o755)
    host, _ = NetworkNamespace.make(directory / "host", lambda: None)
    options = ("--host-netns", str(host.path), "--metrics-bind-address", "0", *more_options)
    user = directory / "user"
    user.mkdir()
    try:
        with ServerProcess("up", options=options, data_dir=directory / "data", user_home=user) as server:
            asyncio.run(_fill(server.kubeconfig))
            running = Playground(server.kubeconfig, user)
            running.router = server.router
            running.dashboard = server.dashboard
            running.log = server.process.log.read_text
            yield running
    finally:
        host.remove()


async def _fill(config: Path) -> None:
    text = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
    documents = [each for each in yaml.safe_load_all(text) if each["kind"] != "SandboxClaim"]
    async with Service.connect(kubeconfig.load(config)) as service:
        await service.pools.ensure(documents)
        await service.pools.scale("python", POOL_SIZE)
        await service.pools.wait_ready("python", POOL_SIZE, WITHIN)
