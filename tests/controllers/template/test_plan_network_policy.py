from __future__ import annotations

from typing import Any

from sandpool.api.resource import Object
from sandpool.api.views import TemplateView
from sandpool.controllers.template.plan import network_policy_spec
from tests.support import sandbox_objects

SELECTOR = {"matchLabels": {"agents.x-k8s.io/sandbox-template-ref-hash": "69155462"}}


def spec_for(**spec: Any) -> dict[str, Any]:
    return network_policy_spec(TemplateView.from_object(sandbox_objects.template("test-template", spec=spec)))


def test_default_policy_allows_ingress_from_the_router_and_egress_to_the_internet() -> None:
    assert spec_for() == {
        "podSelector": SELECTOR,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [
                    {
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-sandbox-system"}},
                        "podSelector": {"matchLabels": {"app": "sandbox-router"}},
                    }
                ]
            }
        ],
        "egress": [
            {
                "to": [
                    {
                        "ipBlock": {
                            "cidr": "0.0.0.0/0",
                            "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"],
                        }
                    },
                    {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
                ]
            }
        ],
    }


def test_given_rules_are_used_unchanged() -> None:
    ingress: list[Object] = [{"from": [{"podSelector": {}}]}, {}]
    egress = [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 53, "protocol": "UDP"}]}]
    assert spec_for(networkPolicy={"ingress": ingress, "egress": egress}) == {
        "podSelector": SELECTOR,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }


def test_direction_without_rules_is_closed() -> None:
    closed = {"podSelector": SELECTOR, "policyTypes": ["Ingress", "Egress"]}
    assert spec_for(networkPolicy={}) == closed
    assert spec_for(networkPolicy={"ingress": [], "egress": []}) == closed
    assert spec_for(networkPolicy={"egress": [{}]}) == {**closed, "egress": [{}]}


def test_port_without_protocol_is_tcp() -> None:
    spec = spec_for(networkPolicy={"ingress": [{"ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}]})
    assert spec["ingress"] == [{"ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}]
