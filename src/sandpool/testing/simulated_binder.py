"""Binder of simulated pods: each has a ``Binding`` as sandboxd has, and tests decide what happens on the way to it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from sandpool.engine.clock import Clock
from sandpool.kube.late_binding import BindingForbidden, BindingUnavailable, BindRequest, acknowledged, decode
from sandpool.sandboxd.binding import Binding
from sandpool.sandboxd.encoding import to_json

_FOREVER = 1e6  # seconds


class Fault(Enum):
    """The fate of a request."""

    NONE = auto()
    LOST_REQUEST = auto()
    LOST_ANSWER = auto()
    UNAVAILABLE = auto()
    FORBIDDEN = auto()
    SILENT = auto()  # delivered, and never answered
    STALLED = auto()  # neither delivered nor answered


class SimulatedBinder:
    """``fault`` decides about each request; ``round_trip`` is its duration in seconds. Pods are told apart by UID."""

    def __init__(self, clock: Clock, fault: Callable[[BindRequest], Fault] = lambda request: Fault.NONE) -> None:
        self.clock = clock
        self.fault = fault
        self.round_trip = 0.0
        self.requests: list[BindRequest] = []
        self.environments: dict[str, dict[str, str]] = {}  # of pods
        self.claims: dict[str, str] = {}  # UIDs of the claims that have bound, by pod
        self.deliveries: list[tuple[str, str]] = []  # pods and claims: each time that values have been taken
        self._bindings: dict[str, Binding] = {}

    def restart(self, pod: str) -> None:
        """Forget what a pod was given, as when its container restarts."""
        for known in (self._bindings, self.environments, self.claims):
            known.pop(pod, None)

    async def bind(self, request: BindRequest) -> None:
        self.requests.append(request)
        fault = self.fault(request)
        await self.clock.sleep(self.round_trip / 2)
        if fault is Fault.UNAVAILABLE:
            raise BindingUnavailable("connection refused")
        if fault is Fault.FORBIDDEN:
            raise BindingForbidden("the controller may not create pods/portforward")
        if fault is Fault.LOST_REQUEST:
            raise ConnectionResetError("the request is lost")
        if fault is Fault.STALLED:
            await self.clock.sleep(_FOREVER)
        answer = self._deliver(request)
        if fault is Fault.SILENT:
            await self.clock.sleep(_FOREVER)
        await self.clock.sleep(self.round_trip / 2)
        if fault is Fault.LOST_ANSWER:
            raise ConnectionResetError("the answer is lost")
        acknowledged(decode(answer), request.claim_uid)

    def _deliver(self, request: BindRequest) -> bytes:
        pod: str = request.pod["metadata"]["uid"]
        environment = self.environments.setdefault(pod, {})
        binding = self._bindings.setdefault(pod, Binding(environment))
        answer = binding.answer(to_json(request.message()).encode())
        if answer.get("first"):
            self.claims[pod] = request.claim_uid
            self.deliveries.append((pod, request.claim_uid))
        return to_json(answer).encode()
