"""View of a Pod: its node and status, without the spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import intern
from typing import Final, NamedTuple

from sandpool.api import conditions
from sandpool.api.resource import SharedObject
from sandpool.api.views.metadata import View, metadata_of

RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"

OOM_KILLED: Final = "OOMKilled"
_MAX_OUTPUT: Final = 200  # characters of the last output of a container

_UNSCHEDULABLE: Final = "Unschedulable"
_STARTING: Final = frozenset({"ContainerCreating", "PodInitializing"})


class Scheduling(NamedTuple):
    """The PodScheduled condition."""

    status: str
    reason: str
    message: str


class ContainerEnd(NamedTuple):
    """The end of a container."""

    container: str
    reason: str
    exit_code: int
    finished_at: str
    message: str

    def describe(self) -> str:
        """The cause and the last line of the output, for messages: ``container "main" ended with ...``."""
        is_oom = self.reason == OOM_KILLED
        cause = "ran out of memory and was killed" if is_oom else "ended"
        reason = f" ({self.reason})" if self.reason and not is_oom else ""
        output = self.message.strip().rpartition("\n")[2][-_MAX_OUTPUT:]
        text = f'container "{self.container}" {cause} with exit code {self.exit_code}{reason}'
        return f'{text}: "{output}"' if output else text


@dataclass(frozen=True, slots=True)
class PodView(View):
    node_name: str
    phase: str  # empty until the first status is written
    ips: tuple[str, ...]
    ready: bool
    scheduling: Scheduling | None
    reason: str  # why it failed: Evicted, NodeLost and the like
    message: str
    last_end: ContainerEnd | None  # the latest end of a container that was restarted, or that made the pod fail
    waiting: str  # why a container cannot start, for example an image that cannot be pulled; empty if none waits

    @property
    def unschedulable(self) -> bool:
        scheduling = self.scheduling
        return scheduling is not None and scheduling[:2] == (conditions.FALSE, _UNSCHEDULABLE)

    @property
    def ended(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED)

    @classmethod
    def from_object(cls, obj: SharedObject) -> PodView:
        status = obj.get("status") or {}
        phase, known, addresses, reason, message, init_containers, containers = map(status.get, _STATUS)
        known = known or ()
        ready = conditions.find_condition(known, conditions.READY)
        scheduled = conditions.find_condition(known, conditions.POD_SCHEDULED)
        return cls(
            **metadata_of(obj),
            node_name=intern((obj.get("spec") or {}).get("nodeName") or ""),
            phase=intern(phase or ""),
            ips=tuple([address["ip"] for address in addresses if address.get("ip")]) if addresses else (),
            ready=ready is not None and ready.get("status") == conditions.TRUE,
            scheduling=None
            if scheduled is None
            else Scheduling(scheduled["status"], scheduled.get("reason") or "", scheduled.get("message") or ""),
            reason=reason or "",
            message=message or "",
            last_end=_last_end(containers, "state" if phase == FAILED else "lastState") if containers else None,
            waiting=_waiting(init_containers or (), containers or ()) if init_containers or containers else "",
        )


_STATUS: Final = (
    "phase",
    "conditions",
    "podIPs",
    "reason",
    "message",
    "initContainerStatuses",
    "containerStatuses",
)


def _waiting(init_containers: Sequence[SharedObject], containers: Sequence[SharedObject]) -> str:
    for statuses in (init_containers, containers):
        for container in statuses:
            state = container.get("state")
            waiting = state.get("waiting") if state else None
            if waiting and (reason := waiting.get("reason") or "") not in _STARTING:
                # The message of a back-off has its delay, which changes with each attempt.
                message = "" if reason == "CrashLoopBackOff" else waiting.get("message") or ""
                return f'container "{container["name"]}": {reason}' + (f": {message}" if message else "")
    return ""


def _last_end(containers: Sequence[SharedObject], field: str) -> ContainerEnd | None:
    latest: ContainerEnd | None = None
    for container in containers:
        state = container.get(field)
        end = state.get("terminated") if state else None
        if end and (latest is None or (end.get("finishedAt") or "") > latest.finished_at):
            latest = ContainerEnd(
                container["name"],
                end.get("reason") or "",
                end.get("exitCode") or 0,
                end.get("finishedAt") or "",
                end.get("message") or "",
            )
    return latest
