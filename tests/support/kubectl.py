"""kubectl, as tests use it."""

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
    """It ended with an error; the message is the command and what it wrote."""


@dataclass(frozen=True)
class Kubectl:
    """One binary pointed at one API and one namespace. Nothing of the user's own configuration is read or written."""

    binary: Path
    kubeconfig: Path
    cache: Path  # of discovery; may be shared by all that talk to the same API
    namespace: str = "default"

    def __call__(self, *arguments: str, stdin: str | None = None, within: float = 60.0) -> str:
        """Run it and return what it printed."""
        done = self._run(arguments, stdin, within)
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}{done.stdout}")
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def fails(self, *arguments: str, stdin: str | None = None, within: float = 60.0) -> str:
        """Run it, expecting an error, and return what it said."""
        done = self._run(arguments, stdin, within)
        if done.returncode == 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)} succeeded:\n{done.stdout}")
        return done.stderr + done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start one that does not end by itself, such as a watch. The caller ends it."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def until(self, *arguments: str, within: float = 20.0) -> str:
        """Run it again and again until it succeeds."""
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
        """What is run."""
        target = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}", f"--namespace={self.namespace}")
        return [str(self.binary), *target, *arguments]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.cache)}


def find_kubectls() -> dict[str, Path]:
    """The kubectls at hand by what to call them: the one on the PATH, the oldest of the versions that some
    installations keep next to it, and the one built with the real control plane."""
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
