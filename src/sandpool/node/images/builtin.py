"""Images that are always there: the programs of this machine, without anything else of it.

They need no registry and no disk. They answer commands and file transfers as the Python runtime of the agent-sandbox
project does, or as its daemon does, and the names under which these are published mean the same here, so that published
templates work as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from typing import Final

from sandpool.node.images.reference import Reference
from sandpool.node.images.toolchain import lay_out, remove_others
from sandpool.node.pods.interfaces import Image
from sandpool.node.runtimes.runtime import HostToolchain

HOST: Final = "sandpool.local"
PYTHON: Final = f"{HOST}/python"
SANDBOXD: Final = f"{HOST}/sandboxd"

#: The last part of the names of the published images, from whatever registry.
_PUBLISHED: Final = "python-runtime-sandbox"
_PUBLISHED_DAEMON: Final = "sandboxd"
_PROJECT: Final = "agent-sandbox"
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


class BuiltIn:
    """``directory`` is where the programs are laid out that a sandbox is started with; once, when first asked. Then
    also those of other versions go, except for what containers are made of according to ``used``."""

    def __init__(self, directory: Path, used: Callable[[], Collection[Path]]) -> None:
        self.directory = directory
        self.used = used
        self._images: dict[tuple[str, str], Image] = {}  # those that are laid out, by what is meant
        self._programs: set[Path] = set()  # of those
        self._laying_out = Lock()  # many containers may want one at once, each in a thread of its own

    def known(self, reference: Reference) -> Image | None:
        """As ``find``, but only what was found before: that takes no time."""
        return self._images.get(_meant(reference) or ("", ""))

    def find(self, reference: Reference) -> Image | None:
        """The built-in image of this name, whatever its tag. Raises ``MissingPackage``."""
        meant = _meant(reference)
        if meant is None:
            return None
        with self._laying_out:
            if meant not in self._images:
                name, directory = meant
                program = lay_out(self.directory, grpc=name == SANDBOXD)
                self._programs.add(program.parent)
                remove_others(self.directory, self._programs, self.used)
                self._images[meant] = self._image(name, directory, program)
        return self._images[meant]

    def _image(self, name: str, directory: str, program: Path) -> Image:
        prefix = Path(sys.base_prefix)
        is_elsewhere = not prefix.is_relative_to("/usr")
        interpreter = f"{prefix}/bin/python3" if is_elsewhere else "/usr/bin/python3"
        # Without anybody's site packages: they cost time and memory and are not needed.
        start = (interpreter, "-I", "-S", str(program))
        return Image(
            id=f"{name}@{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
            root=HostToolchain((*([prefix] if is_elsewhere else []), program.parent)),
            env={
                "PATH": f"{prefix}/bin:{_PATH}" if is_elsewhere else _PATH,
                "LANG": "C.UTF-8",
                "PYTHONUNBUFFERED": "1",
                "SANDBOX_BASE_DIR": directory,
            },
            entrypoint=start if name == SANDBOXD else (),  # it takes arguments
            command=() if name == SANDBOXD else start,
            working_dir=directory,
            user="1000",
        )


def is_built_in(reference: Reference) -> bool:
    """Whether a name means one of ours, whatever else was imported under it."""
    return _meant(reference) is not None


def _meant(reference: Reference) -> tuple[str, str] | None:
    """Which of ours a name stands for, and where its commands run."""
    published = reference.path.split("/")[-2:]
    if (reference.host, reference.path) == (HOST, "python"):
        return PYTHON, "/workspace"
    if published == [_PROJECT, _PUBLISHED]:
        return PYTHON, "/app"
    if (reference.host, reference.path) == (HOST, "sandboxd") or published == [_PROJECT, _PUBLISHED_DAEMON]:
        return SANDBOXD, "/workspace"
    return None
