"""Decides when a status is worth a write.

A starting pod changes its state every few milliseconds, and clients can act only on the last of these states. So
intermediate states are reported late, and states that clients wait for at once: the pod becomes ready or stops being
so, ends, fails, or a container runs into an error. A start that takes less than two seconds costs one write; a longer
one costs two if nothing goes wrong. A pod that is frozen because it was not used is reported late, too: a client that
comes back soon costs no write, and none waits for one.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import Object
from sandpool.api.views.pod import FAILED, SUCCEEDED
from sandpool.node.pods.pod_status import is_ready
from sandpool.node.pods.state import CREATING, INITIALIZING

# Seconds for which a state that is not urgent stays unreported: before the first write, and after it.
FIRST_DELAY: Final = 2.0
LATER_DELAY: Final = 5.0

# Lists that a strategic merge patch would append to.
_MERGED: Final = frozenset({"hostIPs", "podIPs"})
# Status fields besides conditions. A null in a patch would remove a field, so absent fields are left out.
_WHOLE: Final = (
    "phase",
    "reason",
    "message",
    "startTime",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "initContainerStatuses",
    "containerStatuses",
)


def changes(before: Object, wanted: Object) -> Object:
    """Return the strategic merge patch of the status; empty if the API is up to date."""
    patch: Object = {key: wanted[key] for key in _WHOLE if key in wanted and not _same(before.get(key), wanted[key])}
    known = {condition["type"]: condition for condition in before.get("conditions") or ()}
    for key in _MERGED & patch.keys():
        patch[key] = [*patch[key], {"$patch": "replace"}]
    moved = [each for each in wanted["conditions"] if not _is_same_condition(known.get(each["type"]), each)]
    if moved:
        patch["conditions"] = [_replacing(known.get(each["type"]) or {}, each) for each in moved]
    return patch


def _replacing(before: Object, condition: Object) -> Object:
    """Return the condition with explicit nulls for fields that it no longer has; a patch would keep them."""
    return {**{word: None for word in ("reason", "message") if before.get(word)}, **condition}


def is_urgent(before: Object, wanted: Object) -> bool:
    """Whether a client may be waiting for this status."""
    if is_ready(before) != is_ready(wanted):
        return True
    if wanted["phase"] != before.get("phase") and wanted["phase"] in (SUCCEEDED, FAILED):
        return True
    return bool(_troubles(wanted) - _troubles(before))


def _troubles(status: Object) -> set[tuple[str, str]]:
    """Return containers that wait because of an error, with the reason."""
    found = set()
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting and (waiting.get("message") or waiting.get("reason") not in (CREATING, INITIALIZING)):
                found.add((container["name"], waiting.get("reason") or ""))
    return found


def _is_same_condition(before: Object | None, condition: Object) -> bool:
    """Compare two conditions by the fields that this node writes. Others may have added more."""
    fields = ("status", "reason", "message", "lastTransitionTime")
    return before is not None and all((before.get(field) or "") == (condition.get(field) or "") for field in fields)


def _same(before: object, wanted: object) -> bool:
    """Compare two values, treating absent and empty as equal, because the API omits empty values."""
    if isinstance(before, dict) and isinstance(wanted, dict):
        return all(_same(before.get(key), wanted.get(key)) for key in before.keys() | wanted.keys())
    if isinstance(before, list) and isinstance(wanted, list):
        return len(before) == len(wanted) and all(map(_same, before, wanted))
    return before == wanted or (not before and not wanted and before is not False and wanted is not False)
