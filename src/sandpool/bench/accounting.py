"""What a load has cost the API: requests by who made them, refusals, and what that is per claim.

The numbers come from the audit log of the API, which has every request, whoever made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sandpool.api.kinds import EVENT, POD, SANDPOOL, SERVICE
from sandpool.explain.audit import WRITES, AuditedRequest

#: Who asks: those who make the load, the controllers, the nodes with their scheduler, and the rest of a cluster.
CLIENT: Final = "client"
CONTROLLERS: Final = "controllers"
NODES: Final = "nodes"
OTHERS: Final = "others"
WRITERS: Final = (CLIENT, CONTROLLERS, NODES, OTHERS)

_KINDS: Final = frozenset(type.plural for type in (*SANDPOOL, POD, SERVICE, EVENT))


@dataclass(frozen=True, slots=True)
class Ledger:
    """``requests`` are counted by writer and what was asked for (``patch sandboxes``)."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    conflicts: Counter[str] = field(default_factory=Counter)  # by writer: 409 with reason Conflict
    missing: Counter[str] = field(default_factory=Counter)  # by writer: 404
    # By writer, what was asked for and the code: all that was not done, but for names that were taken.
    refused: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    @classmethod
    def of(cls, asked: Iterable[AuditedRequest], writer: Callable[[AuditedRequest], str]) -> Ledger:
        ledger = cls()
        for each in asked:
            who = writer(each)
            ledger.requests[who, str(each)] += 1
            if each.code < 400 or (each.code == 409 and is_duplicate(each)):
                continue
            ledger.refused[who, str(each), each.code] += 1
            if each.code == 404:
                ledger.missing[who] += 1
            elif each.code == 409:
                ledger.conflicts[who] += 1
        return ledger

    def writes(self, writer: str) -> int:
        """How often somebody has written; events among them."""
        return sum(n for (who, what), n in self.requests.items() if who == writer and what.split()[0] in WRITES)


def is_about(asked: AuditedRequest, namespace: str) -> bool:
    """Whether a request is about what a run has made in its namespace. A request about all namespaces is, if such
    things live there: who lists every sandbox for a claim shall not escape."""
    return asked.namespace == namespace or (not asked.namespace and asked.resource in _KINDS)


def is_duplicate(asked: AuditedRequest) -> bool:
    """Whether a 409 is for a name that is taken; creating a subresource, as in binding a pod, makes no name."""
    return asked.verb == "create" and not asked.subresource
