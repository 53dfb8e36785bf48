"""Apply conflicts: fields an applier would change although somebody else owns them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sandpool.api.causes import quoted
from sandpool.api.resource import Object
from sandpool.kube.errors import Conflict
from sandpool.server.apply import path_elements
from sandpool.server.apply.fieldset import FieldSet, Path
from sandpool.server.apply.managed_fields import UPDATE, identifier, owned_fields


class FieldConflict(NamedTuple):
    owner: Object  # an entry of managedFields
    path: Path


def find_conflicts(owners: Iterable[Object], written: FieldSet) -> list[FieldConflict]:
    """All fields of ``written`` that somebody owns, by owner."""
    return [
        FieldConflict(owner, path) for owner in sorted(owners, key=identifier) for path in owned_fields(owner) & written
    ]


def conflict(conflicts: list[FieldConflict]) -> Conflict:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {_owner(each)}", "field": _field(each)}
        for each in conflicts
    ]
    if len(conflicts) == 1:
        message = f"Apply failed with 1 conflict: conflict with {_owner(conflicts[0])}: {_field(conflicts[0])}"
    else:
        lines: list[str] = []
        named: Object | None = None
        for each in conflicts:
            if each.owner is not named:
                lines.append(f"conflicts with {_owner(each)}:")
                named = each.owner
            lines.append(f"- {_field(each)}")
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return Conflict(message, details={"causes": causes})


def _owner(each: FieldConflict) -> str:
    owner = each.owner
    name = quoted(owner.get("manager", ""))
    if owner.get("subresource"):
        name += f" with subresource {quoted(owner['subresource'])}"
    return f"{name} using {owner['apiVersion']}" if owner["operation"] == UPDATE else name


def _field(each: FieldConflict) -> str:
    return "".join(map(path_elements.text, each.path))
