"""Validation findings of one object, with their field paths.

The walk does not carry paths downwards, because findings are rare. A check adds a finding with an empty path, and each
container prepends its key to the findings of its children (``within``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.api.schema.shape import MISSING

# The order in which kube-apiserver lists causes: the schema's, then those of list types. UNDECODABLE is never
# listed, because decoding ends there.
UNDECODABLE: Final = -1
SCHEMA: Final = 0
LIST_TYPE: Final = 1


class Key(str):
    """A map key, which some messages format differently from a field name."""

    __slots__ = ()


class Undecodable(ValueError):
    """The object cannot be decoded as its kind. kube-apiserver answers 400 with ``<Kind> in version "<version>"
    cannot be handled as a <Kind>: <this message>``."""


class TooDeep(Undecodable):
    """The object exceeds the nesting limit."""

    def __init__(self) -> None:
        super().__init__("exceeded max depth")


@dataclass(slots=True)
class Admitted:
    """The result of admission. ``object`` is the argument itself if nothing changed. ``unknown`` are the paths of
    pruned fields that the schema does not define, in reporting order."""

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
    """The findings of one walk. A container compares the length to see whether a child added findings."""

    __slots__ = ()

    def add(self, make: Callable[[str], Cause], stage: int = SCHEMA) -> None:
        """Add a finding at the current value. ``make`` builds the cause once the path is known."""
        self.append(_Finding(make, stage))

    def unknown(self, key: str) -> None:
        finding = _Finding(None, SCHEMA)
        finding.path.append(key)
        self.append(finding)

    def within(self, key: str | int, count: int) -> None:
        """Prepend ``key`` to the path of all findings after the first ``count``."""
        for finding in self[count:]:
            finding.path.append(key)

    def ratchet(self, count: int, new: Any, old: Any) -> None:
        """Drop schema findings of an unchanged value: CRD validation ratcheting. An update is not rejected for values
        that were stored before the schema became stricter."""
        if old is not MISSING and new == old:
            self[count:] = [finding for finding in self[count:] if finding.stage == LIST_TYPE or not finding.make]

    def drop_list_type_causes(self) -> None:
        self[:] = [finding for finding in self if finding.stage != LIST_TYPE]

    def has(self, stage: int) -> bool:
        return any(finding.stage == stage for finding in self)

    def raise_undecodable(self) -> None:
        """Raise the first finding that makes the object undecodable, if any."""
        for finding in self:
            if finding.stage == UNDECODABLE and finding.make:
                raise Undecodable(str(finding.make(finding.location())))

    def unknown_fields(self) -> list[str]:
        return [finding.location() for finding in self if finding.make is None]

    def causes(self) -> list[Cause]:
        made = [(finding.stage, finding.make(finding.location())) for finding in self if finding.make]
        made.sort(key=lambda entry: entry[0])
        return list(dict.fromkeys(cause for _, cause in made))
