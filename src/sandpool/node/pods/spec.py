"""A pod spec, parsed once into the form that its worker uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from sandpool.api.kinds import POD
from sandpool.api.labels import LATE_BOUND, WARM_POOL
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.api.sleep import AWAKE, SleepSettings, read_sleep_settings
from sandpool.api.views.times import parse_time
from sandpool.engine.events import ObjectReference

ALWAYS: Final = "Always"
ON_FAILURE: Final = "OnFailure"
NEVER: Final = "Never"


class ProbeKind(Enum):
    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"

    @property
    def title(self) -> str:
        """The first word of events about it."""
        return self.value.capitalize()


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a container. All times are in seconds."""

    kind: ProbeKind
    action: Object  # exec, httpGet, tcpSocket or grpc
    initial_delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3
    grace: int | None = None  # overrides the pod's when this probe fails

    @classmethod
    def read(cls, kind: ProbeKind, probe: Object) -> Probe:
        action = {name: probe[name] for name in ("exec", "httpGet", "tcpSocket", "grpc") if probe.get(name)}
        return cls(
            kind,
            action,
            float(probe.get("initialDelaySeconds") or 0),
            float(probe.get("periodSeconds") or 10),
            float(probe.get("timeoutSeconds") or 1),
            probe.get("successThreshold") or 1,
            probe.get("failureThreshold") or 3,
            probe.get("terminationGracePeriodSeconds"),
        )


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    image: str
    pull_policy: str
    init: bool
    sidecar: bool  # an init container with restartPolicy Always
    probes: Mapping[ProbeKind, Probe]
    post_start: Object | None
    pre_stop: Object | None
    stop_signal: str  # empty: that of the image, or SIGTERM
    spec: Object

    @classmethod
    def read(cls, spec: Object, *, init: bool = False) -> Container:
        lifecycle = spec.get("lifecycle") or {}
        return cls(
            spec["name"],
            spec.get("image") or "",
            spec.get("imagePullPolicy") or "IfNotPresent",
            init,
            init and spec.get("restartPolicy") == ALWAYS,
            {
                kind: Probe.read(kind, spec[f"{kind.value}Probe"])
                for kind in ProbeKind
                if spec.get(f"{kind.value}Probe")
            },
            lifecycle.get("postStart"),
            lifecycle.get("preStop"),
            lifecycle.get("stopSignal") or "",
            spec,
        )


@dataclass(frozen=True, slots=True)
class Pod:
    key: Key
    uid: str
    init: tuple[Container, ...]
    containers: tuple[Container, ...]
    restart_policy: str
    grace: int  # seconds
    active_deadline: float | None
    object: SharedObject
    sleep: SleepSettings = AWAKE

    @classmethod
    def read(cls, object: SharedObject) -> Pod:
        spec = object["spec"]
        grace = spec.get("terminationGracePeriodSeconds")
        return cls(
            Key.of(object),
            object["metadata"]["uid"],
            tuple(Container.read(each, init=True) for each in spec.get("initContainers") or ()),
            tuple(Container.read(each) for each in spec["containers"]),
            spec.get("restartPolicy") or ALWAYS,
            30 if grace is None else max(grace, 0),
            spec.get("activeDeadlineSeconds"),
            object,
            read_sleep_settings(object["metadata"].get("annotations")),
        )

    @property
    def reference(self) -> ObjectReference:
        """Reference for events. Objects in lists have no kind, so it is set here."""
        return ObjectReference(POD.api_version, POD.kind, self.key.name, self.key.namespace, self.uid)

    @property
    def is_warm(self) -> bool:
        """Whether a warm pool owns its sandbox, so no client waits for it."""
        return bool((self.object["metadata"].get("labels") or {}).get(WARM_POOL))

    @property
    def is_late_bound(self) -> bool:
        """Whether a claim hands its variables to each run of its first container."""
        return (self.object["metadata"].get("annotations") or {}).get(LATE_BOUND) == "true"

    @property
    def every(self) -> tuple[Container, ...]:
        """All containers, init containers first."""
        return self.init + self.containers

    def container(self, name: str) -> Container:
        return next(container for container in self.every if container.name == name)

    def restarts(self, container: Container, exit_code: int) -> bool:
        """Whether a container that ended with this exit code is restarted."""
        if container.sidecar:
            return True
        if container.init:
            return self.restart_policy != NEVER and exit_code != 0
        return self.restart_policy == ALWAYS or (self.restart_policy == ON_FAILURE and exit_code != 0)

    @property
    def deletion(self) -> tuple[datetime, int] | None:
        """The time until which the pod may exist, and its grace period in seconds; None if it is not being deleted."""
        metadata = self.object["metadata"]
        at = parse_time(metadata.get("deletionTimestamp"))
        return None if at is None else (at, metadata.get("deletionGracePeriodSeconds") or 0)
