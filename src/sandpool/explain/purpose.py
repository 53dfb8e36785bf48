"""Describe the purpose of a call and the result of a reconcile, from a claim user's point of view."""

from __future__ import annotations

from typing import Final

from sandpool.api.conditions import TRUE
from sandpool.api.kinds import EVENT, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.explain.calls import Call, Reconcile

_REFUSALS: Final = {
    403: "forbidden",
    404: "it does not exist",
    409: "conflict: another write came first, or it exists already",
    410: "the requested version is too old",
    422: "rejected as invalid",
    429: "rate limited",
}


def purpose(call: Call, last: Call | None) -> str:
    """The purpose of ``call``. ``last`` is the object's state after earlier writes, if known."""
    if not call.succeeded:
        return _refusal(call)
    verb, resource = call.request.verb, call.request.resource
    if verb == "get":
        return "read"
    if resource == EVENT.plural:
        return f"event about {call.request.name.rpartition('.')[0]}"
    if verb in ("delete", "deletecollection"):
        return f"{_noun(resource)} deleted"
    if verb == "create":
        return _creation(call)
    if call.creates:
        return f"{_creation(call)} (applied)"
    if call.request.subresource == "status":
        return _status(call, last)
    if call.request.subresource:
        return f"{call.request.subresource} of the {_noun(resource)}"
    return _change(call, last)


def outcome(entry: Reconcile) -> str:
    if entry.problem:
        return f"failed, will be retried: {entry.problem}"
    if entry.requeue_after is None:
        return "done until the next change"
    return f"done; again in {entry.requeue_after:.3g} s" if entry.requeue_after else "again at once"


def _refusal(call: Call) -> str:
    outcome = _REFUSALS.get(call.request.code, f"failed with {call.request.code}")
    return f"{outcome}: {call.problem}" if call.problem and call.request.code != 404 else outcome


def _creation(call: Call) -> str:
    if call.request.subresource == "binding":
        return "pod assigned to a node"
    if call.request.subresource:
        return f"{call.request.subresource} of the {_noun(call.request.resource)}"
    if pool := call.owner_of_kind(SANDBOX_WARM_POOL.kind):
        return f"member of pool {pool} created"
    if claim := call.owner_of_kind(SANDBOX_CLAIM.kind):
        return f"created for claim {claim}"
    if sandbox := call.owner_of_kind(SANDBOX.kind):
        return f"{_noun(call.request.resource)} of sandbox {sandbox} created"
    if call.request.resource == SANDBOX_CLAIM.plural:
        return "claim created"
    return f"{_noun(call.request.resource)} created"


def _status(call: Call, last: Call | None) -> str:
    if not call.ready:
        return "status"
    reason = f" ({call.ready_reason})" if call.ready_reason else ""
    if last is not None and (last.ready, last.ready_reason) == (call.ready, call.ready_reason):
        return f"status, Ready={call.ready} as before"
    return f"Ready={call.ready}" + ("" if call.ready == TRUE else reason)


def _change(call: Call, last: Call | None) -> str:
    claim = call.owner_of_kind(SANDBOX_CLAIM.kind)
    if call.request.resource == SANDBOX.plural and claim and (last is None or last.owner != call.owner):
        # Without an earlier write in the log, only the present owner is known.
        return f"adopted for claim {claim}" if last is not None else f"belongs to claim {claim}"
    if call.request.resource == SANDBOX_CLAIM.plural:
        return "annotations of the claim"
    if call.request.resource == POD.plural:
        return "labels and annotations of the pod"
    return f"{_noun(call.request.resource)} changed"


def _noun(resource: str) -> str:
    nouns = {SANDBOX.plural: "sandbox", SANDBOX_CLAIM.plural: "claim", POD.plural: "pod"}
    return nouns.get(resource, resource)
