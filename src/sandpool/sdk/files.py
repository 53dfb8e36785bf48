"""Files of one sandbox: read, write, list, copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from sandpool.sdk.errors import Diagnosis
from sandpool.service.commands import Command, Commands
from sandpool.service.errors import FileError
from sandpool.service.files import Files
from sandpool.service.sandboxes import Sandbox

_READ: Final = 'exec cat -- "$0"'
_WRITE: Final = 'd=$(dirname -- "$0") && mkdir -p -- "$d" && cat > "$0"'
# Names may hold every character but NUL, so they are separated by it.
_LIST: Final = (
    'cd -- "$0" && for f in * .[!.]* ..?*; do [ -e "$f" ] || [ -L "$f" ] || continue; printf "%s\\0" "$f"; done'
)


class AsyncFiles:
    """Relative paths are relative to the working directory of the image. Every method raises ``FileError``."""

    def __init__(self, commands: Commands, files: Files, sandbox: Sandbox, diagnosed: Diagnosis = nullcontext) -> None:
        self._diagnosed = diagnosed
        self._commands = commands
        self._files = files
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        """The content of a file."""
        return await self._shell(_READ, path, "cannot read")

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """The content of a text file."""
        return (await self.read(path)).decode(encoding)

    async def write(self, path: str, content: str | bytes) -> None:
        """Write a file. Missing parent directories are made; an existing file is replaced."""
        await self._shell(_WRITE, path, "cannot write", content.encode() if isinstance(content, str) else content)

    async def list(self, path: str = ".") -> list[str]:
        """The names in a directory, sorted."""
        names = await self._shell(_LIST, path, "cannot list")
        return sorted(name.decode(errors="surrogateescape") for name in names.split(b"\0") if name)

    async def exists(self, path: str) -> bool:
        """Whether there is a file, a directory or a link."""
        command = Command(("sh", "-c", '[ -e "$0" ] || [ -L "$0" ]', path))
        async with self._diagnosed():
            return (await self._commands.run(self._sandbox, command)).exit_code == 0

    async def move(self, source: str, destination: str) -> None:
        """Rename a file or directory."""
        await self._shell('exec mv -- "$0" "$1"', source, "cannot move", None, destination)

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        await self._shell(
            'if [ ! -e "$0" ] && [ ! -L "$0" ]; then echo "it does not exist" >&2; exit 1; fi; exec rm -rf -- "$0"',
            path,
            "cannot remove",
        )

    async def upload(
        self, source: str | os.PathLike[str], destination: str, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """Copy a local file or tree into the sandbox. ``progress`` receives the number of copied bytes."""
        async with self._diagnosed():
            await self._files.upload(self._sandbox, source, destination, progress=progress or _ignore)

    async def download(
        self, source: str, destination: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None
    ) -> None:
        """Copy a file or tree out of the sandbox. ``progress`` receives the number of copied bytes."""
        async with self._diagnosed():
            await self._files.download(self._sandbox, source, destination, progress=progress or _ignore)

    async def _shell(self, script: str, path: str, what: str, stdin: bytes | None = None, *arguments: str) -> bytes:
        command = Command(("sh", "-c", script, path, *arguments))
        async with self._diagnosed():
            result = await self._commands.run(self._sandbox, command, stdin=stdin)
        if result.exit_code != 0:
            reason = result.stderr.decode(errors="replace").strip() or f"exit code {result.exit_code}"
            raise FileError(f"{what} {path} in the sandbox: {reason}")
        return result.stdout


def _ignore(_: int) -> None: ...
