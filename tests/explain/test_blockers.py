"""What keeps a claim from being ready, state by state."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api import conditions as api
from sandpool.explain.blockers import Blocker, blocker
from sandpool.explain.observed import Observed
from tests.explain.scenes import box_with, claim_with, condition, container, pod_warning, pool_with, scene

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
        (refused("ClaimExpired"), "it has expired", "make a new claim"),
        (refused("InvalidMetadata"), "words", "change the claim"),
        (refused("EnvVarsInjectionRejected"), "words", "change the claim"),
        (refused("VolumeClaimTemplatesError"), "words", "change the claim"),
        # nobody has given it a sandbox
        (scene(claim_with(), pool=None), 'pool "pool" does not exist', "make the pool"),
        (
            scene(claim_with(), has_template=False),
            'pool "pool" is made from template "python", which does not exist',
            "make the template",
        ),
        (refused("WarmPoolNotFound"), "until lately there was no pool for it; it is tried again within a minute", ""),
        (refused("TemplateNotFound"), "until lately there was no template for it", ""),
        (refused("WarmPoolNotFound", pool=None, unseen=frozenset({"sandboxwarmpools"})), "words", "make it"),
        (refused("TemplateNotFound", pool=None, unseen=frozenset({"sandboxwarmpools"})), "words", "make it"),
        (refused("TemplateNotFound", has_template=False, unseen=frozenset({"sandboxtemplates"})), "words", "make it"),
        (refused("ReconcilerError", "Error seen: x"), "the controller cannot serve it: Error seen: x", "see to what"),
        (refused("ReconcilerError", QUOTA), f"a quota of the namespace is used up: {QUOTA}", "raise the quota"),
        (refused("AdoptionConflict"), "it is being given a sandbox: words", ""),
        (refused("SandboxCreatePending"), "it is being given a sandbox: words", ""),
        (scene(claim_with(), after=11), "no controller has looked at it", "see whether the controllers run"),
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
            "tries again by itself",
        ),
        (stuck("CreationFailing", QUOTA), f"a quota of the namespace is used up: {QUOTA}", "raise the quota"),
        (stuck("Unschedulable", "3/3"), 'pool "pool" makes no progress: 3/3', "add nodes"),
        (stuck("ProgressDeadlineExceeded", "slow"), 'pool "pool" makes no progress: slow', "change the template"),
        (scene(claim_with(), pool=pool_with(ready=1)), 'it waits for a sandbox of pool "pool"', ""),
        (
            scene(claim_with(), pool=pool_with(ready=1), ahead=2),
            'it waits for a sandbox of pool "pool"; 2 other claims came earlier',
            "",
        ),
        (scene(claim_with(), ahead=1), 'pool "pool" has no ready sandbox and is being refilled; 1 other', ""),
        (
            scene(claim_with(), pool=None, unseen=frozenset({"sandboxwarmpools"})),
            "it waits for a sandbox",
            "",
        ),
        (
            scene(claim_with(), has_template=False, unseen=frozenset({"sandboxtemplates"})),
            'pool "pool" has no ready sandbox and is being refilled',
            "",
        ),
        # the sandbox
        (scene(BOUND), 'its sandbox "box" does not exist any more', "make a new claim"),
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
        (scene(BOUND, sandbox=box_with()), 'its sandbox "box" has not been looked at by a controller yet', ""),
        (boxed(condition("Ready", "True", "R")), 'its sandbox "box" is ready, and the claim is about to say so', ""),
        (boxed(condition("Ready", "False", "SandboxExpired")), 'its sandbox "box" has expired', "make a new claim"),
        (boxed(condition("Ready", "False", "SandboxSuspended")), 'its sandbox "box" is suspended', "resume it"),
        (
            boxed(condition("Ready", "False", "MultiplePods", "two")),
            'its sandbox "box" has several pods: two',
            "delete",
        ),
        (
            boxed(condition("Ready", "False", "ReconcilerError", "Error seen: no")),
            'its sandbox "box" cannot be made: Error seen: no',
            "see to what the message names",
        ),
        (
            boxed(condition("Ready", "False", "ReconcilerError", QUOTA)),
            f"a quota of the namespace is used up: {QUOTA}",
            "raise the quota",
        ),
        (
            boxed(condition("Ready", "False", *api.POD_FAILED)),
            'the pod of its sandbox "box" has ended: Pod failed',
            "make a new claim",
        ),
        (
            boxed(condition("Ready", "False", *api.POD_FAILED), failure="UnsupportedField: no spec.hostPID"),
            'the pod of its sandbox "box" has ended: Pod failed: UnsupportedField: no spec.hostPID',
            "see to what the message names",
        ),
        (
            boxed(
                condition("Ready", "False", *api.POD_FAILED),
                events=(pod_warning("UnsupportedField", "no spec.hostPID"), pod_warning("BackOff", "earlier")),
            ),
            'the pod of its sandbox "box" has ended: Pod failed: UnsupportedField: no spec.hostPID',
            "see to what the message names",
        ),
        (
            boxed(condition("Ready", "False", *api.POD_SUCCEEDED)),
            'the pod of its sandbox "box" has ended: Pod completed successfully',
            "make a new claim",
        ),
        # the pod, without looking at it
        (
            boxed(PENDING, condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")),
            "no node takes its pod: 0/3 nodes are available",
            "add nodes",
        ),
        (
            boxed(
                PENDING,
                condition("PodScheduled", "False", "Unschedulable"),
                events=(pod_warning("FailedScheduling", "0/1 nodes"),),
            ),
            "no node takes its pod: 0/1 nodes",
            "add nodes",
        ),
        (
            boxed(PENDING, events=(pod_warning("Failed", 'Failed to pull image "x": not found'),)),
            'an image cannot be had: Failed to pull image "x": not found',
            "see whether the image",
        ),
        (
            boxed(PENDING, events=(pod_warning("BackOff", "Back-off restarting failed container main"),)),
            "its pod crashes again and again: Back-off restarting failed container main",
            "see why in its logs",
        ),
        (
            boxed(PENDING, events=(pod_warning("Failed", "Error: no such command"),)),
            "a container does not start: Error: no such command",
            "see to what",
        ),
        (
            boxed(PENDING, events=(pod_warning("FailedMount", 'secret "s" not found'),)),
            'its pod cannot be set up: secret "s" not found',
            "see to what",
        ),
        (
            boxed(RUNNING, events=(pod_warning("Unhealthy", "Readiness probe failed: 503"),)),
            "its pod runs and is not ready: Readiness probe failed: 503",
            "see what the probe asks for",
        ),
        (boxed(RUNNING), "its pod is starting: Pod is Running but not Ready", ""),
        (boxed(NO_POD), "its pod has not been made yet", ""),
        (boxed(PENDING), "its pod is starting: Pod exists with phase: Pending", ""),
        # events that say nothing about this pod, or nothing bad
        (boxed(PENDING, events=(pod_warning("Failed", "image", name="other"),)), "its pod is starting", ""),
        (boxed(PENDING, events=(pod_warning("Failed", "image", seconds=-9),)), "its pod is starting", ""),
        (boxed(PENDING, events=(pod_warning("Failed", "image", type="Normal"),)), "its pod is starting", ""),
        # the pod, where it may be seen
        (
            boxed(PENDING, containers=(container("ImagePullBackOff", "not found"),)),
            "an image cannot be had: ImagePullBackOff: not found",
            "see whether the image",
        ),
        (
            boxed(PENDING, containers=(container("CrashLoopBackOff", "back-off 10s", 4),)),
            'its pod crashes again and again: container "main" ended 4 times: CrashLoopBackOff: back-off 10s',
            "see why in its logs",
        ),
        (
            boxed(PENDING, containers=(container("CreateContainerConfigError", 'secret "s" not found'),)),
            'container "main" does not start: CreateContainerConfigError: secret "s" not found',
            "see to what",
        ),
        (boxed(PENDING, containers=(container("ContainerCreating"),)), "its pod is starting", ""),
    ],
)
def test_causes(observed: Observed, cause: str, advice: str) -> None:
    found = blocker(observed)
    assert found is not None
    assert found.cause.startswith(cause), found.cause
    assert bool(advice) == bool(found.advice)
    assert advice in found.advice


def test_nothing_blocks_a_ready_claim() -> None:
    assert blocker(scene(claim_with(condition("Ready", "True", "R"), sandbox="box"))) is None


def test_waiting_takes_no_advice() -> None:
    for observed in (boxed(PENDING), boxed(NO_POD), scene(claim_with())):
        found = blocker(observed)
        assert isinstance(found, Blocker)
        assert found.advice == ""
