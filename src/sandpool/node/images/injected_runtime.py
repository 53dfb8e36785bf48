"""The server of the runtime API with a Python of its own, for images that do not have either.

A sandbox whose image does not serve commands and files gets this directory, read-only, at ``MOUNT``. It holds this
machine's Python with its standard library, the C library and its loader, and the server. The loader is started by its
own path, so nothing of the image is used: the image may have another C library or none. The directory is not in PATH,
and the server's children get the image's environment unchanged.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Final

from sandpool.node.images.toolchain import install_toolchain

#: Where a sandbox has it.
MOUNT: Final = "/.sandpool/runtime"
_LOADER: Final = "ld.so"
_LIBRARY: Final = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x", re.MULTILINE)
_IS_LOADER: Final = re.compile(r"ld-linux|ld-musl|/ld64\.so|/ld\.so")
# Parts of the standard library that the server does not use, some of which need large libraries.
_NOT_COPIED: Final = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3",
    "pydoc_data", "config-*", "_tkinter*", "_test*", "_curses*", "nis*", "_ssl*", "_sqlite3*", "readline*",
    "*.opt-?.pyc",
)  # fmt: skip


class RuntimeUnavailable(Exception):
    """The runtime cannot be made on this machine; the message says why."""


class InjectedRuntime:
    """Makes the runtime below ``directory`` when it is first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = Lock()
        self._made: Path | None = None

    def find(self) -> Path:
        """Return the directory to mount at ``MOUNT``. Raises ``RuntimeUnavailable``."""
        with self._lock:
            if self._made is None or not self._made.is_dir():
                try:
                    self._made = self._make()
                except (OSError, subprocess.SubprocessError) as error:
                    raise RuntimeUnavailable(f"the runtime for images without one cannot be made: {error}") from error
            return self._made

    def _make(self) -> Path:
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        server = install_toolchain(self.directory / "server").parent
        name = hashlib.sha256(f"{sys.version} {server.name}".encode()).hexdigest()[:16]
        target = self.directory / name
        if target.is_dir():
            return target
        draft = self.directory / f".{token_hex(4)}"
        try:
            _copy_python(draft)
            shutil.copytree(server, draft / "server")
            for path in (draft, *draft.rglob("*")):
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for other in self.directory.iterdir():
            if other.name.startswith("."):
                shutil.rmtree(other, ignore_errors=True)  # left by a crash
        return target


def server_command(argv: tuple[str, ...], *, ends_with_command: bool) -> tuple[str, ...]:
    """Return the command line of a container that runs the server beside its own command. If ``ends_with_command``, the
    container ends when the command does; otherwise only if the command fails."""
    start = (
        f"{MOUNT}/{_LOADER}", "--library-path", f"{MOUNT}/lib", f"{MOUNT}/bin/python3", "-I", "-S",
        f"{MOUNT}/server/sandboxd.py",
    )  # fmt: skip
    return (*start, "--run" if ends_with_command else "--beside", *argv) if argv else start


def _copy_python(target: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = Path(sys.base_prefix)
    library = Path(os.__file__).parent
    (target / "bin").mkdir(parents=True)
    program = target / "bin" / "python3"
    shutil.copy2((prefix / "bin" / "python3").resolve(), program)
    shutil.copytree(
        library, target / "lib" / version, ignore=_NOT_COPIED, symlinks=False, ignore_dangling_symlinks=True
    )
    loader = ""
    for file in (program, *(target / "lib" / version / "lib-dynload").glob("*.so")):
        done = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
        for name, path in _LIBRARY.findall(done.stdout):
            if not name or _IS_LOADER.search(path):
                loader = path
            elif not (target / "lib" / name).exists():
                shutil.copy2(Path(path).resolve(), target / "lib" / name)
    if not loader:
        raise OSError(f"{program} is not dynamically linked")
    shutil.copy2(Path(loader).resolve(), target / _LOADER)
    (target / _LOADER).chmod(0o755)
