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
    """``latency`` is the time in ms from the first observation of the claim by the controller to its readiness."""

    uid: str
    pool: str
    sandbox: str
    ready: bool
    reason: str
    message: str
    created: str
    latency: float | None
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
    return ClaimRow(
        claim.uid,
        claim.pool,
        claim.sandbox,
        claim.ready,
        claim.reason,
        claim.message[:_MESSAGE],
        claim.created,
        _latency(object["metadata"].get("annotations") or {}),
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


def _latency(annotations: Mapping[str, str]) -> float | None:
    seen = parse_time(annotations.get(labels.CONTROLLER_FIRST_OBSERVED_AT))
    ready = parse_time(annotations.get(labels.CLAIM_FIRST_READY_AT))
    if seen is None or ready is None:
        return None
    return round((ready - seen).total_seconds() * 1000, 1)


def _amount(text: str | None) -> float:
    try:
        return 0.0 if text is None else parse(text).billionths / 1e9
    except ValueError:
        return 0.0
