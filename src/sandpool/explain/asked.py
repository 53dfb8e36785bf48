"""What an API was asked and by whom: one line of its audit log, the embedded server's or kube-apiserver's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

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
