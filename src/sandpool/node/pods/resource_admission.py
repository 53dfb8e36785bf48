"""Counts the resources that pods on this node request and rejects a pod that does not fit, with kubelet's messages.

A scheduler counts the same way, so only pods that bypass it by setting ``spec.nodeName`` can find too little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sandpool.api.quantity import parse
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.api.views.pod import FAILED, SUCCEEDED
from sandpool.node.pods.state import FailureReason
from sandpool.node.scheduling.requirements import PODS, Amounts, requests_of

_PREFIX: Final = "OutOf"
_UNIT: Final = 10**9
# Resources in the order in which they are checked, with the unit of the message in billionths.
_REPORTED_UNITS: Final = {PODS: _UNIT, "cpu": 10**6, "memory": _UNIT, "ephemeral-storage": _UNIT}


class ResourceAdmission:
    """``allocatable`` is what all pods together may request; ``directory`` returns the directory of a pod."""

    def __init__(self, allocatable: Mapping[str, str], directory: Callable[[str], Path]) -> None:
        self.directory = directory
        self._all = {name: parse(amount).billionths for name, amount in allocatable.items()}
        self._taken: dict[str, Amounts] = {}  # by UID of the pod
        self._used: dict[str, int] = {}  # the sum of these

    def pod_changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Follow the pods bound to this node. A pod that an earlier agent admitted keeps its resources."""
        if old is not None and (new is None or _has_ended(new)):
            self._add(self._taken.pop(old["metadata"]["uid"], ()), -1)
        elif new is not None and old is None and not _has_ended(new) and not self._is_new(new):
            self._take(new["metadata"]["uid"], requests_of(new["spec"]))

    def admit(self, pod: SharedObject) -> FailureReason | None:
        """Reserve the resources of a pod, or return why they do not suffice. An admitted pod stays admitted."""
        uid, amounts = pod["metadata"]["uid"], requests_of(pod["spec"])
        if uid in self._taken or not self._is_new(pod):
            return None
        found = self._shortage(dict(amounts))
        if found is None:
            self._take(uid, amounts)
        return found

    def _is_new(self, pod: SharedObject) -> bool:
        """Whether no agent has admitted the pod before."""
        return not (pod.get("status") or {}).get("startTime") and not self.directory(pod["metadata"]["uid"]).exists()

    def _shortage(self, sent: Mapping[str, int]) -> FailureReason | None:
        for name, unit in _REPORTED_UNITS.items():
            requested, used, capacity = sent.get(name, 0), self._used.get(name, 0), self._all.get(name, 0)
            if requested and used + requested > capacity:
                amount = f"requested: {-(-requested // unit)}, used: {-(-used // unit)}, capacity: {capacity // unit}"
                why = f"Pod was rejected: Node didn't have enough resource: {name}, {amount}"
                return FailureReason(f"{_PREFIX}{name}", why)
        return None

    def _take(self, uid: str, amounts: Amounts) -> None:
        self._taken[uid] = amounts
        self._add(amounts, +1)

    def _add(self, amounts: Amounts, sign: int) -> None:
        for name, amount in amounts:
            self._used[name] = self._used.get(name, 0) + sign * amount


def _has_ended(pod: SharedObject) -> bool:
    return (pod.get("status") or {}).get("phase") in (SUCCEEDED, FAILED)


def is_shortage(reason: str) -> bool:
    return reason.startswith(_PREFIX) and reason.removeprefix(_PREFIX) in _REPORTED_UNITS
