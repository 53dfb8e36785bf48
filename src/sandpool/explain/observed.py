"""What can be seen of a claim and of everything it depends on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sandpool.api.conditions import FINISHED, TRUE, find_condition
from sandpool.api.events import WARNING
from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView, WarmPoolView, parse_time


@dataclass(frozen=True, slots=True)
class Told:
    """An event."""

    kind: str  # of the object it is about, with its name and UID
    name: str
    uid: str
    type: str
    reason: str
    note: str
    at: datetime | None

    @classmethod
    def from_object(cls, event: Object) -> Told:
        """From an event of the core API, which shows those of events.k8s.io as well."""
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
        )


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod that does not run, and why: the kubelet's words."""

    name: str
    reason: str
    message: str
    restarts: int


@dataclass(frozen=True, slots=True)
class Observed:
    """``None`` is what does not exist; what could not be seen is also in ``unseen``, by the plural of its kind."""

    now: datetime
    claim: ClaimView
    pool: WarmPoolView | None = None
    has_template: bool = False
    sandbox: SandboxView | None = None
    containers: tuple[Container, ...] = ()  # those of its pod that do not run
    failure: str = ""  # of its pod as a whole, such as that its node refuses it
    events: tuple[Told, ...] = ()  # about all of these, the oldest first
    ahead: int = 0  # claims of the same pool that came earlier and have no sandbox either
    unseen: frozenset[str] = frozenset()

    def told(self, *reasons: str) -> Told | None:
        """The last event about the claim with one of the reasons. One of its name that is gone is somebody else."""
        return _last(event for event in self.events if event.uid == self.claim.uid and event.reason in reasons)

    def warning(self, *reasons: str) -> Told | None:
        """The last warning about the pod of its sandbox with one of the reasons.

        Who may not read pods does not know the pod's UID. A pod is younger than its sandbox, so what is older was about
        a namesake of former times.
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


def _last(events: Iterable[Told]) -> Told | None:
    found = list(events)
    return found[-1] if found else None


def idle_containers(pod: Object) -> tuple[Container, ...]:
    """The containers of a pod that do not run although they should."""
    status = pod.get("status") or {}
    known = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return tuple(_idle(known))


def failure_of(pod: Object) -> str:
    """Why a pod has failed, if that is not the doing of its containers."""
    status = pod.get("status") or {}
    return ": ".join(filter(None, (status.get("reason"), status.get("message"))))


def _idle(statuses: Iterable[Object]) -> Iterable[Container]:
    for status in statuses:
        state = status.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        why = waiting or (ended if ended and ended.get("exitCode") else None)
        if why:
            message = why.get("message") or _last_end(status)
            yield Container(status["name"], why.get("reason") or "", message, status.get("restartCount") or 0)


def _last_end(status: Object) -> str:
    ended = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated")
    return f"it ended with exit code {ended['exitCode']}" if ended else ""


def waits_before(other: ClaimView, claim: ClaimView) -> bool:
    """Whether ``other`` came to the same pool earlier and has no sandbox either."""
    if other.uid == claim.uid or other.warm_pool != claim.warm_pool or other.sandbox_name or other.deleting:
        return False
    finished = find_condition(other.conditions, FINISHED)
    if finished is not None and finished["status"] == TRUE:
        return False
    if other.creation_timestamp is None or claim.creation_timestamp is None:
        return False
    return (other.creation_timestamp, other.name) < (claim.creation_timestamp, claim.name)
