"""``sandpool up`` with a real node, in its own network namespace, so that no ports or pods of others interfere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from sandpool.bench.sdk_process import SdkProcess
from sandpool.bench.server_process import ServerProcess
from sandpool.cli.routing import ROUTER_ADDRESS
from sandpool.node.network.links import set_up_loopback
from sandpool.node.network.netns import NetworkNamespace

_RESOLVER = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
# Real sandboxes take a while to go, on a loaded machine.
_TIMEOUT = 90.0


def e2b_variables(server: ServerProcess) -> str:
    """The line that leads clients of E2B to a home, as ``sandpool up --e2b`` printed it last."""
    said = [line.split(maxsplit=2) for line in server.process.tail(1000).splitlines()]
    return next(words[2] for words in reversed(said) if words[:1] == ["e2b"])


class PrivateHome:
    """A command with ``prefix`` runs in the same network, where names of the cluster resolve."""

    def __init__(self, options: Sequence[str] = (), users: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sandpool-home-"))
        os.chmod(self.directory, 0o755)
        self.network, _ = NetworkNamespace.make(self.directory / "network", set_up_loopback)
        # Here the default address is always free.
        options = ("--router-bind-address", ROUTER_ADDRESS, *options)
        self.server = ServerProcess(
            "up", data_dir=self.directory / "data", options=options, users=users, network=self.network.path
        )

    @property
    def prefix(self) -> tuple[str, ...]:
        resolver = self.directory / "resolv.conf"
        if not resolver.exists():
            resolver.write_text("nameserver 10.231.0.1\n")
        return (
            *("nsenter", f"--net={self.network.path}", "unshare", "--mount"),
            *("sh", "-c", _RESOLVER, str(resolver)),
        )

    @property
    def router(self) -> str:
        """The URL of the router, as printed."""
        return self.server.router

    @property
    def e2b_variables(self) -> str:
        """The line for clients of E2B, as printed."""
        return e2b_variables(self.server)

    def kubectl(self, *arguments: str, stdin: str = "", patience: float = _TIMEOUT) -> str:
        """Run kubectl and return its output."""
        done = subprocess.run(
            [*self.prefix, "kubectl", f"--kubeconfig={self.server.kubeconfig}", *arguments],
            env={"PATH": os.environ["PATH"], "HOME": str(self.directory)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def sdk(self, *, asynchronous: bool = False) -> SdkProcess:
        """Start a program that uses this home. The caller stops it."""
        return SdkProcess(self.server.kubeconfig, self.directory, prefix=self.prefix, asynchronous=asynchronous)

    def start(self) -> Self:
        try:
            self.server.start(_TIMEOUT)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        try:
            if self.server.process.running:
                self.server.process.end(_TIMEOUT)
        finally:
            self.server.stop()
            self.network.remove()
            shutil.rmtree(self.directory, ignore_errors=True)
