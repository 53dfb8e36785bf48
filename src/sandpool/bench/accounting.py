"""Counts the requests of a load by writer: operations, refusals, and both per claim.

The source is the audit log of the API, which contains every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sandpool.api.kinds import EVENT, POD, SANDPOOL, SERVICE
from sandpool.explain.audit import WRITES, AuditedRequest

#: Writers: the load itself, the controllers, the nodes with their scheduler, and the rest of a cluster.
CLIENT: Final = "client"
CONTROLLERS: Final = "controllers"
NODES: Final = "nodes"
OTHERS: Final = "others"
WRITERS: Final = (CLIENT, CONTROLLERS, NODES, OTHERS)

_KINDS: Final = frozenset(type.plural for type in (*SANDPOOL, POD, SERVICE, EVENT))


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Counts of requests by writer and operation (``patch sandboxes``)."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    conflicts: Counter[str] = field(default_factory=Counter)  # by writer: 409 with reason Conflict
    missing: Counter[str] = field(default_factory=Counter)  # by writer: 404
    # By writer, what was asked for and the code: all that was not done, but for names that were taken.
    refused: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    @classmethod
    def of(cls, asked: Iterable[AuditedRequest], writer: Callable[[AuditedRequest], str]) -> RequestCounts:
        request_counts = cls()
        for each in asked:
            who = writer(each)
            request_counts.requests[who, str(each)] += 1
            if each.code < 400 or (each.code == 409 and is_duplicate(each)):
                continue
            request_counts.refused[who, str(each), each.code] += 1
            if each.code == 404:
                request_counts.missing[who] += 1
            elif each.code == 409:
                request_counts.conflicts[who] += 1
        return request_counts

    def writes(self, writer: str) -> int:
        """Return the number of writes of one writer, events included."""
        return sum(n for (who, what), n in self.requests.items() if who == writer and what.split()[0] in WRITES)


def is_about(asked: AuditedRequest, namespace: str) -> bool:
    """Return whether a request concerns the namespace of a run.

    Cluster-wide requests for its kinds count, so a controller that lists every sandbox per claim does not escape."""
    return asked.namespace == namespace or (not asked.namespace and asked.resource in _KINDS)


def is_duplicate(asked: AuditedRequest) -> bool:
    """Return whether a 409 means that a name is taken. Creating a subresource, as a binding does, takes no name."""
    return asked.verb == "create" and not asked.subresource
