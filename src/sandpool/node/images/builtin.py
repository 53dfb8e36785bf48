"""Built-in images: the programs of this machine without any of its other files.

They need no registry and no disk. They serve commands and file transfers like the Python runtime of the agent-sandbox
project, or like its daemon, and are also found under the names of those published images, so that published templates
work unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from typing import Final

from sandpool.node.images.pip_settings import host_settings, public_settings, settings_file
from sandpool.node.images.reference import Reference
from sandpool.node.images.toolchain import install_toolchain, prune_toolchains
from sandpool.node.pods.interfaces import Image
from sandpool.node.runtimes.runtime import HostToolchain

HOST: Final = "sandpool.local"
PYTHON: Final = f"{HOST}/python"
SANDBOXD: Final = f"{HOST}/sandboxd"

#: The last parts of the names of the published images, in any registry.
_PUBLISHED: Final = "python-runtime-sandbox"
_PUBLISHED_DAEMON: Final = "sandboxd"
_PROJECT: Final = "agent-sandbox"
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
# Where `pip install` puts programs: the machine's own packages are read-only, so pip installs for the user.
_USER_PATH: Final = "/home/sandbox/.local/bin"


class BuiltInImages:
    """``directory`` is where the programs of sandboxes are installed, on first use. Programs of other versions are then
    removed, except those that containers use according to ``used``."""

    def __init__(self, directory: Path, used: Callable[[], Collection[Path]]) -> None:
        self.directory = directory
        self.used = used
        self._images: dict[tuple[str, str], Image] = {}  # installed images, by name and working directory
        self._programs: set[Path] = set()  # their programs
        self._install_lock = Lock()  # many containers may need an image at once, each in a thread of its own

    def cached(self, reference: Reference) -> Image | None:
        """Return an image that ``find`` has installed before, without I/O."""
        return self._images.get(_identify(reference) or ("", ""))

    def find(self, reference: Reference) -> Image | None:
        """Return the built-in image of this name, whatever its tag; install it if needed. Raises ``MissingPackage``."""
        key = _identify(reference)
        if key is None:
            return None
        with self._install_lock:
            if key not in self._images:
                name, directory = key
                program = install_toolchain(self.directory, grpc=name == SANDBOXD)
                self._programs.add(program.parent)
                prune_toolchains(self.directory, self._programs, self.used)
                self._images[key] = self._image(name, directory, program)
        return self._images[key]

    def _image(self, name: str, directory: str, program: Path) -> Image:
        prefix = Path(sys.base_prefix)
        is_elsewhere = not prefix.is_relative_to("/usr")
        interpreter = f"{prefix}/bin/python3" if is_elsewhere else "/usr/bin/python3"
        # Without site packages: they cost time and memory and are not needed.
        start = (interpreter, "-I", "-S", str(program))
        return Image(
            id=f"{name}@{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
            root=HostToolchain((*([prefix] if is_elsewhere else []), program.parent)),
            env={
                "PATH": ":".join([_USER_PATH, *([f"{prefix}/bin"] if is_elsewhere else []), _PATH]),
                "PIP_BREAK_SYSTEM_PACKAGES": "1",  # distributions forbid it for their own Python; this is a sandbox
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                "LANG": "C.UTF-8",
                "PYTHONUNBUFFERED": "1",
                "SANDBOX_BASE_DIR": directory,
            },
            entrypoint=start if name == SANDBOXD else (),  # sandboxd takes arguments
            command=() if name == SANDBOXD else start,
            working_dir=directory,
            user="1000",
            files={"/etc/pip.conf": settings_file(public_settings(host_settings()))},
        )


def is_built_in(reference: Reference) -> bool:
    """Whether a name is that of a built-in image, whatever was imported under it."""
    return _identify(reference) is not None


def _identify(reference: Reference) -> tuple[str, str] | None:
    """The built-in image of a name, and the directory its commands run in."""
    published = reference.path.split("/")[-2:]
    if (reference.host, reference.path) == (HOST, "python"):
        return PYTHON, "/workspace"
    if published == [_PROJECT, _PUBLISHED]:
        return PYTHON, "/app"
    if (reference.host, reference.path) == (HOST, "sandboxd") or published == [_PROJECT, _PUBLISHED_DAEMON]:
        return SANDBOXD, "/workspace"
    return None
