"""Node health: nodes whose sandboxes are assigned last.

**Unfit nodes** are cordoned, not ready or about to be removed, as the API says. Without permission to read nodes, all
count as fit.

**Suspect nodes.** A node whose sandboxes lose readiness one after the other would be served first, because it keeps the
most free sandboxes. So failures are recorded per node. Each counts 1 at first and half as much after every
``HALF_LIFE``. A node is suspect when the sum reaches ``SUSPECT``, until it has faded to ``CLEARED``: one failure is an
accident, and a node does not change state with each. A sandbox that fails repeatedly counts once. Only the order of
assignment changes: if all nodes are suspect, because the cause is shared, all are served as before. Nothing is deleted,
and no claim is rejected.

Callers invoke ``expire_records`` before they choose a sandbox, because records fade without an event. It costs O(1)
unless a record is due, and then O(nodes with failures).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sandpool.api.conditions import DEPENDENCIES_NOT_READY, POD_FAILED, READY
from sandpool.api.kinds import EXTENSIONS_GROUP
from sandpool.api.views import SandboxView
from sandpool.engine.clock import Clock

HALF_LIFE: Final = 300.0  # seconds
SUSPECT: Final = 3.0
CLEARED: Final = 1.0
# Cap on the sum: a node is restored after about 15 minutes without failures.
_WORST: Final = 8.0
# A sum that has faded to this is dropped.
_FORGOTTEN: Final = 0.5

# Reasons of a failed sandbox: its pod does not work, is gone or has failed. Other reasons are requested by a user, or
# are failures of the API.
_BROKEN: Final = frozenset({DEPENDENCIES_NOT_READY, POD_FAILED[0]})


def has_failed(old: SandboxView, new: SandboxView) -> bool:
    """Whether a sandbox of a pool or a claim lost readiness without a request to stop it."""
    owner = new.owner
    return (
        old.ready
        and not new.ready
        and not new.deleting
        and not new.suspended
        and new.status.reason(READY) in _BROKEN
        and owner is not None
        and owner.group == EXTENSIONS_GROUP
    )


@dataclass(slots=True)
class _Record:
    """Failures on a node."""

    score: float = 0.0  # as of ``at``
    at: float = 0.0
    sandboxes: set[str] = field(default_factory=set)  # UIDs of the sandboxes that were counted
    is_suspect: bool = False
    until: float = 0.0  # when the record is dropped

    def add(self, sandbox_uid: str, now: float) -> None:
        self.sandboxes.add(sandbox_uid)
        faded = self.score * math.exp2((self.at - now) / HALF_LIFE)
        self.score, self.at = min(faded + 1.0, _WORST), now
        self.is_suspect = self.is_suspect or self.score >= SUSPECT
        self.until = now + HALF_LIFE * math.log2(self.score / (CLEARED if self.is_suspect else _FORGOTTEN))


class NodeHealth:
    """Calls ``deprioritize`` and ``restore`` with a node when it becomes and ceases to be unfit or suspect."""

    def __init__(self, clock: Clock, deprioritize: Callable[[str], object], restore: Callable[[str], object]) -> None:
        self.clock = clock
        self.deprioritize = deprioritize
        self.restore = restore
        self._unfit: set[str] = set()
        # Of nodes with recent failures.
        self._records: dict[str, _Record] = {}
        # When the first record is due, or earlier.
        self._next_review = math.inf

    def __len__(self) -> int:
        """Number of nodes with any record."""
        return len(self._unfit | self._records.keys())

    def is_deprioritized(self, node: str) -> bool:
        record = self._records.get(node)
        return node in self._unfit or (record is not None and record.is_suspect)

    def set_fit(self, node: str, *, fit: bool) -> None:
        """Record what the API says of a node. A deleted node is fit: it has no sandboxes."""
        was_avoided = self.is_deprioritized(node)
        if fit:
            self._unfit.discard(node)
        else:
            self._unfit.add(node)
        self._notify(node, was_avoided)

    def record_failure(self, node: str, sandbox_uid: str) -> None:
        """Record the failure of a sandbox on the node."""
        self.expire_records()
        was_avoided = self.is_deprioritized(node)
        record = self._records.setdefault(node, _Record())
        if sandbox_uid not in record.sandboxes:
            record.add(sandbox_uid, self.clock.monotonic())
            self._next_review = min(self._next_review, record.until)
            self._notify(node, was_avoided)

    def expire_records(self) -> None:
        """Drop the records that have faded."""
        now = self.clock.monotonic()
        if now < self._next_review:
            return
        for node in [node for node, record in self._records.items() if record.until <= now]:
            was_avoided = self.is_deprioritized(node)
            del self._records[node]
            self._notify(node, was_avoided)
        self._next_review = min((record.until for record in self._records.values()), default=math.inf)

    def _notify(self, node: str, was_avoided: bool) -> None:
        is_deprioritized = self.is_deprioritized(node)
        if is_deprioritized != was_avoided:
            (self.deprioritize if is_deprioritized else self.restore)(node)
