"""Per-claim memory between reconciles: one ``ClaimState`` per claim UID.

Nothing here is a source of truth: after a restart all of it is gone, and the API has everything that a decision needs.
It saves requests, measures time, and makes sure that events and metrics are recorded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import NamedTuple

from sandpool.api.events import EventSpec
from sandpool.api.labels import CLAIM_FIRST_READY_AT, FIRST_READY_UNKNOWN
from sandpool.api.resource import Key, Object
from sandpool.api.views import ClaimView
from sandpool.controllers.claim.late_binding import BindingOutcome, SandboxIncarnation
from sandpool.controllers.claim.metrics import Sample
from sandpool.controllers.informers import key_of
from sandpool.engine.ratelimit import Backoff


class PendingAdoption(NamedTuple):
    """An adoption or creation whose outcome is not known yet. Its event and its sample are recorded when it is."""

    sandbox: str
    sample: Sample
    event: EventSpec


class PendingAnnotations(NamedTuple):
    """Annotations that are still to be written, and the sandbox that the claim had when they were computed.

    ``metadata`` is that of a merge patch, with the UID as precondition.
    """

    sandbox: str
    metadata: Object

    @property
    def is_first_ready_only(self) -> bool:
        """Whether they are a known time of the first Ready and nothing else."""
        annotations = self.metadata.get("annotations") or {}
        return (
            annotations.keys() == {CLAIM_FIRST_READY_AT}
            and annotations[CLAIM_FIRST_READY_AT] != FIRST_READY_UNKNOWN
            and "labels" not in self.metadata
        )

    def covers(self, others: PendingAnnotations) -> bool:
        """Whether nothing is missing if these are written instead of the others."""
        return self.sandbox == others.sandbox and all(
            (self.metadata.get(part) or {}).keys() >= (others.metadata.get(part) or {}).keys()
            for part in ("annotations", "labels")
        )


@dataclass(slots=True, eq=False)
class ClaimState:
    uid: str
    # When the watch first brought the claim. The time until its first reconcile counts as latency.
    first_observed: datetime | None = None
    # A sandbox was adopted or created for the claim. If it is gone, the claim may be gone as well.
    had_sandbox: bool = False
    # When this process saw the claim become Ready for the first time, and measured it.
    first_ready: datetime | None = None
    # Version of the claim with the status that the last reconcile reported.
    reported_version: str = ""
    # Sandbox whose write got no answer. The next reconcile reads it from the API before it decides.
    unconfirmed: str = ""
    # Sandbox that an annotation of the claim names and that the claim could not adopt.
    abandoned: str = ""
    # The incarnation of the claim's sandbox that has acknowledged the claim's variables.
    bound: SandboxIncarnation | None = None
    # What came of handing over the variables, for the status. A failure keeps the claim from trying another sandbox.
    binding: BindingOutcome | None = None
    pending_adoption: PendingAdoption | None = None
    pending_annotations: PendingAnnotations | None = None


class ClaimStates:
    """The states of all claims, and the back-off of those that fail."""

    def __init__(self, rng: Random) -> None:
        # By claim. A claim that was created again under the same name replaces its predecessor's state.
        self._states: dict[Key, ClaimState] = {}
        # Of claims with an error that is retried. The reconcile itself succeeds, so the engine does not back off.
        self.retries: Backoff[Key] = Backoff(rng)

    def __len__(self) -> int:
        return len(self._states)

    def get(self, key: Key) -> ClaimState | None:
        return self._states.get(key)

    def of(self, claim: ClaimView) -> ClaimState:
        """The state of a claim, created if there is none."""
        key = key_of(claim)
        state = self._states.get(key)
        if state is None or state.uid != claim.uid:
            # The predecessor's lease is still with this name, so an unconfirmed write of its sandbox matters.
            unconfirmed = "" if state is None else state.unconfirmed
            state = self._states[key] = ClaimState(claim.uid, unconfirmed=unconfirmed)
        return state

    def with_pending_annotations(self) -> list[Key]:
        return [key for key, state in self._states.items() if state.pending_annotations is not None]

    def forget(self, key: Key) -> None:
        """Drop everything about a claim that is gone."""
        self._states.pop(key, None)
        self.retries.forget(key)
