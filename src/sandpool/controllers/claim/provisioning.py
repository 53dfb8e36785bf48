"""The Sandbox that is made for a claim when none of its pool will do, or none is there."""

from __future__ import annotations

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, TemplateView, controller_reference
from sandpool.controllers.claim import env, metadata, volumes
from sandpool.controllers.claim.adoption import identity_labels
from sandpool.controllers.revision import TemplateRevision, new_sandbox


def sandbox_for(
    claim: ClaimView, template: TemplateView, revision: TemplateRevision, trace_context: str = ""
) -> Object:
    """A Sandbox with the claim's own name, so that two passes cannot make two. Raises what forbids it."""
    identity = identity_labels(claim)
    return new_sandbox(
        revision,
        namespace=claim.namespace,
        name=claim.name,
        owner=controller_reference(SANDBOX_CLAIM, claim),
        labels={**identity, labels.LAUNCH_TYPE: labels.LAUNCH_COLD},
        annotations={labels.TRACE_CONTEXT: trace_context} if trace_context else None,
        pod_labels=identity,
        spec=_spec(claim, template, revision),
    )


def _spec(claim: ClaimView, template: TemplateView, revision: TemplateRevision) -> Object:
    claims = volumes.merge(
        template.volume_claim_templates, claim.volume_claim_templates, template.volume_claim_templates_policy
    )
    pod_template: Object = revision.spec["podTemplate"]
    written = pod_template.get("metadata") or {}
    pod_labels = metadata.merge(written.get("labels") or {}, claim.additional_labels, "label")
    annotations = metadata.merge(written.get("annotations") or {}, claim.additional_annotations, "annotation")
    pod_spec = env.inject(pod_template["spec"], claim.env, template.env_vars_injection_policy)
    spec = {
        **revision.spec,
        "podTemplate": {
            **pod_template,
            "metadata": {**written, "labels": pod_labels, **({"annotations": annotations} if annotations else {})},
            "spec": pod_spec,
        },
    }
    if claims:
        spec["volumeClaimTemplates"] = claims
    return spec
