"""The programs that run in sandboxes beside the client, and come from files of this package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

CODE: Final = "code_driver.py"
WATCH: Final = "watch_driver.py"


@cache
def source(name: str) -> str:
    """The source of a driver."""
    return files("sandpool.sdk").joinpath(name).read_text()


def read_all() -> None:
    """Read the drivers before a process loses the right to read files."""
    for name in (CODE, WATCH):
        source(name)
