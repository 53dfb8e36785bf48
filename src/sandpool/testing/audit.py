"""What an API was asked and by whom, read from its audit log: the embedded server's or kube-apiserver's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Asked:
    """One request about a resource that has been answered."""

    user: str
    verb: str  # as RBAC calls it
    resource: str  # plural
    subresource: str
    namespace: str
    name: str  # of a create, where the log tells it
    code: int
    agent: str

    @property
    def writes(self) -> bool:
        return self.verb in WRITES

    def __str__(self) -> str:
        return f"{self.verb} {'/'.join(filter(None, (self.resource, self.subresource)))}"


def asked_of_sandpool(line: Any) -> Asked:
    return Asked(
        line["user"],
        line["verb"],
        line.get("resource", ""),
        line.get("subresource", ""),
        line.get("namespace", ""),
        line.get("name", ""),
        line["code"],
        line.get("userAgent", ""),
    )


def asked_of_kubernetes(line: Any) -> Asked:
    about = line.get("objectRef", {})
    return Asked(
        line["user"]["username"],
        line["verb"],
        about.get("resource", ""),
        about.get("subresource", ""),
        about.get("namespace", ""),
        about.get("name", ""),
        line["responseStatus"]["code"],
        line.get("userAgent", ""),
    )


class Audit:
    """The log at ``path``. ``flush`` makes the server write what it has."""

    def __init__(self, path: Path, parse: Callable[[Any], Asked], flush: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._parse = parse
        self._flush = flush
        self._read = 0  # bytes of the file, all of them whole lines
        self._asked: list[Asked] = []

    def __len__(self) -> int:
        return len(self.asked())

    def asked(self, *, since: int = 0, namespace: str | None = None, user: str | None = None) -> list[Asked]:
        """Requests in the order in which they were answered. ``since`` is what ``len`` said before."""
        self._flush()
        with self.path.open("rb") as file:
            file.seek(self._read)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._read += len(complete) + len(newline)
        self._asked += [self._parse(orjson.loads(line)) for line in complete.splitlines()]
        return [
            each for each in self._asked[since:] if namespace in (None, each.namespace) and user in (None, each.user)
        ]
