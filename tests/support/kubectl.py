"""Runs kubectl for tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.assets import MissingAssets, find_assets

# Older ones want an OpenAPI document in a form that was given up when they went out of support.
OLDEST_MINOR = 29


class KubectlFailed(Exception):
    """kubectl exited with an error. The message has the command and its output."""


@dataclass(frozen=True)
class Kubectl:
    """One binary with one API and one namespace. The configuration of the user is neither read nor written."""

    binary: Path
    kubeconfig: Path
    cache: Path  # of discovery; may be shared by all that talk to the same API
    namespace: str = "default"

    def __call__(self, *arguments: str, stdin: str | None = None, within: float = 60.0) -> str:
        """Run kubectl and return its standard output."""
        done = self._run(arguments, stdin, within)
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}{done.stdout}")
        return done.stdout

    def warnings(self, *arguments: str, stdin: str | None = None) -> list[str]:
        """Run kubectl, expect success, and return the warnings that it shows."""
        done = self._run(arguments, stdin, 60.0)
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}{done.stdout}")
        return [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def fails(self, *arguments: str, stdin: str | None = None, within: float = 60.0) -> str:
        """Run kubectl, expect an error, and return its message."""
        done = self._run(arguments, stdin, within)
        if done.returncode == 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)} succeeded:\n{done.stdout}")
        return done.stderr + done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a kubectl that does not end by itself, such as a watch. The caller ends it."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def until(self, *arguments: str, within: float = 20.0) -> str:
        """Repeat a command until it succeeds."""
        deadline = time.monotonic() + within
        while True:
            try:
                return self(*arguments)
            except KubectlFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _run(self, arguments: tuple[str, ...], stdin: str | None, within: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self._environment(),
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        target = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}", f"--namespace={self.namespace}")
        return [str(self.binary), *target, *arguments]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.cache)}


def find_kubectls() -> dict[str, Path]:
    """Return the available kubectls by label: the one on the PATH, the oldest of the versions that some installations
    keep beside it, and the one built with the real control plane."""
    found: dict[str, Path] = {}
    on_path = shutil.which("kubectl")
    if on_path is not None:
        found["path"] = Path(on_path)
        for minor, binary in sorted(_versions_next_to(Path(on_path).resolve()))[:1]:
            found[f"1.{minor}"] = binary
    try:
        assets = find_assets()
    except MissingAssets:
        return found
    if assets.has("kubectl"):
        found["assets"] = assets.binary("kubectl")
    return found


def _versions_next_to(binary: Path) -> Iterator[tuple[int, Path]]:
    for sibling in binary.parent.glob("kubectl.1.*"):
        minor = sibling.name.removeprefix("kubectl.1.")
        if minor.isdigit() and int(minor) >= OLDEST_MINOR:
            yield int(minor), sibling
