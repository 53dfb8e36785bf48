"""The part of our own programs that runs inside sandboxes, laid out in a directory of its own.

A sandbox sees this directory and nothing else of the installation. It is made anew whenever it would differ, and under
a name that tells what is in it, because sandboxes may still run on an older one. That goes when none of them does.
"""

from __future__ import annotations

import compileall
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Final

from sandpool.node.images.store import is_in_use

_log = logging.getLogger(__name__)

# What ``sandpool.sandboxd`` imports that does not come with Python, and what its newer dialect needs besides.
_PACKAGES: Final = ("sandpool.sandboxd", "httptools", "multipart")
_GRPC: Final = ("grpc", "typing_extensions")
_NOT_COPIED: Final = shutil.ignore_patterns("__pycache__", "*.pyi", "*.pyx", "*.pxd", "*.c", "*.h", "vendor")
# What these import at once is not needed, and every sandbox would wait for it.
_EMPTIED: Final = ("httptools/__init__.py", "httptools/parser/__init__.py")

# What is being made, by the process of this number, and what is being removed.
_INCOMING: Final = "incoming-"
_OUTGOING: Final = "outgoing-"

_START: Final = """import sys
sys.path.insert(0, __file__.rpartition("/")[0])
from sandpool.sandboxd.{module} import main
sys.exit(main())
"""


class MissingPackage(Exception):
    """Something is not installed that only some sandboxes need; the message says how to get it."""


def lay_out(directory: Path, *, grpc: bool = False) -> Path:
    """The program to be started in a sandbox, in a directory below this one; with ``grpc`` that of the newer
    dialect. Raises ``MissingPackage``."""
    if grpc and find_spec("grpc") is None:
        raise MissingPackage("commands over gRPC need the package grpcio: install sandpool[sandboxd]")
    incoming = directory / f"{_INCOMING}{os.getpid()}"
    shutil.rmtree(incoming, ignore_errors=True)
    (incoming / "sandpool").mkdir(mode=0o755, parents=True)
    (incoming / "sandpool" / "__init__.py").write_text("")
    (incoming / "sandboxd.py").write_text(_START.format(module="daemon" if grpc else "__main__"))
    for package in (*_PACKAGES, *(_GRPC if grpc else ())):
        _copy(package, incoming)
    for name in _EMPTIED:
        (incoming / name).write_text("")
    compileall.compile_dir(incoming, quiet=2, stripdir=str(incoming))
    target = directory / _digest(incoming)
    if target.exists():
        shutil.rmtree(incoming)
    else:
        _readable(incoming)
        incoming.rename(target)
    return target / "sandboxd.py"


def remove_others(directory: Path, kept: Collection[Path], used: Callable[[], Collection[Path]]) -> None:
    """What other versions of ours have laid out here, and what a crash has left; except for ``kept``, what containers
    are made of according to ``used``, and what is mounted."""
    others = [path for path in directory.iterdir() if path not in kept and not _is_being_made(path)]
    needed = {path.resolve() for path in used()} if others else set()
    for path in others:
        if path.resolve() not in needed and not is_in_use(path):
            _log.info("removing %s, which no container uses", path)
            try:
                # Under another name first: half of it is not to be taken for the whole.
                shutil.rmtree(path.rename(directory / f"{_OUTGOING}{token_hex(4)}"))
            except OSError as error:  # no pod has to wait for that; the next node tries again
                _log.warning("%s could not be removed: %s", path, error)


def _is_being_made(path: Path) -> bool:
    _, incoming, maker = path.name.rpartition(_INCOMING)
    return bool(incoming) and Path("/proc", maker).exists()


def _copy(package: str, target: Path) -> None:
    spec = find_spec(package)
    assert spec is not None, f"{package} is a dependency of ours"
    place = target.joinpath(*package.split("."))
    if spec.submodule_search_locations:
        shutil.copytree(next(iter(spec.submodule_search_locations)), place, ignore=_NOT_COPIED)
    else:
        assert spec.origin is not None
        shutil.copy(spec.origin, place.with_suffix(".py"))


def _digest(directory: Path) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(str(path.relative_to(directory)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _readable(directory: Path) -> None:
    """For everybody: whoever starts it is nobody in particular."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
