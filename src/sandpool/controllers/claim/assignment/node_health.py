"""Which nodes sandboxes are handed out from last: those that are on their way out, and those where sandboxes break.

**On their way out** are nodes that are cordoned, not ready or about to be removed; the API says so. Where we may not
read nodes, nothing is known about any of them, and all are treated alike.

**Where sandboxes break.** A node whose sandboxes lose their readiness one after the other would be handed out from
first, since nobody stays on it for long. So failures are remembered, per node. Each counts 1 at first and half as much
with every ``HALF_LIFE``. A node is suspect when they add up to ``SUSPECT``, and until they have faded to ``CLEARED``:
one failure is an accident, and a node does not go in and out of favour with each. A sandbox that fails again and again
counts once. Only the order changes: if all nodes are suspect, because what broke is something they share, all of them
are served as before. Nothing is deleted, and no claim is refused.

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
# However much has gone wrong, a node gets another chance after some 15 minutes.
_WORST: Final = 8.0
# What has faded to this is as good as never happened.
_FORGOTTEN: Final = 0.5

# Why a sandbox that was ready is not: its pod is there and does not work, or is gone or has failed. Other reasons are
# somebody's wish, or trouble with the API.
_BROKEN: Final = frozenset({DEPENDENCIES_NOT_READY, POD_FAILED[0]})


def has_failed(old: SandboxView, new: SandboxView) -> bool:
    """Whether a sandbox of a pool or a claim was ready and has ceased to be, without anybody having wished for it."""
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
    """What has gone wrong on a node."""

    score: float = 0.0  # as of ``at``
    at: float = 0.0
    sandboxes: set[str] = field(default_factory=set)  # UIDs of those that were counted
    is_suspect: bool = False
    until: float = 0.0  # when it is forgotten

    def add(self, sandbox_uid: str, now: float) -> None:
        self.sandboxes.add(sandbox_uid)
        faded = self.score * math.exp2((self.at - now) / HALF_LIFE)
        self.score, self.at = min(faded + 1.0, _WORST), now
        self.is_suspect = self.is_suspect or self.score >= SUSPECT
        self.until = now + HALF_LIFE * math.log2(self.score / (CLEARED if self.is_suspect else _FORGOTTEN))


class NodeHealth:
    """``deprioritize`` and ``restore`` are called with a node when it begins and ceases to be one of those."""

    def __init__(self, clock: Clock, deprioritize: Callable[[str], object], restore: Callable[[str], object]) -> None:
        self.clock = clock
        self.deprioritize = deprioritize
        self.restore = restore
        self._unfit: set[str] = set()
        # Of nodes where something went wrong that has not been forgotten.
        self._records: dict[str, _Record] = {}
        # Not later than the first of them is.
        self._next_review = math.inf

    def __len__(self) -> int:
        """How many nodes there is anything to remember about."""
        return len(self._unfit | self._records.keys())

    def is_deprioritized(self, node: str) -> bool:
        record = self._records.get(node)
        return node in self._unfit or (record is not None and record.is_suspect)

    def set_fit(self, node: str, *, fit: bool) -> None:
        """What the API says of a node; one that is gone is fit, for nothing is on it."""
        was_avoided = self.is_deprioritized(node)
        if fit:
            self._unfit.discard(node)
        else:
            self._unfit.add(node)
        self._tell(node, was_avoided)

    def record_failure(self, node: str, sandbox_uid: str) -> None:
        """A sandbox on the node has failed."""
        self.expire_records()
        was_avoided = self.is_deprioritized(node)
        record = self._records.setdefault(node, _Record())
        if sandbox_uid not in record.sandboxes:
            record.add(sandbox_uid, self.clock.monotonic())
            self._next_review = min(self._next_review, record.until)
            self._tell(node, was_avoided)

    def expire_records(self) -> None:
        """Forget what has faded."""
        now = self.clock.monotonic()
        if now < self._next_review:
            return
        for node in [node for node, record in self._records.items() if record.until <= now]:
            was_avoided = self.is_deprioritized(node)
            del self._records[node]
            self._tell(node, was_avoided)
        self._next_review = min((record.until for record in self._records.values()), default=math.inf)

    def _tell(self, node: str, was_avoided: bool) -> None:
        is_deprioritized = self.is_deprioritized(node)
        if is_deprioritized != was_avoided:
            (self.deprioritize if is_deprioritized else self.restore)(node)
