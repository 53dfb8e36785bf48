"""``sandpool server`` as a process of its own, for tests and measurements of the whole thing."""

from __future__ import annotations

import asyncio
import base64
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from sandpool.testing.component import Component
from sandpool.testing.users import ADMIN, token_file


class ServerFailed(Exception):
    """The server ended or did not come up in time; the message carries the tail of its log."""


class ServerProcess:
    """Start with ``start`` or as a context manager, ``with`` or ``async with``; ``stop`` leaves nothing behind.

    Reached like a ``ControlPlane``: ``url``, ``ca``, ``tokens`` by user, and a ``kubeconfig`` of the administrator.
    After ``restart`` it serves the same data, on another port.
    """

    def __init__(self, *, users: Mapping[str, tuple[str, ...]] | None = None, options: Sequence[str] = ()) -> None:
        self.users = dict(users or {})
        self.options = options
        self.tokens = {user: f"token-of-{user}" for user in self.users}

    def start(self, within: float = 30.0) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="sandpool-server-"))
        self.kubeconfig = self.directory / "kubeconfig"
        (self.directory / "tokens.csv").write_text(token_file(self.tokens, self.users))
        command: list[str | Path] = [
            *(sys.executable, "-m", "sandpool.cli.main", "server"),
            *("--data-dir", self.directory / "data", "--port", "0"),
            *("--kubeconfig", self.kubeconfig, "--token-file", self.directory / "tokens.csv"),
            *self.options,
        ]
        self.process = Component("sandpool server", command, self.directory / "log")
        try:
            self._start(within)
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self, *, crash: bool = False, within: float = 30.0) -> None:
        """End it, in good order or at this instant, and start it again."""
        if crash:
            self.process.kill()
        else:
            self.process.stop()
        self._start(within)

    def _start(self, within: float) -> None:
        """It writes the kubeconfig when it serves, with the port the system gave it."""
        self.kubeconfig.unlink(missing_ok=True)
        self.process.start()
        deadline = time.monotonic() + within
        while not self.kubeconfig.exists():
            if not self.process.running or time.monotonic() > deadline:
                raise ServerFailed(f"sandpool server did not start\n{self.process.tail()}")
            time.sleep(0.05)
        config = yaml.safe_load(self.kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.url: str = cluster["server"]
        self.ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.tokens[ADMIN] = config["users"][0]["user"]["token"]

    def stop(self) -> None:
        self.process.stop()
        shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)
