"""How bad the network is: what becomes of a request, how long it takes, and how far watches lag behind.

Each simulation has weather of its own, from calm to a storm in which every third request goes wrong, so that some seeds
find what breaks under pressure and others what breaks when only one thing happens. Every storm ends, because what is to
be shown is that everything is right again afterwards.
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
from sandpool.testing.simulation.profile import Theme

_FAST = 0.0005  # seconds; a request on a good day


class Fate(Enum):
    """What becomes of a request."""

    ANSWERED = "it is carried out and answered"
    REFUSED = "the API refuses it and does nothing"
    FORBIDDEN = "the API says that it must not be"
    CUT = "it does not arrive, and the sender finds out"
    LOST = "it is carried out, and the sender is not told so"


@dataclass(slots=True)
class Weather:
    """Rates are per request, lags are means in seconds."""

    random: Random
    lag: float = 0.0
    watch_lag: float = 0.0
    refusals: float = 0.0
    cuts: float = 0.0
    losses: float = 0.0
    stalls: float = 0.0  # per event of a watch: it and all that follow are held up
    breaks: float = 0.0  # per event of a watch: it ends
    limbos: tuple[float, ...] = (0.0, 2.0)
    quota_until: float = 0.0  # no sandbox may be created before that
    is_over: bool = False  # the storm has passed: nothing goes wrong any more

    @classmethod
    def drawn(cls, random: Random, theme: Theme) -> Weather:
        severity = random.choice(theme.severity)
        return cls(
            random,
            lag=random.choice(theme.lag),
            watch_lag=random.choice(theme.watch_lag),
            refusals=severity * random.random(),
            cuts=severity * random.random(),
            losses=severity * random.random() + random.choice(theme.losses),
            stalls=random.choice(theme.stalls),
            breaks=random.choice(theme.breaks),
            limbos=theme.limbo,
        )

    def delay(self) -> float:
        """How long a request, or its answer, is under way."""
        lag = 0.0 if self.is_over else self.lag
        return _FAST * self.random.random() + (self.random.expovariate(1 / lag) if lag else 0.0)

    def limbo(self) -> float:
        """How much longer what a dead process has sent may be under way."""
        mean = self.random.choice(self.limbos)
        return self.random.expovariate(1 / mean) if mean else 0.0

    def fate(self, request: Request, now: float) -> Fate:
        if self.is_over:
            return Fate.ANSWERED
        if now < self.quota_until and request.method == "POST" and request.path.endswith(f"/{SANDBOX.plural}"):
            return Fate.FORBIDDEN
        draw = self.random.random()
        for rate, fate in ((self.refusals, Fate.REFUSED), (self.cuts, Fate.CUT), (self.losses, Fate.LOST)):
            if draw < rate:
                return fate
            draw -= rate
        return Fate.ANSWERED

    def refusal(self, request: Request) -> Exception:
        """Why the API refuses. A conflict is only for what changes something that is there."""
        refusals: list[ApiError] = [
            InternalError("the simulated server has a bad day"),
            ServiceUnavailable("the simulated server is starting", details={"retryAfterSeconds": 1}),
            TooManyRequests("the simulated server is busy", details=self.random.choice(({}, {"retryAfterSeconds": 3}))),
        ]
        if request.method in ("PATCH", "DELETE"):
            refusals += [Conflict("the object has been modified"), Conflict("the object has been modified")]
        return self.random.choice(refusals)

    def loss(self) -> Exception:
        """What the sender hears who is not told that the request was carried out."""
        losses = (
            ConnectionError("the answer was lost"),
            TimeoutError("no answer in time"),
            ServerTimeout("the simulated server took too long"),
            InternalError("the simulated server failed after it had written"),
        )
        return self.random.choice(losses)

    def stall(self) -> float:
        """How long a watch is held up before its next event."""
        if self.is_over or not self.stalls or self.random.random() >= self.stalls:
            return 0.0
        return self.random.expovariate(1 / self.watch_lag) if self.watch_lag else 0.0

    def watch_end(self) -> Exception | bool | None:
        """True: the watch goes on. None: the server ends it. Else how it fails."""
        if self.is_over or not self.breaks or self.random.random() >= self.breaks:
            return True
        endings = (None, ConnectionError("the watch was cut"), Expired("too old resource version"))
        return self.random.choice(endings)
