"""Finding the binaries of a real Kubernetes control plane."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

REQUIRED = ("etcd", "kube-apiserver")
_BUILDER = Path(__file__).parents[2] / "dev" / "kube-assets"


class MissingAssets(Exception):
    """No usable binaries were found. The message names the searched places and the command that builds them."""


@dataclass(frozen=True)
class Assets:
    """A directory with etcd and kube-apiserver, and optionally kube-controller-manager and kubectl."""

    directory: Path

    def binary(self, name: str) -> Path:
        path = self.directory / name
        if not os.access(path, os.X_OK):
            raise MissingAssets(f"no {name} in {self.directory}")
        return path

    def has(self, name: str) -> bool:
        return os.access(self.directory / name, os.X_OK)


def find_assets() -> Assets:
    """Return the directory named by KUBEBUILDER_ASSETS, or else the one that ``dev/kube-assets`` has built.

    The variable wins even if its directory is unusable: a user who sets it wants those binaries and no others.
    """
    named = os.environ.get("KUBEBUILDER_ASSETS")
    if named:
        return _checked(Path(named), f"KUBEBUILDER_ASSETS={named}")
    if _BUILDER.exists():
        found = subprocess.run([_BUILDER, "--check"], stdout=subprocess.PIPE, text=True, check=False)
        if found.returncode == 0:
            return _checked(Path(found.stdout.strip()), "dev/kube-assets")
    raise MissingAssets("no Kubernetes binaries: set KUBEBUILDER_ASSETS, or build them with dev/kube-assets")


def _checked(directory: Path, source: str) -> Assets:
    assets = Assets(directory)
    missing = [name for name in REQUIRED if not assets.has(name)]
    if missing:
        raise MissingAssets(f"{source}: no {' and no '.join(missing)} in {directory}")
    return assets
