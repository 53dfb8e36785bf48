"""One request in an audit log, of the embedded server or of kube-apiserver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sandpool.kube.user_agent import shown

_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """One answered request for a resource."""

    user: str
    verb: str  # RBAC verb
    resource: str  # plural
    subresource: str
    namespace: str
    name: str  # empty for a create unless the log contains it
    code: int
    agent: str

    @property
    def writes(self) -> bool:
        return self.verb in WRITES

    def __str__(self) -> str:
        return f"{self.verb} {'/'.join(filter(None, (self.resource, self.subresource)))}"


def request_of_sandpool(line: Any) -> AuditedRequest:
    return AuditedRequest(
        line["user"],
        line["verb"],
        line.get("resource", ""),
        line.get("subresource", ""),
        line.get("namespace", ""),
        line.get("name", ""),
        line["code"],
        line.get("userAgent", ""),
    )


def request_of_kubernetes(line: Any) -> AuditedRequest:
    about = line.get("objectRef", {})
    return AuditedRequest(
        line["user"]["username"],
        line["verb"],
        about.get("resource", ""),
        about.get("subresource", ""),
        about.get("namespace", ""),
        about.get("name", ""),
        line["responseStatus"]["code"],
        line.get("userAgent", ""),
    )


def who(asked: AuditedRequest) -> str:
    """Return the account and the program of a request; programs tell the parts of one process apart."""
    program = shown(asked.agent)
    account = asked.user.rpartition(":")[2] if asked.user.startswith(_SERVICE_ACCOUNT) else asked.user
    return f"{account} ({program})" if program else account
