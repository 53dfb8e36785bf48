"""The status of a sandbox: what it is, and when it is written.

A launch goes through half a dozen states that last milliseconds. Writing each of them would cost more requests than
the rest of the launch together, and each would wake whoever watches, for news that is old when it arrives. So one
status is written per launch, the one that says Ready. **Visible at once** is what somebody may act on:

* Ready becoming True, everything that changes while it is, and its becoming False;
* any other reason than the one of a launch under way, and its end: ReconcilerError, MultiplePods, SandboxSuspended,
  PodSucceeded, PodFailed and SandboxExpired, with every change of their messages;
* a change of Suspended and Finished;
* a pod that cannot be scheduled, and that it can be after all.

**Visible when it lasts** (``PATIENCE``) is the rest: where a launch that is not done yet stands (Ready=False with
reason DependenciesNotReady, PodScheduled Unknown or True, node, addresses, Service), and that a new generation was
observed which changed nothing else. So a sandbox that is a few seconds old may have no status at all, and one that
hangs tells where. What is held back is not lost: the next write, for whatever reason, contains it.
"""

from __future__ import annotations

from sandpool.api import conditions as api
from sandpool.api.conditions import Condition
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.names import name_hash, service_fqdn
from sandpool.api.resource import Object
from sandpool.api.views import SandboxStatus, SandboxView
from sandpool.controllers.sandbox.conditions import Findings, conditions
from sandpool.kube.patches import merge_diff


def status(sandbox: SandboxView, findings: Findings, now: str, cluster_domain: str) -> SandboxStatus:
    """What is true. Where it is not known if there is a Service, the status keeps what it says."""
    before = sandbox.status
    pod = findings.pod
    owned = pod if pod is not None and pod.controlled_by(sandbox) else None
    service, fqdn = before.service, before.service_fqdn
    if findings.service is not None:
        service = sandbox.name if findings.service else ""
        fqdn = service_fqdn(service, sandbox.namespace, cluster_domain) if service else ""
    return SandboxStatus(
        conditions=conditions(sandbox, findings, now),
        # Where a pod of somebody else runs is nobody's business here.
        node_name=owned.node_name if owned is not None else "",
        pod_ips=owned.ips if owned is not None else (),
        # How to look for the pod remains true when it has gone.
        selector=f"{SANDBOX_NAME_HASH}={name_hash(sandbox.name)}" if pod is not None else before.selector,
        service=service,
        service_fqdn=fqdn,
    )


def status_patch(before: SandboxStatus, after: SandboxStatus) -> Object | None:
    """The merge patch of the status subresource, None if there is nothing to write. Conditions are replaced as a whole:
    that is what a merge patch does to a list."""
    change = merge_diff(before.to_object(), after.to_object())
    return {"status": change} if change is not None else None


def urgent(before: SandboxStatus, after: SandboxStatus) -> bool:
    """Whether a change must be visible at once."""
    if _launching(after):
        return not _launching(before) or _points(before) != _points(after)
    return _without_generations(before) != _without_generations(after)


def _launching(status: SandboxStatus) -> bool:
    """Whether the sandbox is on its way to Ready. A sandbox without a status has just set out."""
    return status.reason(api.READY) in ("", api.DEPENDENCIES_NOT_READY)


def _points(status: SandboxStatus) -> tuple[object, ...]:
    """What somebody may act on during a launch."""
    suspended = status.condition(api.SUSPENDED)
    scheduled = status.condition(api.POD_SCHEDULED)
    stuck = scheduled is not None and scheduled["status"] == api.FALSE
    return (
        # A sandbox of which nothing is known is not suspended.
        (suspended["status"], suspended["reason"]) if suspended is not None else (api.FALSE, api.NOT_SUSPENDED[0]),
        status.reason(api.FINISHED),
        scheduled["reason"] if scheduled is not None and stuck else None,
    )


def _without_generations(status: SandboxStatus) -> tuple[object, ...]:
    kept: list[Condition] = [
        {key: value for key, value in condition.items() if key != "observedGeneration"}
        for condition in status.conditions
    ]
    return kept, status.node_name, status.pod_ips, status.selector, status.service, status.service_fqdn
