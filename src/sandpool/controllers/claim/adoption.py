"""Making a pool's sandbox the claim's: the one write that counts, and what keeps the sandbox right afterwards.

The patch carries the resourceVersion the decision was based on. If it is accepted the sandbox is the claim's, if it is
not nothing has happened: there is no record of an intention that could go stale. It replaces the owner, takes away what
marked the sandbox as a pool's, and says whose it is now.

Whose it is goes into the labels of the Sandbox, not into its pod template, where nobody can see it anyway because these
keys do not reach pods. So the spec stays as it is, the generation too, and no status has to be written again. Only if
the pod itself must look different (the claim brings metadata, the template's have changed, a pool of another
implementation had put something on it) is the pod template's metadata replaced, and then by exactly what it should be.
That our own pools let their pods be evicted is said in the metadata of the Sandbox, and taken back there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView, controller_reference
from sandpool.controllers.claim import metadata
from sandpool.controllers.claim.ownership import launch_type
from sandpool.controllers.revision import TemplateRevision
from sandpool.kube.patches import merge_diff

_POOL_LABELS: Final = (labels.WARM_POOL, labels.POD_TEMPLATE_HASH, labels.TEMPLATE_HASH)


def adoption_patch(
    claim: ClaimView, sandbox: SandboxView, revision: TemplateRevision | None, trace_context: str = ""
) -> Object:
    """The body of the patch that makes a sandbox the claim's. ``revision`` is None if the template cannot be read."""
    wanted = _identity(claim, sandbox, revision)
    for key in _POOL_LABELS:
        wanted.pop(key, None)
    wanted[labels.LAUNCH_TYPE] = labels.LAUNCH_WARM
    annotations = {**sandbox.annotations, labels.POD_NAME: sandbox.name}
    annotations.pop(labels.SAFE_TO_EVICT, None)
    if trace_context:
        annotations[labels.TRACE_CONTEXT] = trace_context
    pod_change = _pod_metadata_change(claim, sandbox, revision)
    body: Object = {"spec": {"podTemplate": {"metadata": pod_change}}} if pod_change else {}
    return body | {
        "metadata": {
            "resourceVersion": sandbox.resource_version,
            "ownerReferences": [controller_reference(SANDBOX_CLAIM, claim)],
            **_metadata_change(sandbox, wanted, annotations),
        }
    }


def sync_patch(claim: ClaimView, sandbox: SandboxView, revision: TemplateRevision | None) -> Object | None:
    """The body of the patch that keeps a bound sandbox as the claim and the template want it; None if it is so.

    Whatever its version: the sandbox is the claim's, and nobody else writes what this does. But for no other sandbox
    of its name. Without ``revision`` the pod is left as it is.
    """
    wanted = _identity(claim, sandbox, revision)
    wanted[labels.LAUNCH_TYPE] = launch_type(claim, sandbox)
    pod_change = None if revision is None else _pod_metadata_change(claim, sandbox, revision)
    body: Object = {"spec": {"podTemplate": {"metadata": pod_change}}} if pod_change else {}
    if change := _metadata_change(sandbox, wanted, sandbox.annotations):
        body["metadata"] = change
    return {**body, "metadata": {"uid": sandbox.uid, **body.get("metadata", {})}} if body else None


def identity_labels(claim: ClaimView) -> dict[str, str]:
    """What tells whose a sandbox is and which tool asked for it."""
    creator = claim.labels.get(labels.CREATED_BY)
    return {labels.CLAIM_UID: claim.uid, **({labels.CREATED_BY: creator} if creator else {})}


def pod_metadata(claim: ClaimView, base: Object, ref_hash: str) -> Object:
    """The metadata of the pod template of the claim's sandbox, on the ``base`` of the template's."""
    own = metadata.merge(base.get("labels") or {}, claim.additional_labels, "label")
    own |= {labels.TEMPLATE_REF_HASH: ref_hash, **identity_labels(claim)}
    annotations = metadata.merge(base.get("annotations") or {}, claim.additional_annotations, "annotation")
    return {"labels": own, **({"annotations": annotations} if annotations else {})}


def _identity(claim: ClaimView, sandbox: SandboxView, revision: TemplateRevision | None) -> dict[str, str]:
    """The labels of the Sandbox. That of its creator is the claim's: none if the claim has none, never the pool's."""
    wanted = {key: value for key, value in sandbox.labels.items() if key != labels.CREATED_BY}
    if revision is not None:
        wanted[labels.TEMPLATE_REF_HASH] = revision.ref_hash
    return wanted | identity_labels(claim)


def _metadata_change(
    sandbox: SandboxView, wanted_labels: Mapping[str, str], wanted_annotations: Mapping[str, str]
) -> Object:
    written = {"labels": dict(sandbox.labels), "annotations": dict(sandbox.annotations)}
    wanted = {"labels": dict(wanted_labels), "annotations": dict(wanted_annotations)}
    return merge_diff(written, wanted) or {}


def _pod_metadata_change(claim: ClaimView, sandbox: SandboxView, revision: TemplateRevision | None) -> Object | None:
    now: Object = sandbox.pod_template.get("metadata") or {}
    if revision is not None:
        wanted = pod_metadata(claim, revision.spec["podTemplate"].get("metadata") or {}, revision.ref_hash)
    else:
        wanted = pod_metadata(claim, _without_pool(now), sandbox.labels.get(labels.TEMPLATE_REF_HASH, ""))
    if _visible(now) == _visible(wanted):
        return None
    change: Object | None = merge_diff(now, wanted)
    return change


def _without_pool(pod_metadata: Object) -> Object:
    """What is left of a pool's metadata when the template's are not known: the pool let its pods be evicted."""
    own = {key: value for key, value in (pod_metadata.get("labels") or {}).items() if key not in _POOL_LABELS}
    own.pop(labels.CREATED_BY, None)
    annotations = dict(pod_metadata.get("annotations") or {})
    if annotations.get(labels.SAFE_TO_EVICT) == "true":
        del annotations[labels.SAFE_TO_EVICT]
    return {"labels": own, "annotations": annotations}


def _visible(pod_metadata: Object) -> tuple[dict[str, str], dict[str, str]]:
    """The part of a pod template's metadata that reaches pods."""
    own = pod_metadata.get("labels") or {}
    annotations = pod_metadata.get("annotations") or {}
    return (
        {key: value for key, value in own.items() if not labels.is_reserved_label(key)},
        {key: value for key, value in annotations.items() if not labels.is_reserved_annotation(key)},
    )
