"""Decides what a template needs: the label by which it is found, and its NetworkPolicy or none.

A policy of the reserved name that the template does not control belongs to another client, which may rely on it. The
controller never touches it. If a policy of the template is due, that is an error until an operator resolves it, since
sandboxes would otherwise run under a policy that does not follow from the template.

A sandbox runs untrusted code. Unless its template says otherwise, only the router may reach it, and it may reach only
the public internet: neither the cluster, nor the network the cluster is in, nor the metadata service of a cloud. That
excludes the DNS of the cluster, so sandboxes under this policy get public name servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import NETWORK_POLICY, SANDBOX_TEMPLATE
from sandpool.api.labels import TEMPLATE_REF_HASH
from sandpool.api.names import name_hash, network_policy_name
from sandpool.api.resource import Object, SharedObject
from sandpool.api.schema.core import shape_of
from sandpool.api.views import NetworkPolicyView, TemplateView, controller_reference
from sandpool.controllers.revision import semantically_equal
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.patches import merge_diff

#: Where the router runs.
ROUTER_NAMESPACE: Final = "agent-sandbox-system"
ROUTER_LABELS: Final = {"app": "sandbox-router"}

#: Private and link-local addresses by address family; all others are allowed.
_PRIVATE: Final = {
    "0.0.0.0/0": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"],
    "::/0": ["fc00::/7", "fe80::/10"],
}


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


def network_policy_spec(template: TemplateView) -> Object:
    """The spec of a template's policy. Both directions are always restricted: one that a template does not mention is
    closed."""
    return {
        "podSelector": {"matchLabels": {TEMPLATE_REF_HASH: name_hash(template.name)}},
        "policyTypes": ["Ingress", "Egress"],
        **(_default_rules() if template.network_policy is None else _given_rules(template.network_policy)),
    }


def _default_rules() -> Object:
    router = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ROUTER_NAMESPACE}},
        "podSelector": {"matchLabels": ROUTER_LABELS},
    }
    internet = [{"ipBlock": {"cidr": cidr, "except": private}} for cidr, private in _PRIVATE.items()]
    return {"ingress": [{"from": [router]}], "egress": [{"to": internet}]}


def _given_rules(policy: SharedObject) -> Object:
    return {
        direction: [_as_stored(rule) for rule in policy[direction]]
        for direction in ("ingress", "egress")
        if policy.get(direction)
    }


def _as_stored(rule: Object) -> Object:
    """A rule as the API stores it in a NetworkPolicy, where a port without a protocol gets TCP. Templates have no such
    default, and without it the policy would seem to differ for ever."""
    ports = rule.get("ports")
    return rule if not ports else {**rule, "ports": [{"protocol": "TCP", **port} for port in ports]}
