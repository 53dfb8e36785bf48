"""Network faults: lost, refused and slow requests, and watches that lag or break.

Each simulation draws its own rates, from no faults to a failure of every third request. Some seeds find bugs under
pressure, others find bugs that need a single fault. The faults always end, because the simulation checks that the
system recovers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from sandpool.api.kinds import SANDBOX
from sandpool.kube.errors import (
    ApiError,
    Conflict,
    Expired,
    InternalError,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
)
from sandpool.kube.transport import Request
from sandpool.testing.simulation.profile import Profile

_FAST = 0.0005  # seconds; a request without faults


class RequestOutcome(Enum):
    """The result of a request for its sender."""

    ANSWERED = "executed and answered"
    REFUSED = "rejected by the API without effect"
    FORBIDDEN = "rejected by the quota"
    CUT = "not delivered; the sender gets an error"
    LOST = "executed; the sender gets an error"


@dataclass(slots=True)
class NetworkFaults:
    """The rates of faults, per request, and the lags, as means in seconds."""

    rng: Random
    lag: float = 0.0
    watch_lag: float = 0.0
    refusals: float = 0.0
    cuts: float = 0.0
    losses: float = 0.0
    stalls: float = 0.0  # per watch event: the event and all that follow are delayed
    breaks: float = 0.0  # per watch event: the watch ends
    late_delays: tuple[float, ...] = (0.0, 2.0)
    quota_until: float = 0.0  # creating a sandbox is forbidden until then
    is_disabled: bool = False  # no more faults

    @classmethod
    def draw(cls, rng: Random, profile: Profile) -> NetworkFaults:
        fault_rate = rng.choice(profile.fault_rate)
        return cls(
            rng,
            lag=rng.choice(profile.lag),
            watch_lag=rng.choice(profile.watch_lag),
            refusals=fault_rate * rng.random(),
            cuts=fault_rate * rng.random(),
            losses=fault_rate * rng.random() + rng.choice(profile.losses),
            stalls=rng.choice(profile.stalls),
            breaks=rng.choice(profile.breaks),
            late_delays=profile.late_delay,
        )

    def delay(self) -> float:
        """Draw the time in flight of a request or a response."""
        lag = 0.0 if self.is_disabled else self.lag
        return _FAST * self.rng.random() + (self.rng.expovariate(1 / lag) if lag else 0.0)

    def late_delay(self) -> float:
        """Draw the additional time in flight of a killed process's request."""
        mean = self.rng.choice(self.late_delays)
        return self.rng.expovariate(1 / mean) if mean else 0.0

    def outcome(self, request: Request, now: float) -> RequestOutcome:
        if self.is_disabled:
            return RequestOutcome.ANSWERED
        if now < self.quota_until and request.method == "POST" and request.path.endswith(f"/{SANDBOX.plural}"):
            return RequestOutcome.FORBIDDEN
        draw = self.rng.random()
        for rate, outcome in (
            (self.refusals, RequestOutcome.REFUSED),
            (self.cuts, RequestOutcome.CUT),
            (self.losses, RequestOutcome.LOST),
        ):
            if draw < rate:
                return outcome
            draw -= rate
        return RequestOutcome.ANSWERED

    def refusal(self, request: Request) -> Exception:
        """Draw the error of a refused request. Only a request that changes an existing object can conflict."""
        refusals: list[ApiError] = [
            InternalError("the simulated server failed"),
            ServiceUnavailable("the simulated server is starting", details={"retryAfterSeconds": 1}),
            TooManyRequests("the simulated server is busy", details=self.rng.choice(({}, {"retryAfterSeconds": 3}))),
        ]
        if request.method in ("PATCH", "DELETE"):
            refusals += [Conflict("the object has been modified"), Conflict("the object has been modified")]
        return self.rng.choice(refusals)

    def loss(self) -> Exception:
        """Draw the error that the sender of an executed request gets instead of the response."""
        losses = (
            ConnectionError("the response was lost"),
            TimeoutError("no response in time"),
            ServerTimeout("the simulated server took too long"),
            InternalError("the simulated server failed after it had written"),
        )
        return self.rng.choice(losses)

    def stall(self) -> float:
        """Draw the delay before the next event of a watch."""
        if self.is_disabled or not self.stalls or self.rng.random() >= self.stalls:
            return 0.0
        return self.rng.expovariate(1 / self.watch_lag) if self.watch_lag else 0.0

    def watch_end(self) -> Exception | bool | None:
        """Draw the end of a watch. True: it continues. None: the server ends it. Otherwise the error it fails with."""
        if self.is_disabled or not self.breaks or self.rng.random() >= self.breaks:
            return True
        endings = (None, ConnectionError("the watch was cut"), Expired("too old resource version"))
        return self.rng.choice(endings)
