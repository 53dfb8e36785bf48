"""Adoption of a pooled sandbox: the patch that makes it the claim's, and the patch that keeps it up to date.

**One write decides.** The adoption patch carries the resourceVersion that the decision was based on. If the API accepts
it, the sandbox is the claim's; if not, nothing has happened, and no record of an intention can go stale. The patch
replaces the owner, removes the pool's labels and adds the claim's identity.

**The spec stays.** The identity goes into the labels of the Sandbox and not into its pod template, because these keys
never reach pods. So the generation stays, and no status has to be written again. The pod template's metadata are
replaced only if the pod must look different: the claim adds metadata, the template's metadata have changed, or a pool
of another implementation has added some. Pools of this project allow eviction by an annotation of the Sandbox, which
the adoption removes.

**Conflicts.** If another writer has changed the sandbox, the API refuses the patch. ``adopt_sandbox`` then reads the
same sandbox from the API. Either the claim owns it already (the answer to an earlier write was lost), or it can still
be adopted as it is now, or it is lost. It never tries another sandbox: a claim that moves on from a sandbox that it may
own after all ends up with two. If the pool or its template has changed meanwhile, the next reconcile decides anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import Key, Object
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView, controller_reference, sandbox_view
from sandpool.controllers.claim.assignment.candidates import is_pooled, refusal
from sandpool.controllers.claim.errors import ClaimError, adoption_conflict
from sandpool.controllers.claim.ownership import identity_labels, launch_type
from sandpool.controllers.claim.provisioning import merge_metadata
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.writer import ApiWriter, Patch
from sandpool.kube.errors import Conflict, NotFound
from sandpool.kube.patches import merge_diff

if TYPE_CHECKING:
    from sandpool.controllers.claim.plan import Observed

_POOL_LABELS: Final = (labels.WARM_POOL, labels.POD_TEMPLATE_HASH, labels.TEMPLATE_HASH)
# Attempts to adopt a sandbox that other writers keep changing.
_ATTEMPTS: Final = 4


# --- patches ---------------------------------------------------------------------------------------------------------


def adoption_patch(
    claim: ClaimView,
    sandbox: SandboxView,
    revision: TemplateRevision | None,
    trace_context: str = "",
    *,
    binds_late: bool = False,
) -> Object:
    """Body of the patch that makes a sandbox the claim's. ``revision`` is None if the template cannot be read;
    ``binds_late``: the sandbox must acknowledge the claim's variables before the claim is Ready."""
    wanted = _sandbox_labels(claim, sandbox, revision)
    for key in _POOL_LABELS:
        wanted.pop(key, None)
    wanted[labels.LAUNCH_TYPE] = labels.LAUNCH_WARM
    annotations = {**sandbox.annotations, labels.POD_NAME: sandbox.name}
    annotations.pop(labels.SAFE_TO_EVICT, None)
    if binds_late:
        annotations[labels.LATE_BOUND] = "true"
        if revision is not None:
            annotations[labels.TEMPLATE_REF] = revision.template  # which must allow the variables of each incarnation
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
    """Body of the patch that brings a bound sandbox in line with the claim and the template; None if it is.

    It has the UID as precondition and no resourceVersion, because no other writer owns these fields. Without
    ``revision`` the pod template is left alone.
    """
    wanted = _sandbox_labels(claim, sandbox, revision)
    wanted[labels.LAUNCH_TYPE] = launch_type(claim, sandbox)
    pod_change = None if revision is None else _pod_metadata_change(claim, sandbox, revision)
    body: Object = {"spec": {"podTemplate": {"metadata": pod_change}}} if pod_change else {}
    if change := _metadata_change(sandbox, wanted, sandbox.annotations):
        body["metadata"] = change
    return {**body, "metadata": {"uid": sandbox.uid, **body.get("metadata", {})}} if body else None


def pod_metadata(claim: ClaimView, base: Object, ref_hash: str) -> Object:
    """Metadata of the pod template of the claim's sandbox; ``base`` are the template's. Raises on a conflict."""
    own = merge_metadata(base.get("labels") or {}, claim.additional_labels, "label")
    own |= {labels.TEMPLATE_REF_HASH: ref_hash, **identity_labels(claim)}
    annotations = merge_metadata(base.get("annotations") or {}, claim.additional_annotations, "annotation")
    return {"labels": own, **({"annotations": annotations} if annotations else {})}


