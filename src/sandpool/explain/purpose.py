"""What a call was for and how a pass ended, in the words of whoever asked for a sandbox."""

from __future__ import annotations

from typing import Final

from sandpool.api.conditions import TRUE
from sandpool.api.kinds import EVENT, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.explain.calls import Call, Pass

_REFUSALS: Final = {
    403: "forbidden",
    404: "it does not exist",
    409: "conflict: somebody else wrote first, or it exists already",
    410: "the version asked for is too old",
    422: "refused as invalid",
    429: "told to slow down",
}


def purpose(call: Call, last: Call | None) -> str:
    """What ``call`` was for. ``last`` is what is known of the object from the writes before, if anything."""
    if not call.succeeded:
        return _refusal(call)
    verb, resource = call.asked.verb, call.asked.resource
    if verb == "get":
        return "looked at it"
    if resource == EVENT.plural:
        return f"told of {call.asked.name.rpartition('.')[0]} in an event"
    if verb in ("delete", "deletecollection"):
        return f"{_noun(resource)} deleted"
    if verb == "create":
        return _creation(call)
    if call.asked.subresource == "status":
        return _status(call, last)
    if call.asked.subresource:
        return f"{call.asked.subresource} of the {_noun(resource)}"
    return _change(call, last)


def outcome(entry: Pass) -> str:
    if entry.problem:
        return f"failed, and will be tried again: {entry.problem}"
    if entry.requeue_after is None:
        return "done until something changes"
    return f"done; looks again in {entry.requeue_after:.3g} s" if entry.requeue_after else "looks again at once"


def _refusal(call: Call) -> str:
    said = _REFUSALS.get(call.asked.code, f"failed with {call.asked.code}")
    return f"{said}: {call.problem}" if call.problem and call.asked.code != 404 else said


def _creation(call: Call) -> str:
    if call.asked.subresource == "binding":
        return "pod assigned to a node"
    if call.asked.subresource:
        return f"{call.asked.subresource} of the {_noun(call.asked.resource)}"
    if pool := call.owner_of_kind(SANDBOX_WARM_POOL.kind):
        return f"member of pool {pool} created"
    if claim := call.owner_of_kind(SANDBOX_CLAIM.kind):
        return f"made for claim {claim}"
    if sandbox := call.owner_of_kind(SANDBOX.kind):
        return f"{_noun(call.asked.resource)} of sandbox {sandbox} created"
    if call.asked.resource == SANDBOX_CLAIM.plural:
        return "claim arrived"
    return f"{_noun(call.asked.resource)} created"


def _status(call: Call, last: Call | None) -> str:
    if not call.ready:
        return "status"
    reason = f" ({call.ready_reason})" if call.ready_reason else ""
    if last is not None and (last.ready, last.ready_reason) == (call.ready, call.ready_reason):
        return f"status, Ready={call.ready} as before"
    return f"Ready={call.ready}" + ("" if call.ready == TRUE else reason)


def _change(call: Call, last: Call | None) -> str:
    claim = call.owner_of_kind(SANDBOX_CLAIM.kind)
    if call.asked.resource == SANDBOX.plural and claim and (last is None or last.owner != call.owner):
        # Of an owner that the log did not show to change one knows only that the sandbox is the claim's by now.
        return f"adopted for claim {claim}" if last is not None else f"belongs to claim {claim}"
    if call.asked.resource == SANDBOX_CLAIM.plural:
        return "notes on the claim"
    if call.asked.resource == POD.plural:
        return "labels and annotations of the pod"
    return f"{_noun(call.asked.resource)} changed"


def _noun(resource: str) -> str:
    nouns = {SANDBOX.plural: "sandbox", SANDBOX_CLAIM.plural: "claim", POD.plural: "pod"}
    return nouns.get(resource, resource)
