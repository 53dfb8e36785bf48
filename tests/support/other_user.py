"""An unprivileged user for tests, with a Python to run as that user.

The interpreter of the tests may be in a directory that only root can read. Then another interpreter of the same version
is used, in a virtual environment with the packages of ours.
"""

from __future__ import annotations

import os
import shutil
import site
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sandpool

# Another user in every process: pytest-xdist runs several.
_FIRST = 20_000_000
_OTHER = Path("/usr/bin/python3")


class NoOtherUser(Exception):
    """This machine does not allow tests to run as another user."""


class OtherUser:
    """``place`` is a directory of this user."""

    def __init__(self, place: Path, python: Path) -> None:
        self.place = place
        self.python = python
        self.uid = _user() if os.geteuid() == 0 else os.geteuid()

    def command(self, *arguments: str | Path, python: Path | None = None) -> list[str | Path]:
        """Return the command line of Python with these arguments, as this user."""
        called = [python or self.python, *arguments]
        if os.geteuid() != 0:
            return called
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", *called]

    def own_python(self) -> Path:
        """Return a Python that this user owns, as version managers install it."""
        environment = self.place / "python"
        subprocess.run(self.command("-m", "venv", "--copies", "--without-pip", environment), check=True)
        _have_our_packages(environment)
        return environment / "bin" / "python"


@contextmanager
def other_user() -> Iterator[OtherUser]:
    """Yield an unprivileged user. Raises ``NoOtherUser``."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        raise NoOtherUser("setpriv is not installed")
    with tempfile.TemporaryDirectory(prefix="sandpool-user-") as name:
        place, environment = Path(name, "place"), Path(name, "python")
        os.chmod(name, 0o755)
        place.mkdir()
        python = Path(sys.executable)
        if os.geteuid() == 0:
            os.chown(place, _user(), _user())
            python = _python(environment)
        yield OtherUser(place, python)


def _user() -> int:
    return _FIRST + os.getpid()


def _python(environment: Path) -> Path:
    if _is_world_readable(Path(sys.executable).resolve()) and _is_world_readable(Path(sandpool.__file__)):
        return Path(sys.executable)
    said = subprocess.run([_OTHER, "-V"], check=False, capture_output=True, text=True).stdout if _OTHER.exists() else ""
    if not said.startswith(f"Python {sys.version_info[0]}.{sys.version_info[1]}."):
        raise NoOtherUser("no world-executable Python of this version")
    subprocess.run([_OTHER, "-m", "venv", "--without-pip", environment], check=True)
    _have_our_packages(environment)
    return environment / "bin" / "python"


def _have_our_packages(environment: Path) -> None:
    packages = [*site.getsitepackages(), str(Path(sandpool.__file__).parents[1])]
    if not all(_is_world_readable(Path(path)) for path in packages):
        raise NoOtherUser("the packages of this Python are not world-readable")
    (target,) = environment.glob("lib/python*/site-packages")
    (target / "ours.pth").write_text("\n".join(packages) + "\n")


def _is_world_readable(path: Path) -> bool:
    return all(os.stat(each).st_mode & stat.S_IXOTH for each in (*path.parents, *([path] if path.is_dir() else [])))
