"""What the cluster remembers of the volume: which one it is, and how far it was written.

The record is an annotation of the leader lease. Only the process that leads writes the lease, and it does so every two
seconds anyway, so the record costs no request. After a clean stop it has the last revision, after a crash one from at
most that long before.

What is written between two renewals is covered where it matters: every pod, Service and PersistentVolumeClaim of a
sandbox gets an annotation when it is created, with the volume and the revision that the store had. An object with a
later revision than the volume has proves that the volume is older than the cluster. No clocks are compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, SERVICE
from sandpool.api.labels import VOLUME_RECORD, VOLUME_STAMP
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.transport import Request, Transport, WatchEvent

#: What a sandbox owns in the other API.
CHILDREN: Final = (POD, SERVICE, PERSISTENT_VOLUME_CLAIM)


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """The volume of a cluster, its newest known revision, and how many objects it had then."""

    id: str
    revision: int
    objects: int

    @classmethod
    def read(cls, lease: SharedObject) -> VolumeRecord | None:
        annotations = lease["metadata"].get("annotations") or {}
        found = annotations.get(VOLUME_RECORD)
        return cls(**orjson.loads(found)) if found else None

    def annotations(self) -> dict[str, str]:
        return {VOLUME_RECORD: orjson.dumps(asdict(self)).decode()}


@dataclass(frozen=True, slots=True)
class Stamp:
    """The volume and its revision when an object was created."""

    volume: str
    revision: int

    @classmethod
    def read(cls, object: SharedObject) -> Stamp | None:
        """The stamp of an object; None if it was not created by this version, or is not ours."""
        volume, _, revision = (object["metadata"].get("annotations") or {}).get(VOLUME_STAMP, "").rpartition(".")
        return cls(volume, int(revision)) if volume and revision.isdecimal() else None

    def __str__(self) -> str:
        return f"{self.volume}.{self.revision}"


class StampedTransport:
    """Adds the stamp to every object of ``CHILDREN`` that is created."""

    def __init__(self, transport: Transport, stamp: Callable[[], Stamp]) -> None:
        self.transport = transport
        self.stamp = stamp

    async def request(self, request: Request) -> Any:
        target = request.target
        if request.method == "POST" and target is not None and target.type in CHILDREN and not target.subresource:
            request.body = _stamped(request.body, str(self.stamp()))
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self.transport.stream(request)

    async def close(self) -> None:
        await self.transport.close()


def _stamped(object: SharedObject, stamp: str) -> Object:
    metadata = object["metadata"]
    annotations = {**(metadata.get("annotations") or {}), VOLUME_STAMP: stamp}
    return {**object, "metadata": {**metadata, "annotations": annotations}}
