"""Rows: what the dashboard shows of an object, small and comparable, so that a thousand of them are cheap to send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.kinds import NODE, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.quantity import parse
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.api.views import parse_time
from sandpool.service.claims import Claim
from sandpool.service.pools import Pool
from sandpool.service.sandboxes import Sandbox
from sandpool.service.templates import Template, previous_revision

#: Characters of a message in a row; the page of the object has all of it.
_MESSAGE: Final = 300


class ClaimRow(NamedTuple):
    """``latency`` is the time in ms between two annotations of the controller: when it first saw the claim, and when it
    recorded that the claim is Ready. On the embedded API, which stores that record with the status in one commit, the
    commit is not part of it. ``unmeasured`` says why there is none."""

    uid: str
    pool: str
    sandbox: str
    ready: bool
    reason: str
    message: str
    created: str
    latency: float | None
    unmeasured: str
    expires: str
    deleting: bool


class SandboxRow(NamedTuple):
    claim: str
    pool: str
    pod: str
    node: str
    ready: bool
    reason: str
    message: str
    suspended: bool
    launch: str
    created: str
    template: str
    deleting: bool


class PoolRow(NamedTuple):
    template: str
    strategy: str
    desired: int
    members: int
    ready: int
    updated: int
    updatedReady: int
    rolledOut: bool
    problem: str
    progress: str
    failure: str
    created: str


class TemplateRow(NamedTuple):
    """``undo`` is the image that an undo returns to; empty if nothing was changed here."""

    image: str
    cpu: str
    memory: str
    runtime: str
    created: str
    undo: str


class NodeRow(NamedTuple):
    ready: bool
    cordoned: bool
    message: str
    cpu: float
    memory: float
    pods: int
    runtimes: str
    simulated: bool
    version: str
    created: str


def claim_row(object: SharedObject) -> ClaimRow:
    claim = Claim.from_object(dict(object))
    latency, unmeasured = _latency(claim.ready, object["metadata"].get("annotations") or {})
    return ClaimRow(
        claim.uid,
        claim.pool,
        claim.sandbox,
        claim.ready,
        claim.reason,
        claim.message[:_MESSAGE],
        claim.created,
        latency,
        unmeasured,
        ((object.get("spec") or {}).get("lifecycle") or {}).get("shutdownTime") or "",
        "deletionTimestamp" in object["metadata"],
    )


def sandbox_row(object: SharedObject) -> SandboxRow:
    sandbox = Sandbox.from_object(dict(object))
    annotations = object["metadata"].get("annotations") or {}
    return SandboxRow(
        sandbox.claim,
        sandbox.pool,
        sandbox.pod,
        sandbox.node,
        sandbox.ready,
        sandbox.reason,
        sandbox.message[:_MESSAGE],
        sandbox.suspended,
        sandbox.launch,
        sandbox.created,
        annotations.get(labels.TEMPLATE_REF, ""),
        "deletionTimestamp" in object["metadata"],
    )


def pool_row(object: SharedObject) -> PoolRow:
    pool = Pool.from_object(dict(object))
    return PoolRow(
        pool.template,
        pool.strategy,
        pool.desired,
        pool.members,
        pool.ready,
        pool.updated,
        pool.updated_ready,
        pool.rolled_out,
        pool.problem[:_MESSAGE],
        pool.progress,
        pool.failure[:_MESSAGE],
        pool.created,
    )


def template_row(object: SharedObject) -> TemplateRow:
    template = Template.from_object(dict(object))
    before = previous_revision(object)
    undo = "" if before is None else Template.from_object({**object, "spec": before}).image or "the former template"
    return TemplateRow(
        template.image, template.cpu, template.memory, template.runtime or "default", template.created, undo
    )


def node_row(object: SharedObject) -> NodeRow:
    metadata, status = object["metadata"], object.get("status") or {}
    own_labels = metadata.get("labels") or {}
    ready = api.find_condition(status.get("conditions") or [], api.READY) or {}
    amounts = status.get("allocatable") or status.get("capacity") or {}
    runtimes = [
        each.removeprefix(labels.RUNTIME_PREFIX) for each in own_labels if each.startswith(labels.RUNTIME_PREFIX)
    ]
    return NodeRow(
        ready.get("status") == api.TRUE,
        bool((object.get("spec") or {}).get("unschedulable")),
        ready.get("message", "")[:_MESSAGE],
        _amount(amounts.get("cpu")),
        _amount(amounts.get("memory")),
        int(_amount(amounts.get("pods"))),
        ", ".join(sorted(runtimes)),
        own_labels.get(labels.SIMULATED_NODE) == "true",
        (status.get("nodeInfo") or {}).get("kubeletVersion", ""),
        metadata.get("creationTimestamp", ""),
    )


Row = ClaimRow | SandboxRow | PoolRow | TemplateRow | NodeRow
#: What is watched, by the name under which it is sent.
KINDS: Final[Mapping[str, tuple[ResourceType, Any]]] = {
    "pools": (SANDBOX_WARM_POOL, pool_row),
    "templates": (SANDBOX_TEMPLATE, template_row),
    "claims": (SANDBOX_CLAIM, claim_row),
    "sandboxes": (SANDBOX, sandbox_row),
    "nodes": (NODE, node_row),
}


def _latency(ready: bool, annotations: Mapping[str, str]) -> tuple[float | None, str]:
    """The time from the first observation of a claim until it was Ready in ms, or the reason why it is unknown."""
    recorded = annotations.get(labels.CLAIM_FIRST_READY_AT, "")
    seen_at = parse_time(annotations.get(labels.CONTROLLER_FIRST_OBSERVED_AT))
    ready_at = parse_time(recorded)
    if not recorded:
        return None, "recorded some seconds after it is Ready" if ready else "it has not been Ready yet"
    if recorded == labels.FIRST_READY_UNKNOWN:
        return None, "it was Ready before this controller could measure it"
    if seen_at is None or ready_at is None:
        return None, "the controller does not record when it first saw claims"
    if ready_at < seen_at:
        return None, "the clocks of two controllers disagree"
    return round((ready_at - seen_at).total_seconds() * 1000, 1), ""


def _amount(text: str | None) -> float:
    try:
        return 0.0 if text is None else parse(text).billionths / 1e9
    except ValueError:
        return 0.0
