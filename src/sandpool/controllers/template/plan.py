"""Decides what a template needs: the label by which it is found, and its NetworkPolicy or none.

A policy of the reserved name that the template does not control belongs to another client, which may rely on it. The
controller never touches it. If a policy of the template is due, that is an error until an operator resolves it, since
sandboxes would otherwise run under a policy that does not follow from the template.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.api.kinds import NETWORK_POLICY, SANDBOX_TEMPLATE
from sandpool.api.labels import TEMPLATE_REF_HASH
from sandpool.api.names import name_hash, network_policy_name
from sandpool.api.resource import Object
from sandpool.api.schema.core import shape_of
from sandpool.api.views import NetworkPolicyView, TemplateView, controller_reference
from sandpool.controllers.revision import semantically_equal
from sandpool.controllers.template.network_policy import network_policy_spec
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.patches import merge_diff


@dataclass(frozen=True, slots=True)
class TemplatePlan:
    """Writes for a template. The label is written first."""

    label: Patch | None = None
    policy: Create | Patch | Delete | None = None
    error: str = ""


def plan_template(template: TemplateView, found: NetworkPolicyView | None) -> TemplatePlan:
    """``found`` is the NetworkPolicy of the name that is reserved for the template's."""
    if template.deleting:
        # The garbage collector deletes what it owns.
        return TemplatePlan()
    label = _label(template)
    if not template.network_managed:
        return TemplatePlan(label, _removal(template, found))
    if found is None:
        return TemplatePlan(label, Create(NETWORK_POLICY, _new_policy(template)))
    if not found.controlled_by(template):
        error = f'NetworkPolicy "{found.name}" is not controlled by template "{template.name}"; refusing to change it'
        return TemplatePlan(label, error=error)
    return TemplatePlan(label, _update(template, found))


def _label(template: TemplateView) -> Patch | None:
    value = name_hash(template.name)
    if template.labels.get(TEMPLATE_REF_HASH) == value:
        return None
    return Patch(SANDBOX_TEMPLATE, template.name, {"metadata": {"labels": {TEMPLATE_REF_HASH: value}}})


def _removal(template: TemplateView, found: NetworkPolicyView | None) -> Delete | None:
    if found is None or found.deleting or not found.controlled_by(template):
        return None
    return Delete(NETWORK_POLICY, found.name, found.uid)


def _new_policy(template: TemplateView) -> Object:
    return {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.kind,
        "metadata": {
            "name": network_policy_name(template.name),
            "namespace": template.namespace,
            "ownerReferences": [controller_reference(SANDBOX_TEMPLATE, template)],
        },
        "spec": network_policy_spec(template),
    }


def _update(template: TemplateView, found: NetworkPolicyView) -> Patch | None:
    """Compare by meaning, since the API fills in defaults."""
    wanted = network_policy_spec(template)
    if semantically_equal(found.spec, wanted, shape_of(NETWORK_POLICY).properties["spec"]):
        return None
    change = merge_diff(found.spec, wanted)
    return Patch(NETWORK_POLICY, found.name, {"spec": change}) if change is not None else None
