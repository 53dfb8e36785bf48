"""Apply conflicts: fields an applier would change although somebody else owns them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sandpool.api.causes import quoted
from sandpool.api.resource import Object
from sandpool.kube.errors import Conflict
from sandpool.server.apply import path_elements
from sandpool.server.apply.fieldset import FieldSet, Path
from sandpool.server.apply.managed_fields import UPDATE, identifier, owned


class Clash(NamedTuple):
    owner: Object  # an entry of managedFields
    path: Path


def find_clashes(owners: Iterable[Object], written: FieldSet) -> list[Clash]:
    """All fields of ``written`` that somebody owns, by owner."""
    return [Clash(owner, path) for owner in sorted(owners, key=identifier) for path in owned(owner) & written]


def conflict(clashes: list[Clash]) -> Conflict:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {_owner(clash)}", "field": _field(clash)}
        for clash in clashes
    ]
    if len(clashes) == 1:
        message = f"Apply failed with 1 conflict: conflict with {_owner(clashes[0])}: {_field(clashes[0])}"
    else:
        lines: list[str] = []
        named: Object | None = None
        for clash in clashes:
            if clash.owner is not named:
                lines.append(f"conflicts with {_owner(clash)}:")
                named = clash.owner
            lines.append(f"- {_field(clash)}")
        message = f"Apply failed with {len(clashes)} conflicts: " + "\n".join(lines)
    return Conflict(message, details={"causes": causes})


def _owner(clash: Clash) -> str:
    owner = clash.owner
    name = quoted(owner.get("manager", ""))
    if owner.get("subresource"):
        name += f" with subresource {quoted(owner['subresource'])}"
    return f"{name} using {owner['apiVersion']}" if owner["operation"] == UPDATE else name


def _field(clash: Clash) -> str:
    return "".join(map(path_elements.text, clash.path))
