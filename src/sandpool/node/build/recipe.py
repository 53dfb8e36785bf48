"""The recipe of an image: the name of another image, and steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_VARIABLE: Final = re.compile(r"\\(.)|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::([-+])([^}]*))?\})")


class BuildFailure(Exception):
    """The image cannot be built; the message says why and, for a Dockerfile, in which line."""


class NeedsRoot(BuildFailure):
    """A step runs a command, which needs root."""


@dataclass(frozen=True, slots=True)
class Run:
    """Runs a command. It finds ``files`` by name, and ``directories`` of the host read-only, in ``MOUNTED``; they do
    not become part of the image. ``user`` replaces the image's."""

    text: str
    words: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    directories: Mapping[str, Path] = field(default_factory=dict)
    user: str = ""
    advice: str = ""  # what to do if it fails


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies files of the build context into the image, by the rules of Dockerfiles."""

    text: str
    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class Configure:
    """Changes settings of the image. None leaves one as it is."""

    text: str
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    stop_signal: str | None = None
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Argument:
    """Declares a variable of the build. It is given to commands and does not become part of the image."""

    text: str
    name: str
    default: str | None


@dataclass(frozen=True, slots=True)
class Packages:
    """Installs packages, in the way that the image allows: ``pip`` and ``apt`` are names of packages, and
    ``requirements`` is the content of a requirements file."""

    text: str
    pip: tuple[str, ...] = ()
    requirements: bytes = b""
    apt: tuple[str, ...] = ()


Step = Run | Copy | Configure | Argument | Packages

#: Where a step finds what is mounted for it alone.
MOUNTED: Final = "/.sandpool"


@dataclass(frozen=True, slots=True)
class Recipe:
    base: str
    steps: tuple[Step, ...]


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Replace $NAME, ${NAME}, ${NAME:-default} and ${NAME:+value}, as Dockerfiles do, unless after a backslash."""

    def value(found: re.Match[str]) -> str:
        escaped, plain, name, operator, word = found.groups()
        if escaped is not None:
            return escaped if escaped == "$" else f"\\{escaped}"
        known = variables.get(plain or name, "")
        if operator == "-":
            return known or word
        if operator == "+":
            return word if known else ""
        return known

    return _VARIABLE.sub(value, text)
