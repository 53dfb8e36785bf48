"""Image references, parsed and normalised for comparison."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_DIGEST: Final = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-f]{32,}")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_COMPONENT: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")
_LATEST: Final = "latest"


class InvalidImageName(ValueError):
    """The text is not an image reference."""


class Reference(NamedTuple):
    """``host`` is empty if the name has none. Exactly one of ``tag`` and ``digest`` is set."""

    host: str
    path: str
    tag: str
    digest: str

    def __str__(self) -> str:
        place = f"{self.host}/{self.path}" if self.host else self.path
        return f"{place}@{self.digest}" if self.digest else f"{place}:{self.tag}"


def parse(text: str) -> Reference:
    """Parse ``name``, ``name:tag`` or ``name@digest``; the default tag is "latest"."""
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise InvalidImageName(f'"{text}": "{digest}" is not a digest')
    head, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:  # the colon, if any, is in the host
        head, tag = rest, ""
    elif not _TAG.fullmatch(tag):
        raise InvalidImageName(f'"{text}": "{tag}" is not a tag')
    host, slash, path = head.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, path = "", head
    elif not _HOST.fullmatch(host):
        raise InvalidImageName(f'"{text}": "{host}" is not a host')
    if not path or not all(_COMPONENT.fullmatch(component) for component in path.split("/")):
        raise InvalidImageName(f'"{text}" is not an image name: use lower-case words separated by slashes')
    return Reference(host, path, "" if digest else tag or _LATEST, digest)
