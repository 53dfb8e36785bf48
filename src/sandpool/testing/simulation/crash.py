"""When the controllers' process is killed: at which of its writes, and at which moment of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.kube.transport import Request


class Moment(Enum):
    """When a process dies, of the write it dies at."""

    BEFORE = "before it is sent"
    SENT = "while it is under way"
    AFTER = "when it is carried out, and before the answer is heard"


class Kind(Enum):
    """Of which writes a process dies."""

    ANY = "any"
    GIFT = "one that gives a sandbox to a claim"
    CREATION = "one that makes a sandbox"
    WORD = "one that says how something is"

    def includes(self, request: Request) -> bool:
        if self is Kind.CREATION:
            return request.method == "POST" and request.path.endswith(f"/{SANDBOX.plural}")
        if self is Kind.WORD:
            return request.path.endswith("/status")
        if self is Kind.GIFT:
            owners = (request.body or {}).get("metadata", {}).get("ownerReferences") or [{}]
            return bool(owners[0].get("kind") == SANDBOX_CLAIM.kind)
        return True


#: The last write of a kind that a process may die of.
_LATEST: Final = {Kind.ANY: 40, Kind.GIFT: 3, Kind.CREATION: 3, Kind.WORD: 20}


@dataclass(frozen=True, slots=True)
class Death:
    write: int  # the number of the write, the first being 1
    moment: Moment
    of: Kind = Kind.ANY  # only these writes count

    @classmethod
    def drawn(cls, random: Random, kinds: Sequence[Kind]) -> Death:
        kind = random.choice(kinds)
        moment = random.choice((Moment.BEFORE, Moment.SENT, Moment.SENT, Moment.AFTER))
        return cls(random.randint(1, _LATEST[kind]), moment, kind)
