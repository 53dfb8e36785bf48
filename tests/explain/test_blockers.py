"""The cause that keeps a claim from being ready, for each state."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api import conditions as api
from sandpool.explain.blockers import Blocker, blocker
from sandpool.explain.observed import Observed
from tests.explain.scenes import box_with, claim_with, condition, container, pod_event, pod_warning, pool_with, scene

PENDING = condition("Ready", "False", "DependenciesNotReady", "Pod exists with phase: Pending")
RUNNING = condition("Ready", "False", "DependenciesNotReady", "Pod is Running but not Ready")
NO_POD = condition("Ready", "False", "DependenciesNotReady", "Pod does not exist")
BOUND = claim_with(PENDING, sandbox="box")
MISSING = condition("Ready", "False", "SandboxMissing", "Sandbox does not exist")
QUOTA = 'pods "box" is forbidden: exceeded quota: small, requested: pods=1, used: pods=3, limited: pods=3'


def refused(reason: str, message: str = "words", **seen: Any) -> Observed:
    return scene(claim_with(condition("Ready", "False", reason, message)), **seen)


def boxed(ready: dict[str, str], *others: dict[str, str], **seen: Any) -> Observed:
    return scene(BOUND, sandbox=box_with(ready, *others), **seen)


def stuck(reason: str, message: str, status: str = "False") -> Observed:
    return scene(claim_with(MISSING), pool=pool_with(condition("Progressing", status, reason, message)))


@pytest.mark.parametrize(
    ("observed", "cause", "advice"),
    [
        # the claim itself
        (scene(claim_with(deletionTimestamp="2026-11-01T12:00:01Z")), "it is being deleted", ""),
        (refused("ClaimExpired"), "it has expired", "create a new claim"),
        (refused("InvalidMetadata"), "words", "change the claim"),
        (refused("EnvVarsInjectionRejected"), "words", "change the claim"),
        (refused("VolumeClaimTemplatesError"), "words", "change the claim"),
        (refused("EnvVarsInjectionRejected", policy_advice="set it"), "words", "set it, or change the claim"),
        (
            refused("ReconcilerError", "Error seen: x", policy_advice="set it"),
            "the controller cannot serve it: Error seen: x",
            "set it, or change the claim",
        ),
        # no sandbox is assigned
        (scene(claim_with(), pool=None), 'pool "pool" does not exist', "create the pool"),
        (
            scene(claim_with(), has_template=False),
            'pool "pool" refers to template "python", which does not exist',
            "create the template",
        ),
        (
            refused("WarmPoolNotFound"),
            "its pool was missing until recently; the controller retries within a minute",
            "",
        ),
        (refused("TemplateNotFound"), "its template was missing until recently", ""),
        (refused("WarmPoolNotFound", pool=None, unseen=frozenset({"sandboxwarmpools"})), "words", "create it"),
        (refused("TemplateNotFound", pool=None, unseen=frozenset({"sandboxwarmpools"})), "words", "create it"),
        (refused("TemplateNotFound", has_template=False, unseen=frozenset({"sandboxtemplates"})), "words", "create it"),
        (refused("ReconcilerError", "Error seen: x"), "the controller cannot serve it: Error seen: x", "fix the cause"),
        (refused("ReconcilerError", QUOTA), f"a quota of the namespace is exceeded: {QUOTA}", "raise the quota"),
        (refused("AdoptionConflict"), "a sandbox is being assigned to it: words", ""),
        (refused("SandboxCreatePending"), "a sandbox is being assigned to it: words", ""),
        (scene(claim_with(), after=11), "no controller has reconciled it", "check that the controllers run"),
        (scene(claim_with(), after=9), 'pool "pool" has no ready sandbox and is being refilled', ""),
        # the pool
        (
            stuck("Replenishing", "0 of 3 sandboxes are ready", "True"),
            'pool "pool" has no ready sandbox and is being refilled: 0 of 3 sandboxes are ready',
            "",
        ),
        (
            stuck("CreationFailing", "creating sandboxes failed 5 times in a row, pausing for 10s: no"),
            'pool "pool" makes no progress: creating sandboxes failed 5 times in a row, pausing for 10s: no',
            "retries by itself",
        ),
        (stuck("CreationFailing", QUOTA), f"a quota of the namespace is exceeded: {QUOTA}", "raise the quota"),
        (stuck("Unschedulable", "3/3"), 'pool "pool" makes no progress: 3/3', "add nodes"),
        (stuck("ProgressDeadlineExceeded", "slow"), 'pool "pool" makes no progress: slow', "fix the template"),
        (scene(claim_with(), pool=pool_with(ready=1)), 'it is waiting for a sandbox of pool "pool"', ""),
        (
            scene(claim_with(), pool=pool_with(ready=1), ahead=2),
            'it is waiting for a sandbox of pool "pool"; 2 other claims ahead of it',
            "",
        ),
        (scene(claim_with(), ahead=1), 'pool "pool" has no ready sandbox and is being refilled; 1 other', ""),
        (
            scene(claim_with(), pool=None, unseen=frozenset({"sandboxwarmpools"})),
            "it is waiting for a sandbox",
            "",
        ),
        (
            scene(claim_with(), has_template=False, unseen=frozenset({"sandboxtemplates"})),
            'pool "pool" has no ready sandbox and is being refilled',
            "",
        ),
        # the sandbox
        (scene(BOUND), 'its sandbox "box" no longer exists', "create a new claim"),
        (
            scene(BOUND, unseen=frozenset({"sandboxes"})),
            'sandbox "box" is not ready: Pod exists with phase: Pending',
            "",
        ),
        (
            scene(BOUND, sandbox=box_with(deletionTimestamp="2026-11-01T12:00:01Z")),
            'its sandbox "box" is being deleted',
            "",
        ),
        (scene(BOUND, sandbox=box_with()), 'no controller has reconciled its sandbox "box" yet', ""),
        (
            boxed(condition("Ready", "True", "R")),
            'its sandbox "box" is ready; the claim\'s status is about to be updated',
            "",
        ),
        (boxed(condition("Ready", "False", "SandboxExpired")), 'its sandbox "box" has expired', "create a new claim"),
        (boxed(condition("Ready", "False", "SandboxSuspended")), 'its sandbox "box" is suspended', "resume it"),
        (
            boxed(condition("Ready", "False", "MultiplePods", "two")),
            'its sandbox "box" has several pods: two',
            "delete",
        ),
        (
            boxed(condition("Ready", "False", "ReconcilerError", "Error seen: no")),
            'its sandbox "box" cannot be created: Error seen: no',
            "fix the cause",
        ),
        (
            boxed(condition("Ready", "False", "ReconcilerError", QUOTA)),
            f"a quota of the namespace is exceeded: {QUOTA}",
            "raise the quota",
        ),
        (
            boxed(condition("Ready", "False", *api.POD_FAILED)),
            'the pod of its sandbox "box" has ended: Pod failed',
            "create a new claim",
        ),
        (
            boxed(condition("Ready", "False", *api.POD_FAILED), failure="UnsupportedField: no spec.hostPID"),
            'the pod of its sandbox "box" has ended: Pod failed: UnsupportedField: no spec.hostPID',
            "fix the cause",
        ),
        (
            boxed(
                condition("Ready", "False", *api.POD_FAILED),
                events=(pod_warning("UnsupportedField", "no spec.hostPID"), pod_warning("BackOff", "earlier")),
            ),
            'the pod of its sandbox "box" has ended: Pod failed: UnsupportedField: no spec.hostPID',
            "fix the cause",
        ),
        (
            boxed(condition("Ready", "False", *api.POD_SUCCEEDED)),
            'the pod of its sandbox "box" has ended: Pod completed successfully',
            "create a new claim",
        ),
        # the pod, without looking at it
        (
            boxed(PENDING, condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")),
            "its pod cannot be scheduled: 0/3 nodes are available",
            "add nodes",
        ),
        (
            boxed(
                PENDING,
                condition("PodScheduled", "False", "Unschedulable"),
                events=(pod_warning("FailedScheduling", "0/1 nodes"),),
            ),
            "its pod cannot be scheduled: 0/1 nodes",
            "add nodes",
        ),
        (
            boxed(PENDING, events=(pod_event("Pulling"), pod_warning("Failed", 'Failed to pull image "x": not found'))),
            'an image cannot be pulled: Failed to pull image "x": not found',
            "check that the template's image",
        ),
        (
            boxed(PENDING, events=(pod_warning("BackOff", "Back-off restarting failed container main"),)),
            "its pod keeps crashing: Back-off restarting failed container main",
            "find the cause in its logs",
        ),
        (
            boxed(PENDING, events=(pod_warning("Failed", "Error: no such command"),)),
            "a container does not start: Error: no such command",
            "fix the cause",
        ),
        (
            boxed(PENDING, events=(pod_warning("BackOff", "Back-off restarting failed container image-tool"),)),
            "its pod keeps crashing: Back-off restarting failed container image-tool",
            "find the cause in its logs",
        ),
        (
            boxed(PENDING, events=(pod_event("Pulled"), pod_warning("Failed", "Error: image will run as root"))),
            "a container does not start: Error: image will run as root",
            "fix the cause",
        ),
        (
            boxed(PENDING, events=(pod_warning("FailedMount", 'secret "s" not found'),)),
            'its pod cannot be set up: secret "s" not found',
            "fix the cause",
        ),
        (
            scene(
                BOUND,
                sandbox=box_with(RUNNING, ips=["10.0.0.1"]),
                events=(pod_warning("Unhealthy", "Readiness probe failed: 503"),),
            ),
            "its pod runs and is not ready: Readiness probe failed: 503",
            "check the readiness probe",
        ),
        (boxed(RUNNING), "its pod is starting: Pod is Running but not Ready", ""),
        (scene(BOUND, sandbox=box_with(NO_POD, node="")), "its pod has not been created yet", ""),
        (
            boxed(PENDING, events=(pod_warning("Unhealthy", "Readiness probe failed: of an earlier pod"),)),
            "its pod is starting",
            "",
        ),
        (boxed(PENDING), "its pod is starting: Pod exists with phase: Pending", ""),
        # events that say nothing about this pod, or nothing bad
        (boxed(PENDING, events=(pod_warning("Failed", "image", name="other"),)), "its pod is starting", ""),
        (boxed(PENDING, events=(pod_warning("Failed", "image", seconds=-9),)), "its pod is starting", ""),
        (boxed(PENDING, events=(pod_warning("Failed", "image", type="Normal"),)), "its pod is starting", ""),
        # the pod, where it may be seen
        (
            boxed(PENDING, containers=(container("ImagePullBackOff", "not found"),)),
            "an image cannot be pulled: ImagePullBackOff: not found",
            "check that the template's image",
        ),
        (
            boxed(PENDING, containers=(container("CrashLoopBackOff", "back-off 10s", 4),)),
            'its pod keeps crashing: container "main" was restarted 4 times: CrashLoopBackOff: back-off 10s',
            "find the cause in its logs",
        ),
        (
            boxed(PENDING, containers=(container("CrashLoopBackOff", "it ended"),)),
            'its pod keeps crashing: container "main" ended: CrashLoopBackOff: it ended',
            "find the cause in its logs",
        ),
        (
            boxed(PENDING, containers=(container("CreateContainerConfigError", 'secret "s" not found'),)),
            'container "main" does not start: CreateContainerConfigError: secret "s" not found',
            "fix the cause",
        ),
        (boxed(PENDING, containers=(container("ContainerCreating"),)), "its pod is starting", ""),
    ],
)
def test_blocker_has_cause_and_advice(observed: Observed, cause: str, advice: str) -> None:
    found = blocker(observed)
    assert found is not None
    assert found.cause.startswith(cause), found.cause
    assert bool(advice) == bool(found.advice)
    assert advice in found.advice


def test_ready_claim_has_no_blocker() -> None:
    assert blocker(scene(claim_with(condition("Ready", "True", "R"), sandbox="box"))) is None


def test_waiting_claim_gets_no_advice() -> None:
    for observed in (boxed(PENDING), scene(BOUND, sandbox=box_with(NO_POD, node="")), scene(claim_with())):
        found = blocker(observed)
        assert isinstance(found, Blocker)
        assert found.advice == ""
