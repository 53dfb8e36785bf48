"""Crashes of the controllers' process: at which write, and before, during or after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.kube.transport import Request


class CrashPoint(Enum):
    """The moment of the kill, relative to the write."""

    BEFORE = "before the write is sent"
    SENT = "while the write is in flight"
    AFTER = "after the write is committed, before its response arrives"


class WriteKind(Enum):
    """The writes that count towards the kill."""

    ANY = "any"
    ADOPTION = "adoptions: a claim becomes the owner of a sandbox"
    CREATION = "creations of sandboxes"
    STATUS = "status updates"

    def includes(self, request: Request) -> bool:
        if self is WriteKind.CREATION:
            return request.method == "POST" and request.path.endswith(f"/{SANDBOX.plural}")
        if self is WriteKind.STATUS:
            return request.path.endswith("/status")
        if self is WriteKind.ADOPTION:
            owners = (request.body or {}).get("metadata", {}).get("ownerReferences") or [{}]
            return bool(owners[0].get("kind") == SANDBOX_CLAIM.kind)
        return True


#: The highest drawn write number, by kind.
_LATEST: Final = {WriteKind.ANY: 40, WriteKind.ADOPTION: 3, WriteKind.CREATION: 3, WriteKind.STATUS: 20}


@dataclass(frozen=True, slots=True)
class Crash:
    write: int  # number of the write, starting at 1
    point: CrashPoint
    kind: WriteKind = WriteKind.ANY  # only these writes count

    @classmethod
    def draw(cls, rng: Random, kinds: Sequence[WriteKind]) -> Crash:
        kind = rng.choice(kinds)
        point = rng.choice((CrashPoint.BEFORE, CrashPoint.SENT, CrashPoint.SENT, CrashPoint.AFTER))
        return cls(rng.randint(1, _LATEST[kind]), point, kind)
