"""Explain the state of a claim: one sentence, the chain of events, and advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.conditions import TRUE, Condition
from sandpool.api.events import sandbox_adopted, sandbox_provisioned
from sandpool.api.kinds import CORE_EVENT, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.views import SandboxView, parse_time
from sandpool.controllers.claim.defaults import with_defaults
from sandpool.controllers.claim.expiry import deadline
from sandpool.explain.blockers import Blocker, blocker
from sandpool.explain.observed import Observed, is_queued

_ASSIGNED: Final = (sandbox_adopted("").reason, sandbox_provisioned("").reason)
# What stays unknown without read access to a kind, in the order of the report.
_COSTS: Final = {
    SANDBOX_WARM_POOL.plural: "the state of the pool",
    SANDBOX_TEMPLATE.plural: "whether the template exists",
    SANDBOX.plural: "the state of its sandbox",
    SANDBOX_CLAIM.plural: "how many claims are ahead of it",
    POD.plural: "the state of its containers",
    CORE_EVENT.plural: "events of nodes and schedulers",
}


@dataclass(frozen=True, slots=True)
class Link:
    at: datetime | None  # None: unknown, or not an event at one moment
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    sentence: str
    chain: tuple[Link, ...]
    advice: str = ""
    unknown: tuple[str, ...] = ()  # kinds that could not be read, and what is unknown therefore


def explain_claim(observed: Observed) -> Explanation:
    blocked = _in_one_line(blocker(observed))
    name = f'Claim "{observed.claim.name}"'
    sentence = f"{name} is ready: {_served(observed)}." if blocked is None else f"{name} is not ready: {blocked.cause}."
    missing = blocked is not None or SANDBOX.plural in observed.unseen
    unknown = tuple(f"{plural}: {cost}" for plural, cost in _COSTS.items() if missing and plural in observed.unseen)
    return Explanation(sentence, tuple(_chain(observed, blocked)), "" if blocked is None else blocked.advice, unknown)


def _in_one_line(blocked: Blocker | None) -> Blocker | None:
    """Fit a quoted message into a sentence: one line, without a final full stop."""
    return None if blocked is None else blocked._replace(cause=" ".join(blocked.cause.split()).rstrip(". "))


def _served(observed: Observed) -> str:
    claim, sandbox = observed.claim, observed.sandbox
    text = f'it has sandbox "{claim.sandbox_name}"'
    if sandbox is not None and (launch := _launch(observed, sandbox)):
        text += f", {launch}"
    if (lost := claim.condition(api.STATE_LOST)) is not None:
        text += f". It has lost its state at {lost['lastTransitionTime']}: {lost['message'].rstrip('.')}"
    if observed.frozen_since:
        text += f". It is frozen since {observed.frozen_since}, because it was not used; the next request thaws it"
    return text


def _launch(observed: Observed, sandbox: SandboxView) -> str:
    claim = observed.claim
    match sandbox.labels.get(labels.LAUNCH_TYPE):
        case labels.LAUNCH_WARM:
            bound = claim.condition(api.ENVIRONMENT_BOUND)
            is_bound = bound is not None and bound["status"] == TRUE
            return "warm from its pool" + (f"; {bound['message']}" if bound is not None and is_bound else "")
        case labels.LAUNCH_COLD:
            return f"created for it because {_cold_cause(observed)}"
    return ""


def _cold_cause(observed: Observed) -> str:
    """The cause of a cold start. A running pod can get variables only by late binding, and no volumes; it gets any
    additional metadata."""
    claim = observed.claim
    bound = claim.condition(api.ENVIRONMENT_BOUND)
    if bound is not None and bound["status"] != TRUE:
        return f"its variables could not be handed to a warm sandbox: {bound['message']}"
    if claim.volume_claim_templates:
        wanted = "env and volumeClaimTemplates" if claim.env else "volumeClaimTemplates"
        return f"it sets {wanted}, which a warm sandbox cannot get any more"
    if claim.env and not observed.binds_late:
        return f"it sets env, and its template does not opt in to late binding ({labels.LATE_BINDING})"
    pool = observed.pool
    if pool is None:
        return "none was ready"
    return f'none of pool "{pool.name}" was ready' if pool.replicas else f'pool "{pool.name}" has size 0'


def _chain(observed: Observed, blocked: Blocker | None) -> Iterator[Link]:
    claim, sandbox = observed.claim, observed.sandbox
    yield Link(claim.creation_timestamp, f'created, requesting a sandbox of pool "{claim.warm_pool}"')
    if (seen := _noted(observed, labels.CONTROLLER_FIRST_OBSERVED_AT)) is not None:
        yield Link(seen, "observed by the controller")
    if not claim.sandbox_name and sandbox is None:
        yield from _queue(observed)
    else:
        yield from _bound(observed)
    if sandbox is not None:
        yield from _sandbox(sandbox)
    if (ready := _noted(observed, labels.CLAIM_FIRST_READY_AT)) is not None:
        yield Link(ready, "ready for the first time")
    if blocked is not None:
        stopped = claim.condition(api.READY)
        yield Link(_since(stopped), f"blocked: {blocked.cause}")
    had_sandbox = sandbox is not None
    lifecycle = with_defaults(claim, observed.pool, None, had_sandbox=had_sandbox).lifecycle
    ends = deadline(lifecycle, claim.conditions)
    if ends is not None:
        yield Link(ends, "expired" if ends <= observed.now else "expires")


def _queue(observed: Observed) -> Iterator[Link]:
    if observed.ahead and is_queued(observed.claim):
        others = "1 other claim" if observed.ahead == 1 else f"{observed.ahead} other claims"
        yield Link(None, f"queued behind {others} of the same pool")
    pool = observed.pool
    if pool is not None:
        text = f'pool "{pool.name}" has {pool.status.ready_replicas} of {pool.replicas} sandboxes ready'
        yield Link(None, text)


def _bound(observed: Observed) -> Iterator[Link]:
    claim, sandbox = observed.claim, observed.sandbox
    name = sandbox.name if sandbox is not None else claim.sandbox_name
    launch = _launch(observed, sandbox) if sandbox is not None else ""
    yield Link(None, f'assigned sandbox "{name}"' + (f", {launch}" if launch else ""))
    if sandbox is not None and sandbox.owner is not None and sandbox.owner.uid == claim.uid:
        assigned = observed.claim_event(*_ASSIGNED)
        yield Link(None if assigned is None else assigned.at, "bound: the sandbox is owned by the claim")


def _sandbox(sandbox: SandboxView) -> Iterator[Link]:
    scheduled = sandbox.status.condition(api.POD_SCHEDULED)
    if scheduled is not None and scheduled["status"] == TRUE:
        node = f' "{sandbox.status.node_name}"' if sandbox.status.node_name else ""
        yield Link(_since(scheduled), f"its pod is on node{node}" if node else "its pod has a node")
    ready = sandbox.status.condition(api.READY)
    if ready is not None and ready["status"] == TRUE:
        yield Link(_since(ready), f"the sandbox is ready: {ready['message']}")
    if (lost := sandbox.status.condition(api.STATE_LOST)) is not None:
        yield Link(_since(lost), f"state lost ({lost['reason']}): {lost['message']}")


def _since(condition: Condition | None) -> datetime | None:
    return None if condition is None else parse_time(condition.get("lastTransitionTime"))


def _noted(observed: Observed, annotation: str) -> datetime | None:
    return parse_time(observed.claim.annotations.get(annotation))
