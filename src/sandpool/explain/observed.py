"""The observed state of a claim and of the objects it depends on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandpool.api.conditions import (
    CLAIM_LIMIT_REACHED,
    ENV_VARS_INJECTION_REJECTED,
    FINISHED,
    INVALID_METADATA,
    POD_FROZEN,
    READY,
    TRUE,
    VOLUME_CLAIM_TEMPLATES_ERROR,
    find_condition,
)
from sandpool.api.events import PULLING, WARNING
from sandpool.api.kinds import POD
from sandpool.api.resource import Object, SharedObject
from sandpool.api.views import ClaimView, SandboxView, WarmPoolView, parse_time
from sandpool.api.views.pod import OOM_KILLED, ContainerEnd

CRASHING: Final = "CrashLoopBackOff"
#: Reasons of warnings about pods, as written by kubelets and our node.
FAILED: Final = "Failed"
PULL_FAILURES: Final = ("InspectFailed", "ErrImageNeverPull")
_PULLING, _PULLED = _PULLS = ("Pulling", "Pulled")  # normal events of kubelets
#: Reasons of a claim that gets no sandbox until it, its template or its pool changes.
REFUSED: Final = (INVALID_METADATA, ENV_VARS_INJECTION_REJECTED, VOLUME_CLAIM_TEMPLATES_ERROR)


@dataclass(frozen=True, slots=True)
class EventView:
    """One Event about an object."""

    kind: str  # kind, name and UID of the object it is about
    name: str
    uid: str
    type: str
    reason: str
    note: str
    at: datetime | None
    action: str = ""  # empty in events of kubelets
    field_path: str = ""  # the container, in events about one

    @classmethod
    def from_object(cls, event: Object) -> EventView:
        """Parse an Event of the core API, which also serves those of events.k8s.io."""
        at = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
        about = event.get("involvedObject") or {}
        return cls(
            about.get("kind") or "",
            about.get("name") or "",
            about.get("uid") or "",
            event.get("type") or "",
            event.get("reason") or "",
            event.get("message") or "",
            parse_time(at),
            event.get("action") or "",
            about.get("fieldPath") or "",
        )


@dataclass(frozen=True, slots=True)
class IdleContainer:
    """A container that does not run, with the kubelet's reason and message."""

    name: str
    reason: str
    message: str
    restarts: int


@dataclass(frozen=True, slots=True)
class Observed:
    """``None``: the object does not exist or could not be read. ``unseen`` has the plurals of unreadable kinds."""

    now: datetime
    claim: ClaimView
    pool: WarmPoolView | None = None
    has_template: bool = False
    sandbox: SandboxView | None = None
    containers: tuple[IdleContainer, ...] = ()  # containers of its pod that do not run
    failure: str = ""  # of its pod as a whole, for example refused by its node
    events: tuple[EventView, ...] = ()  # about these objects, oldest first
    ahead: int = 0  # earlier claims of the same pool that have no sandbox either
    unseen: frozenset[str] = frozenset()
    frozen_since: str = ""  # if its pod is frozen because it was not used
    binds_late: bool = False  # the template lets warm sandboxes take variables
    policy_advice: str = ""  # the change of the template that allows what the claim adds

    def claim_event(self, *reasons: str) -> EventView | None:
        """The last event about the claim with one of the reasons, matched by UID: names are reused."""
        return _last(event for event in self.events if event.uid == self.claim.uid and event.reason in reasons)

    def warning(self, *reasons: str) -> EventView | None:
        """The last warning about the pod of its sandbox with one of the reasons.

        Without read access to pods the pod's UID is unknown. A pod is younger than its sandbox, so an older event is
        about an earlier pod of the same name.
        """
        sandbox = self.sandbox
        if sandbox is None:
            return None
        since = sandbox.creation_timestamp
        return _last(
            event
            for event in self.events
            if (event.kind, event.name, event.type) == (POD.kind, sandbox.pod_name, WARNING)
            and event.reason in reasons
            and (event.at is None or since is None or event.at >= since)
        )

    def is_pull_failure(self, event: EventView) -> bool:
        """Whether a warning of a node is about an image that cannot be pulled.

        Kubelets report failures to pull and to start a container with the same reason. The order of their other events
        tells which: a pull begins with Pulling and ends with Pulled. Repeated events move to their last occurrence.
        """
        if event.action == PULLING or event.reason in PULL_FAILURES:
            return True
        if event.reason != FAILED:
            return False
        container = (event.kind, event.name, event.uid, event.field_path)
        earlier, later = list[str](), list[str]()
        reasons = earlier
        for each in self.events:
            if each is event:
                reasons = later
            elif each.reason in _PULLS and (each.kind, each.name, each.uid, each.field_path) == container:
                reasons.append(each.reason)
        if earlier:
            return earlier[-1] == _PULLING
        return _PULLING in later and _PULLED not in later


def _last(events: Iterable[EventView]) -> EventView | None:
    found = list(events)
    return found[-1] if found else None


def idle_containers(pod: SharedObject) -> tuple[IdleContainer, ...]:
    """The containers of a pod that should run and do not."""
    status = pod.get("status") or {}
    known = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return tuple(_idle(known))


def failure_of(pod: SharedObject) -> str:
    """The reason why a pod failed as a whole; empty if its containers are the cause."""
    status = pod.get("status") or {}
    return ": ".join(filter(None, (status.get("reason"), status.get("message"))))


def frozen_since(pod: SharedObject) -> str:
    """Since when a pod is frozen because it was not used; empty if it is not."""
    frozen = find_condition((pod.get("status") or {}).get("conditions") or [], POD_FROZEN)
    return "" if frozen is None or frozen["status"] != TRUE else str(frozen["lastTransitionTime"])


def _idle(statuses: Iterable[Object]) -> Iterable[IdleContainer]:
    for status in statuses:
        state = status.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        why = waiting or (ended if ended and ended.get("exitCode") else None)
        if why:
            back_off = why.get("reason") == CRASHING and _last_end(status)  # says more than "back-off 10s"
            message = back_off or why.get("message") or _last_end(status)
            yield IdleContainer(status["name"], why.get("reason") or "", message, status.get("restartCount") or 0)


def _last_end(status: Object) -> str:
    ended = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated")
    if not ended:
        return ""
    name = status["name"]
    reason = OOM_KILLED if ended.get("reason") == OOM_KILLED else ""  # callers have the others
    end = ContainerEnd(name, reason, ended["exitCode"], "", ended.get("message") or "")
    return end.describe().replace(f'container "{name}"', "it", 1)


def is_queued(claim: ClaimView) -> bool:
    """Whether a claim without a sandbox takes one as soon as there is one."""
    ready = claim.condition(READY)
    return ready is None or ready["reason"] not in (*REFUSED, CLAIM_LIMIT_REACHED)


def waits_before(other: ClaimView, claim: ClaimView) -> bool:
    """Whether ``other`` is an earlier claim of the same pool that has no sandbox either."""
    if other.uid == claim.uid or other.warm_pool != claim.warm_pool or other.sandbox_name or other.deleting:
        return False
    finished = find_condition(other.conditions, FINISHED)
    if (finished is not None and finished["status"] == TRUE) or not is_queued(other):
        return False
    if other.creation_timestamp is None or claim.creation_timestamp is None:
        return False
    return (other.creation_timestamp, other.name) < (claim.creation_timestamp, claim.name)
