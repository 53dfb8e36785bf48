"""Installs the programs that run inside sandboxes into a directory of their own.

A sandbox sees this directory and no other part of the installation. The directory is named by a digest of its content:
sandboxes may still use an older one, which is removed once none of them does.
"""

from __future__ import annotations

import compileall
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Final

from sandpool.node.images.store import is_mounted

_log = logging.getLogger(__name__)

# The imports of ``sandpool.sandboxd`` that are not part of Python, and those of its gRPC daemon.
_PACKAGES: Final = ("sandpool.sandboxd", "multipart")
_GRPC: Final = ("grpc", "typing_extensions")
_NOT_COPIED: Final = shutil.ignore_patterns("__pycache__", "*.pyi", "*.pyx", "*.pxd", "*.c", "*.h", "vendor")

# Prefixes of directories that a process is installing (followed by its PID) and of those being removed.
_INCOMING: Final = "incoming-"
_OUTGOING: Final = "outgoing-"

_START: Final = """import sys
sys.path.insert(0, __file__.rpartition("/")[0])
from sandpool.sandboxd.{module} import main
sys.exit(main())
"""


class MissingPackage(Exception):
    """A package that only some sandboxes need is not installed; the message says how to install it."""


def install_toolchain(directory: Path, *, grpc: bool = False) -> Path:
    """Install the programs below ``directory`` and return the one to start; with ``grpc`` that is the gRPC daemon.
    Raises ``MissingPackage``."""
    if grpc and find_spec("grpc") is None:
        raise MissingPackage("commands over gRPC need the package grpcio: install sandpool[sandboxd]")
    incoming = directory / f"{_INCOMING}{os.getpid()}"
    shutil.rmtree(incoming, ignore_errors=True)
    (incoming / "sandpool").mkdir(mode=0o755, parents=True)
    (incoming / "sandpool" / "__init__.py").write_text("")
    (incoming / "sandboxd.py").write_text(_START.format(module="daemon" if grpc else "__main__"))
    for package in (*_PACKAGES, *(_GRPC if grpc else ())):
        _copy(package, incoming)
    compileall.compile_dir(incoming, quiet=2, stripdir=str(incoming))
    target = directory / _digest(incoming)
    if target.exists():
        shutil.rmtree(incoming)
    else:
        _make_readable(incoming)
        incoming.rename(target)
    return target / "sandboxd.py"


def prune_toolchains(directory: Path, kept: Collection[Path], used: Callable[[], Collection[Path]]) -> None:
    """Remove the programs of other versions and the remains of crashes, except for ``kept``, the directories that
    containers use according to ``used``, and mounted ones."""
    others = [path for path in directory.iterdir() if path not in kept and not _is_being_made(path)]
    needed = {path.resolve() for path in used()} if others else set()
    for path in others:
        if path.resolve() not in needed and not is_mounted(path):
            _log.info("removing %s, which no container uses", path)
            try:
                # Renamed first, so that a partly removed directory is never used.
                shutil.rmtree(path.rename(directory / f"{_OUTGOING}{token_hex(4)}"))
            except OSError as error:  # not worth failing a pod; the next agent tries again
                _log.warning("cannot remove %s: %s", path, error)


def _is_being_made(path: Path) -> bool:
    _, incoming, maker = path.name.rpartition(_INCOMING)
    return bool(incoming) and Path("/proc", maker).exists()


def _copy(package: str, target: Path) -> None:
    # Imported, because a package may replace itself: python-multipart, a dependency of others, has a directory called
    # multipart that hands over to the module of that name.
    module = import_module(package)
    place = target.joinpath(*package.split("."))
    if search := getattr(module, "__path__", None):
        shutil.copytree(next(iter(search)), place, ignore=_NOT_COPIED)
    else:
        assert module.__file__ is not None, f"{package} is a file"
        shutil.copy(module.__file__, place.with_suffix(".py"))


def _digest(directory: Path) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(str(path.relative_to(directory)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _make_readable(directory: Path) -> None:
    """Make all files world-readable: each sandbox runs as a user of its own."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
