"""The NetworkPolicy of a template's sandboxes.

A sandbox runs untrusted code. Unless its template says otherwise, only the router may reach it, and it may reach only
the public internet: neither the cluster, nor the network the cluster is in, nor the metadata service of a cloud. That
excludes the DNS of the cluster, so sandboxes under this policy get public name servers.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.labels import TEMPLATE_REF_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Object, SharedObject
from sandpool.api.views import TemplateView

#: Where the router runs.
ROUTER_NAMESPACE: Final = "agent-sandbox-system"
ROUTER_LABELS: Final = {"app": "sandbox-router"}

#: Private and link-local addresses by address family; all others are allowed.
_PRIVATE: Final = {
    "0.0.0.0/0": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"],
    "::/0": ["fc00::/7", "fe80::/10"],
}


def network_policy_spec(template: TemplateView) -> Object:
    """Both directions are always restricted: one that a template does not mention is closed."""
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
