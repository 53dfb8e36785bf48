from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sandpool.api.kinds import ENDPOINT_SLICE, ENDPOINTS, NETWORK_POLICY, SERVICE
from sandpool.api.resource import Object

Cells = Callable[..., list[Any]]


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        (
            {
                "type": "ClusterIP",
                "clusterIPs": ["10.0.0.9"],
                "externalIPs": ["1.2.3.4", "1.2.3.5"],
                "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
                "selector": {"b": "1", "a": "2"},
            },
            {},
            ["ClusterIP", "10.0.0.9", "1.2.3.4,1.2.3.5", "80/TCP,53/UDP", "10m", "a=2,b=1"],
        ),
        ({"clusterIPs": ["None"]}, {}, ["ClusterIP", "None", "<none>", "<none>", "10m", "<none>"]),
        (
            {"type": "NodePort", "clusterIPs": ["10.0.0.9"], "ports": [{"port": 80, "nodePort": 31859}]},
            {},
            ["NodePort", "10.0.0.9", "<none>", "80:31859/TCP", "10m", "<none>"],
        ),
        (
            {"type": "LoadBalancer"},
            {"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}, {"hostname": "a.long.name.example.com"}]}},
            ["LoadBalancer", "<none>", "9.9.9.9,a.long.name.example.com", "<none>", "10m", "<none>"],
        ),
        (
            {"type": "LoadBalancer"},
            {"loadBalancer": {}},
            ["LoadBalancer", "<none>", "<pending>", "<none>", "10m", "<none>"],
        ),
        (
            {"type": "ExternalName", "externalName": "ex.example.com"},
            {},
            ["ExternalName", "<none>", "ex.example.com", "<none>", "10m", "<none>"],
        ),
    ],
)
def test_service_has_addresses_and_ports(cells: Cells, spec: Object, status: Object, expected: list[Any]) -> None:
    assert cells(SERVICE, {"spec": spec, "status": status}) == ["x", *expected]


@pytest.mark.parametrize(
    ("subsets", "expected"),
    [
        (None, "<none>"),
        (
            [{"addresses": [{"ip": f"10.0.1.{n}"} for n in (1, 2, 3)], "ports": [{"port": 80}, {"port": 81}]}],
            "10.0.1.1:80,10.0.1.2:80,10.0.1.3:80 + 3 more...",
        ),
        (
            [{"addresses": [{"ip": "2001:db8::1"}], "ports": [{"port": 80}]}, {"addresses": [{"ip": "10.9.9.9"}]}],
            "[2001:db8::1]:80,10.9.9.9",
        ),
    ],
)
def test_endpoints_are_listed(cells: Cells, subsets: list[Object] | None, expected: str) -> None:
    assert cells(ENDPOINTS, {"subsets": subsets} if subsets else {}) == ["x", expected, "10m"]


def test_endpoint_slice_has_ports_and_endpoints(cells: Cells) -> None:
    obj = {
        "addressType": "IPv4",
        "ports": [{"port": 80, "name": "a"}, {"name": "p"}, {}, {"port": 83}],
        "endpoints": [{"addresses": [f"10.0.0.{n}"]} for n in (1, 2, 3, 4)],
    }
    assert cells(ENDPOINT_SLICE, obj) == [
        "x",
        "IPv4",
        "80,p,* + 1 more...",
        "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...",
        "10m",
    ]
    assert cells(ENDPOINT_SLICE, {"addressType": "IPv6"})[2:4] == ["<unset>", "<unset>"]


def test_network_policy_has_its_selector(cells: Cells) -> None:
    assert cells(NETWORK_POLICY, {"spec": {"podSelector": {}}}) == ["x", "<none>", "10m"]
    assert cells(NETWORK_POLICY, {"spec": {"podSelector": {"matchLabels": {"a": "b"}}}})[1] == "a=b"
