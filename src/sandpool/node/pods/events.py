"""Events that the node records about pods, with kubelet's reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandpool.api.events import NORMAL, PULLING, WARNING, EventSpec
from sandpool.node.pods.spec import ProbeKind

NODE_AGENT: Final = "sandpool-node"


def _normal(reason: str, action: str, note: str) -> EventSpec:
    return EventSpec(NODE_AGENT, NORMAL, reason, action, note)


def _warning(reason: str, action: str, note: str) -> EventSpec:
    return EventSpec(NODE_AGENT, WARNING, reason, action, note)


def rejected(reason: str, message: str) -> EventSpec:
    """``reason`` is that of the pod's status."""
    return _warning(reason, "Admitting", message)


def pulled(image: str) -> EventSpec:
    return _normal("Pulled", PULLING, f'Successfully pulled image "{image}"')


def started(container: str) -> EventSpec:
    return _normal("Started", "Starting", f"Started container {container}")


def pull_failed(reason: str, message: str) -> EventSpec:
    """The reason and note are those of ``failed``; the action tells clients that the image is the cause."""
    return replace(failed(reason, message), action=PULLING)


def failed(reason: str, message: str) -> EventSpec:
    return _warning("Failed", "Starting", f"Error: {reason}: {message}" if message else f"Error: {reason}")


def not_prepared(reason: str, message: str) -> EventSpec:
    """``reason`` is FailedMount or FailedCreatePodSandBox."""
    return _warning(reason, "Preparing", message)


def killing(container: str) -> EventSpec:
    return _normal("Killing", "Killing", f"Stopping container {container}")


def killing_unhealthy(container: str, kind: ProbeKind) -> EventSpec:
    return _normal("Killing", "Killing", f"Container {container} failed {kind.value} probe, will be restarted")


def unhealthy(kind: ProbeKind, message: str) -> EventSpec:
    return _warning("Unhealthy", "Probing", f"{kind.title} probe failed: {message}")


def back_off(container: str, pod: str) -> EventSpec:
    return _warning("BackOff", "Restarting", f"Back-off restarting failed container {container} in pod {pod}")


def hook_failed(reason: str, message: str) -> EventSpec:
    """``reason`` is FailedPostStartHook or FailedPreStopHook."""
    return _warning(reason, "Running hook", message)


def deadline_exceeded(message: str) -> EventSpec:
    return _normal("DeadlineExceeded", "Killing", message)


def sleep_not_understood(problem: str) -> EventSpec:
    return _warning("InvalidSleepAnnotation", "Sleeping", problem)
