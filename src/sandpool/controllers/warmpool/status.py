"""The status of a pool: counts of members and the conditions Progressing, Available and ReplicaFailure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Final, NamedTuple

from sandpool.api import conditions
from sandpool.api.conditions import FALSE, TRUE, remove_condition, set_condition
from sandpool.api.events import go_duration
from sandpool.api.labels import WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.times import timestamp
from sandpool.api.views import WarmPoolStatus, WarmPoolView
from sandpool.controllers.warmpool.scaling import CreationBreaker

_WIRE_NAMES: Final = {
    "replicas": "replicas",
    "ready_replicas": "readyReplicas",
    "updated_replicas": "updatedReplicas",
    "updated_ready_replicas": "updatedReadyReplicas",
    "selector": "selector",
    "observed_generation": "observedGeneration",
    "conditions": "conditions",
}
assert _WIRE_NAMES.keys() == {field.name for field in fields(WarmPoolStatus)}


@dataclass(frozen=True, slots=True)
class MemberCounts:
    """Counts of members."""

    members: int = 0
    ready: int = 0
    current: int = 0  # of the current template
    current_ready: int = 0
    unschedulable: int = 0

    @property
    def outdated(self) -> int:
        return self.members - self.current


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """A pool is kept smaller than it asks for: ``limit`` warm sandboxes in all pools of the namespace leave it
    ``kept`` of the ``wanted`` ones."""

    namespace: str
    limit: int
    kept: int
    wanted: int

    @property
    def message(self) -> str:
        return conditions.size_limit_message(self.namespace, self.limit, self.kept, self.wanted)


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """Further inputs of the conditions."""

    replaces: bool  # outdated members are replaced, instead of handed out until they are gone
    has_template: bool
    breaker: CreationBreaker
    has_stalled: bool
    grace: float  # seconds a member has to become ready
    needed: int  # ready members below which the pool is not available
    problem: str = ""  # why a member is not ready; empty if it is just starting
    limit: SizeLimit | None = None


class _ConditionValue(NamedTuple):
    status: str
    reason: str
    message: str


def next_status(pool: WarmPoolView, counts: MemberCounts, inputs: StatusInputs, now: datetime) -> WarmPoolStatus:
    """The status that follows from the counts."""
    status = WarmPoolStatus(
        replicas=counts.members,
        ready_replicas=counts.ready,
        updated_replicas=counts.current,
        updated_ready_replicas=counts.current_ready,
        selector=f"{WARM_POOL}={name_hash(pool.name)}",
        observed_generation=pool.generation,
        conditions=pool.status.conditions,
    )
    for type, value in (
        (conditions.PROGRESSING, _progressing(pool, counts, inputs)),
        (conditions.AVAILABLE, _available(pool, counts, inputs.needed)),
        (conditions.REPLICA_FAILURE, _replica_failure(inputs)),
    ):
        known = (
            remove_condition(status.conditions, type)
            if value is None
            else set_condition(
                status.conditions,
                type,
                *value,
                observed_generation=pool.generation,
                now=timestamp(now),
            )
        )
        status = replace(status, conditions=known)
    return status


def status_patch(old: WarmPoolStatus, new: WarmPoolStatus) -> Object | None:
    """The merge patch from one status to the other, None if nothing changes. Zero values are removed, since the API has
    always shown a missing count as zero."""
    changes = {wire: getattr(new, name) or None for name, wire in _WIRE_NAMES.items() if _differs(name, old, new)}
    return {"status": changes} if changes else None


def _differs(name: str, old: WarmPoolStatus, new: WarmPoolStatus) -> bool:
    return bool(getattr(old, name) != getattr(new, name))


def _progressing(pool: WarmPoolView, counts: MemberCounts, inputs: StatusInputs) -> _ConditionValue:
    """The first reason that applies. Status False marks those that waiting does not resolve."""
    grace = go_duration(inputs.grace)
    breaker = inputs.breaker
    if not inputs.has_template:
        return _ConditionValue(
            FALSE, conditions.TEMPLATE_NOT_FOUND, conditions.template_not_found_message(pool.template)
        )
    if breaker.is_open and counts.members < pool.replicas:
        message = (
            f"creating sandboxes failed {_times(breaker.failures)}, "
            f"pausing for {go_duration(breaker.pause)}: {breaker.error}"
        )
        return _ConditionValue(FALSE, conditions.CREATION_FAILING, message)
    if counts.unschedulable:
        share = f"{counts.unschedulable}/{pool.replicas}"
        message = f"{share} sandboxes are unschedulable past the {grace} readiness grace period"
        return _ConditionValue(FALSE, conditions.UNSCHEDULABLE, _because(message, inputs))
    is_replacing = inputs.replaces and counts.outdated > 0
    if inputs.has_stalled:
        message = f'sandboxes of template "{pool.template}" do not become ready within {grace}'
        if is_replacing:
            message += f"; the rollout is stopped and {_count(counts.outdated)} of the former template kept"
        return _ConditionValue(FALSE, conditions.PROGRESS_DEADLINE_EXCEEDED, _because(message, inputs))
    if is_replacing:
        message = f"{counts.current_ready} of {pool.replicas} sandboxes are ready and of the current template"
        return _ConditionValue(TRUE, conditions.ROLLING_OUT, _because(message, inputs))
    if inputs.limit is not None:
        return _ConditionValue(FALSE, conditions.SIZE_LIMITED, inputs.limit.message)
    if counts.ready < pool.replicas:
        message = f"{counts.ready} of {pool.replicas} sandboxes are ready"
        return _ConditionValue(TRUE, conditions.REPLENISHING, _because(message, inputs))
    if counts.outdated:
        message = f"{_count(counts.outdated)} of the former template will be handed out before being replaced"
        return _ConditionValue(TRUE, conditions.OUTDATED_IN_USE, message)
    return _ConditionValue(TRUE, conditions.COMPLETE, "all sandboxes are ready and of the current template")


def _because(message: str, inputs: StatusInputs) -> str:
    return f"{message}: {inputs.problem}" if inputs.problem else message


def _available(pool: WarmPoolView, counts: MemberCounts, needed: int) -> _ConditionValue:
    share = f"{needed} of {pool.replicas} sandboxes are ready"
    if counts.ready >= needed:
        return _ConditionValue(TRUE, conditions.ENOUGH_READY, f"at least {share}")
    return _ConditionValue(FALSE, conditions.TOO_FEW_READY, f"fewer than {share}")


def _replica_failure(inputs: StatusInputs) -> _ConditionValue | None:
    if not inputs.problem:
        return None
    return _ConditionValue(TRUE, conditions.MEMBER_NOT_STARTING, inputs.problem)


def _count(number: int) -> str:
    return "1 sandbox" if number == 1 else f"{number} sandboxes"


def _times(failures: int) -> str:
    return "once" if failures == 1 else f"{failures} times in a row"
