"""``sandpool node`` as a separate process, for any API. Its pods are in a network without a route out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from sandpool.bench.child_process import Component, Rig
from sandpool.node.network.netns import NetworkNamespace


class SeparateNode(Rig):
    """``directory`` is the data directory, which is kept. The node also schedules pods, unless ``options`` say
    otherwise. ``host`` is the network namespace that pods connect to, by default a new one."""

    def __init__(
        self,
        kubeconfig: Path,
        directory: Path,
        *,
        name: str = "apart",
        options: Sequence[str] = (),
        host: NetworkNamespace | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.host = host
        command: list[str | Path] = [
            *(sys.executable, "-m", "sandpool.cli.main", "node", "--schedule=true", "--name", name),
            *("--kubeconfig", kubeconfig, "--data-dir", directory / "data"),
            *("--host-netns", directory / "host" if host is None else host.path),
            *("--kubelet-port", "0", *options),
        ]
        self.process = Component(f"sandpool node {name}", command, directory / "log")

    def start(self, within: float = 60.0) -> Self:
        os.chmod(self.directory, 0o755)
        if self.host is None:
            self._made, _ = NetworkNamespace.make(self.directory / "host", lambda: None)
        logged = self.process.log.stat().st_size if self.process.log.exists() else 0
        try:
            self.process.start()
            self.process.wait_for(f"node {self.name} runs pods", within, since=logged)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        self.process.stop(30.0)
        if self.host is None:
            self._made.remove()
