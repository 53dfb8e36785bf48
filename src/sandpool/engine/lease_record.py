"""What a Lease says: who leads, for how long, since when, and how often that has changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sandpool.api.resource import Object
from sandpool.engine.clock import micro_timestamp


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The spec of a coordination.k8s.io Lease, as every Kubernetes leader election writes it.

    The times are for people to read. They come from the holder's clock, so nothing is ever computed from them.
    """

    holder: str = ""  # empty: released
    duration: int = 1  # seconds after which others may take it, counted from when they saw it change
    transitions: int = -1  # so that the first holder makes it 0
    acquired: str = ""
    renewed: str = ""

    @classmethod
    def read(cls, lease: Object) -> LeaseRecord:
        spec = lease.get("spec") or {}
        return cls(
            spec.get("holderIdentity") or "",
            spec.get("leaseDurationSeconds") or 0,
            spec.get("leaseTransitions", 0 if lease else -1),
            spec.get("acquireTime") or "",
            spec.get("renewTime") or "",
        )

    def taken_by(self, identity: str, duration: int, now: datetime) -> LeaseRecord:
        """In new hands; or still in the same ones, which is no transition."""
        time = micro_timestamp(now)
        if self.holder == identity:
            return replace(self, duration=duration, renewed=time)
        return LeaseRecord(identity, duration, self.transitions + 1, time, time)

    def released(self, now: datetime) -> LeaseRecord:
        """Free at once; the short duration is for those who count seconds whoever the holder is."""
        time = micro_timestamp(now)
        return LeaseRecord("", 1, self.transitions, time, time)

    def spec(self) -> Object:
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration,
            "leaseTransitions": self.transitions,
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
        }
