"""What admission finds on its way through an object, and where.

Paths are not carried along on the way down, where nearly nothing is ever found; they are put together on the way up.
A check adds its finding with an empty path, and every container that sees its children add something puts its own key
in front (``within``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.api.schema.shape import MISSING

# The order in which kube-apiserver lists causes: the schema's, then those of list types. The first stage is never
# listed, because such an object is not read to the end.
UNDECODABLE: Final = -1
SCHEMA: Final = 0
LIST_TYPE: Final = 1


class Key(str):
    """A key of a map, as opposed to the name of a field: some messages show the two differently."""

    __slots__ = ()


class Undecodable(ValueError):
    """The object cannot even be read as its kind. kube-apiserver answers 400 with ``<Kind> in version "<version>"
    cannot be handled as a <Kind>: <this message>``."""


class TooDeep(Undecodable):
    """The object is nested more deeply than it can be walked."""

    def __init__(self) -> None:
        super().__init__("exceeded max depth")


@dataclass(slots=True)
class Admitted:
    """What admission made of an object. ``object`` is the very same one if there was nothing to do. ``unknown`` are
    the paths of fields that were dropped because the schema does not have them, in the order to report them."""

    object: Object
    unknown: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)


class _Finding:
    __slots__ = ("make", "path", "stage")

    def __init__(self, make: Callable[[str], Cause] | None, stage: int) -> None:
        self.make = make  # None: an unknown field
        self.stage = stage
        self.path: list[str | int] = []  # innermost first; numbers are indexes

    def location(self) -> str:
        text = ""
        for part in reversed(self.path):
            if type(part) is int or (type(part) is Key and self.stage == LIST_TYPE):
                text += f"[{part}]"
            else:
                text += f".{part}" if text else str(part)
        return text


class Findings(list[_Finding]):
    """The findings of one walk. Its length tells a container whether a child has added any."""

    __slots__ = ()

    def add(self, make: Callable[[str], Cause], stage: int = SCHEMA) -> None:
        """Something is wrong here; ``make`` gets the path once it is known."""
        self.append(_Finding(make, stage))

    def unknown(self, key: str) -> None:
        finding = _Finding(None, SCHEMA)
        finding.path.append(key)
        self.append(finding)

    def within(self, key: str | int, count: int) -> None:
        """Everything since there were ``count`` findings is about what is at ``key``."""
        for finding in self[count:]:
            finding.path.append(key)

    def ratchet(self, count: int, new: Any, old: Any) -> None:
        """A value that was there before and is unchanged may stay, even if the schema has become stricter since."""
        if old is not MISSING and new == old:
            self[count:] = [finding for finding in self[count:] if finding.stage == LIST_TYPE or not finding.make]

    def drop_list_type_causes(self) -> None:
        self[:] = [finding for finding in self if finding.stage != LIST_TYPE]

    def has(self, stage: int) -> bool:
        return any(finding.stage == stage for finding in self)

    def raise_undecodable(self) -> None:
        """Raise the first thing that makes the object unreadable, if there is any."""
        for finding in self:
            if finding.stage == UNDECODABLE and finding.make:
                raise Undecodable(str(finding.make(finding.location())))

    def unknown_fields(self) -> list[str]:
        return [finding.location() for finding in self if finding.make is None]

    def causes(self) -> list[Cause]:
        made = [(finding.stage, finding.make(finding.location())) for finding in self if finding.make]
        made.sort(key=lambda entry: entry[0])
        return list(dict.fromkeys(cause for _, cause in made))
