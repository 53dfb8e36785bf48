"""When a status is worth a write.

A pod on its way shows a new state every few milliseconds, and nobody can act on any of them but the last. So what is on
its way is reported late, what somebody waits for at once: a pod becomes ready or stops being so, ends, fails, or gets
into trouble. A start that takes less than two seconds costs one write, any other two if nothing goes wrong.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import Object
from sandpool.api.views.pod import FAILED, SUCCEEDED
from sandpool.node.pods.pod_status import is_ready
from sandpool.node.pods.state import CREATING, INITIALIZING

# How long a state that nobody waits for stays unreported, the first time and then.
FIRST_DELAY: Final = 2.0
LATER_DELAY: Final = 5.0

# Lists that a strategic merge patch would add to.
_MERGED: Final = frozenset({"hostIPs", "podIPs"})
# What a report consists of besides conditions; None in a patch would remove it, so what is missing is left alone.
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
    """What a strategic merge patch of the status must contain; empty if the API has it all."""
    patch: Object = {key: wanted[key] for key in _WHOLE if key in wanted and not _same(before.get(key), wanted[key])}
    known = {condition["type"]: condition for condition in before.get("conditions") or ()}
    for key in _MERGED & patch.keys():
        patch[key] = [*patch[key], {"$patch": "replace"}]
    moved = [each for each in wanted["conditions"] if not _says_same(known.get(each["type"]), each)]
    if moved:
        patch["conditions"] = [_replacing(known.get(each["type"]) or {}, each) for each in moved]
    return patch


def _replacing(before: Object, condition: Object) -> Object:
    """The condition with what it no longer says taken away: a patch would leave it."""
    return {**{word: None for word in ("reason", "message") if before.get(word)}, **condition}


def is_urgent(before: Object, wanted: Object) -> bool:
    """Whether somebody may be waiting for it."""
    if is_ready(before) != is_ready(wanted):
        return True
    if wanted["phase"] != before.get("phase") and wanted["phase"] in (SUCCEEDED, FAILED):
        return True
    return bool(_troubles(wanted) - _troubles(before))


def _troubles(status: Object) -> set[tuple[str, str]]:
    """Containers that wait for more than their turn."""
    found = set()
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting and (waiting.get("message") or waiting.get("reason") not in (CREATING, INITIALIZING)):
                found.add((container["name"], waiting.get("reason") or ""))
    return found


def _says_same(before: Object | None, condition: Object) -> bool:
    """Others may have added to a condition what we never write."""
    fields = ("status", "reason", "message", "lastTransitionTime")
    return before is not None and all((before.get(field) or "") == (condition.get(field) or "") for field in fields)


def _same(before: object, wanted: object) -> bool:
    """Equal but for what the API leaves out when it is empty."""
    if isinstance(before, dict) and isinstance(wanted, dict):
        return all(_same(before.get(key), wanted.get(key)) for key in before.keys() | wanted.keys())
    if isinstance(before, list) and isinstance(wanted, list):
        return len(before) == len(wanted) and all(map(_same, before, wanted))
    return before == wanted or (not before and not wanted and before is not False and wanted is not False)
