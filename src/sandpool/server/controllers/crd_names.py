"""Name conflicts of CustomResourceDefinitions: two definitions of a group must not use the same name."""

from __future__ import annotations

from collections.abc import Iterable

from sandpool.api.resource import Object
from sandpool.server.kinds.crds import has_condition, set_condition


def accept_names(definition: Object, others: Iterable[Object]) -> tuple[Object, tuple[str, str] | None]:
    """The accepted names of a definition, given the others of its group, and the conflict if not all are accepted.

    An accepted name stays accepted; a new one must not be in use. Resources and kinds are separate name spaces.
    """
    wanted, accepted = definition["spec"]["names"], (definition.get("status") or {}).get("acceptedNames") or {}
    resources, kinds = _names_in_use(others)
    new, conflict = dict(accepted), None
    for field, used, reason in (
        ("plural", resources, "PluralConflict"),
        ("singular", resources, "SingularConflict"),
        ("shortNames", resources, "ShortNamesConflict"),
        ("kind", kinds, "KindConflict"),
        ("listKind", kinds, "ListKindConflict"),
    ):
        names, known = wanted.get(field) or "", accepted.get(field) or ""
        listed, owned = ([names], [known]) if isinstance(names, str) else (names, known)
        taken = [name for name in listed if name not in owned and name in used]
        if taken:
            messages = [f'"{name}" is already in use' for name in taken]
            conflict = (reason, messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]")
        elif names:
            new[field] = names
        else:
            new.pop(field, None)
    if wanted.get("categories"):
        new["categories"] = wanted["categories"]
    else:
        new.pop("categories", None)
    return new, conflict


def _names_in_use(definitions: Iterable[Object]) -> tuple[set[str], set[str]]:
    resources: set[str] = set()
    kinds: set[str] = set()
    for definition in definitions:
        accepted = (definition.get("status") or {}).get("acceptedNames") or {}
        resources.update(
            (accepted.get("plural") or "", accepted.get("singular") or "", *accepted.get("shortNames", ()))
        )
        kinds.update((accepted.get("kind") or "", accepted.get("listKind") or ""))
    return resources - {""}, kinds - {""}


def status_of(definition: Object, others: Iterable[Object], now: str) -> Object:
    """The desired status of a definition; the same object if it is unchanged."""
    names, conflict = accept_names(definition, others)
    status: Object = definition.get("status") or {}
    if status.get("acceptedNames") != names:
        status = {**status, "acceptedNames": names}
    reason, message = conflict or ("NoConflicts", "no conflicts found")
    status = set_condition(status, "NamesAccepted", conflict is None, reason, message, now)
    if conflict is None:
        message = "the initial names have been accepted"
        status = set_condition(status, "Established", True, "InitialNamesAccepted", message, now)
    elif not has_condition(definition, "Established"):
        status = set_condition(status, "Established", False, "NotAccepted", "not all names are accepted", now)
    return status