def _sandbox_labels(claim: ClaimView, sandbox: SandboxView, revision: TemplateRevision | None) -> dict[str, str]:
    """Labels of the Sandbox. The creator label is the claim's, absent if the claim has none, and never the pool's."""
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
    """A pooled pod template's metadata without the pool's part, for a template that cannot be read."""
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


# --- the write -------------------------------------------------------------------------------------------------------


async def adopt_sandbox(
    writer: ApiWriter, observed: Observed, sandbox: SandboxView, patch: Patch, trace_context: str
) -> SandboxView:
    """Write the adoption and return the sandbox as the API has it.

    Raises ``ClaimError`` if the claim cannot have the sandbox. If the API does not answer, the failure is raised
    unchanged, and the outcome is unknown.
    """
    claim, name = observed.claim, sandbox.name
    for _ in range(_ATTEMPTS):
        try:
            return sandbox_view(await writer.patch(patch, claim.namespace))
        except (Conflict, NotFound):
            fresh = await _read(writer, sandbox)
        if is_adopted(claim, name, fresh):
            assert fresh is not None
            return fresh
        assert fresh is not None, "is_adopted raises for a sandbox that is gone"
        if not _is_unchanged(writer.caches, observed):
            raise adoption_outdated(claim, name)
        body = adoption_patch(claim, fresh, observed.revision, trace_context, binds_late=observed.binds_late)
        patch = Patch(SANDBOX, name, body)
    raise adoption_contended(claim, name)


def is_adopted(claim: ClaimView, name: str, fresh: SandboxView | None) -> bool:
    """Whether the claim owns the sandbox; False if it can still be adopted. Raises ``ClaimError`` if it is lost.

    ``fresh`` is the sandbox as the API has it, None if it is gone.
    """
    if fresh is None:
        raise adoption_conflict(f"sandbox {name} deleted before adoption completed")
    if fresh.controlled_by(claim):
        return True
    if not is_pooled(fresh):
        raise adoption_conflict(f"sandbox {name} is no longer pool-owned and not controlled by claim {claim.name}")
    if why := refusal(fresh, claim):
        raise adoption_conflict(f"sandbox {name} is no longer adoptable by claim {claim.name}: {why}")
    return False


def is_lost(caches: Caches, claim: ClaimView, name: str) -> bool:
    """Whether a sandbox that could not be adopted has left the pool, by what the cache has."""
    try:
        return is_adopted(claim, name, caches.sandboxes.get(Key(claim.namespace, name)))
    except ClaimError:
        return True


def adoption_contended(claim: ClaimView, name: str) -> ClaimError:
    """Other writers changed the sandbox at every attempt. It can still be adopted, so the claim keeps its lease."""
    return adoption_conflict(f"adopting sandbox {name} for claim {claim.name} (conflicting concurrent write)")


def adoption_outdated(claim: ClaimView, name: str) -> ClaimError:
    """The pool or its template changed during the adoption, so the sandbox may no longer suit the claim."""
    return adoption_conflict(f"sandbox {name} was written while the pool of claim {claim.name} changed")


def _is_unchanged(caches: Caches, observed: Observed) -> bool:
    """Whether the pool and its template are still those that the decision was based on."""
    namespace = observed.claim.namespace
    pool = caches.pools.get(Key(namespace, observed.claim.warm_pool))
    template = None if pool is None else caches.templates.get(Key(namespace, pool.template))
    return _spec_version(pool) == _spec_version(observed.pool) and _spec_version(template) == _spec_version(
        observed.template
    )


def _spec_version(view: WarmPoolView | TemplateView | None) -> tuple[str, int] | None:
    return None if view is None else (view.uid, view.generation)


async def _read(writer: ApiWriter, sandbox: SandboxView) -> SandboxView | None:
    """Read the sandbox from the API into the cache."""
    try:
        answer = await writer.client.get(SANDBOX, sandbox.name, sandbox.namespace)
    except NotFound:
        writer.caches.sandboxes.record_deletion(key_of(sandbox), sandbox.uid)
        return None
    writer.caches.sandboxes.record_write(answer)
    return SandboxView.from_object(answer)
