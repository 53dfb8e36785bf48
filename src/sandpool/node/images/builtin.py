"""Images that are always there: the programs of this machine, without anything else of it.

They need no registry and no disk. They answer commands and file transfers as the Python runtime of the agent-sandbox
project does, and the names under which that is published mean the same here, so that published templates work as they
are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Lock
from typing import Final

from sandpool.node.images.reference import Reference
from sandpool.node.images.toolchain import lay_out
from sandpool.node.pods.parts import Image
from sandpool.node.runtimes.runtime import HostToolchain

HOST: Final = "sandpool.local"
PYTHON: Final = f"{HOST}/python"

#: The last part of the name of the published image, from whatever registry.
_PUBLISHED: Final = "python-runtime-sandbox"
_PROJECT: Final = "agent-sandbox"
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


class BuiltIn:
    """``directory`` is where the programs are laid out that a sandbox is started with; once, when first asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._program: Path | None = None
        self._laying_out = Lock()  # many containers may want it at once, each in a thread of its own

    def find(self, reference: Reference) -> Image | None:
        """The built-in image of this name, whatever its tag."""
        if (reference.host, reference.path) == (HOST, "python"):
            return self._python("/workspace")
        if reference.path.split("/")[-2:] == [_PROJECT, _PUBLISHED]:
            return self._python("/app")
        return None

    def _python(self, directory: str) -> Image:
        with self._laying_out:
            if self._program is None:
                self._program = lay_out(self.directory)
        prefix = Path(sys.base_prefix)
        is_elsewhere = not prefix.is_relative_to("/usr")
        interpreter = f"{prefix}/bin/python3" if is_elsewhere else "/usr/bin/python3"
        return Image(
            id=f"{PYTHON}@{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
            root=HostToolchain((*([prefix] if is_elsewhere else []), self._program.parent)),
            env={
                "PATH": f"{prefix}/bin:{_PATH}" if is_elsewhere else _PATH,
                "LANG": "C.UTF-8",
                "PYTHONUNBUFFERED": "1",
                "SANDBOX_BASE_DIR": directory,
            },
            # Without anybody's site packages: they cost time and memory and are not needed.
            command=(interpreter, "-I", "-S", str(self._program)),
            working_dir=directory,
            user="1000",
        )
