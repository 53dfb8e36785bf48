"""Addresses and ports of Services. kube-apiserver chooses them at random, so they are not in the recorded cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandpool.api.resource import Object
from sandpool.kube.errors import InternalError
from sandpool.server.kinds.service_allocation import NODE_PORTS
from sandpool.server.kinds.services import ServiceStrategy

STRATEGY = ServiceStrategy()


class Others:
    """The other Services; ``looks`` counts how often they were listed."""

    def __init__(self, *services: Object) -> None:
        self.services = services
        self.looks = 0

    def get(self, group_resource: str, namespace: str | None, name: str) -> Object | None:
        raise AssertionError("no Service is read by name")

    def objects(self, group_resource: str) -> Iterator[Object]:
        assert group_resource == "services"
        self.looks += 1
        return iter(self.services)


def service(name: str, **spec: object) -> Object:
    return STRATEGY.default({"metadata": {"name": name, "namespace": "n"}, "spec": {"ports": [{"port": 80}], **spec}})


def ports(service: Object) -> list[int]:
    return [port["nodePort"] for port in service["spec"]["ports"]]


@pytest.mark.parametrize(
    "spec", [{"clusterIP": "None"}, {"clusterIP": "None", "selector": {"a": "b"}}, {"type": "ExternalName"}]
)
def test_service_without_allocation_lists_no_others(spec: Object) -> None:
    others = Others()
    admitted = STRATEGY.admit(service("a", **spec), None, others)
    STRATEGY.admit({**admitted, "spec": {**admitted["spec"], "publishNotReadyAddresses": True}}, admitted, others)
    assert others.looks == 0


def test_update_does_not_allocate_again() -> None:
    others = Others()
    old = STRATEGY.admit(service("a", type="NodePort"), None, others)
    assert others.looks == 1
    new = STRATEGY.admit(service("a", type="NodePort", selector={"a": "b"}), old, others)
    assert others.looks == 1
    assert new["spec"] == {**old["spec"], "selector": {"a": "b"}}


def test_ports_of_one_number_share_a_node_port() -> None:
    both = [{"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}, {"name": "c", "port": 54}]
    first, second, third = ports(STRATEGY.admit(service("dns", type="NodePort", ports=both), None, Others()))
    assert first == second != third


def test_allocated_node_port_differs_from_requested_ones() -> None:
    given = ports(STRATEGY.admit(service("a", type="NodePort"), None, Others()))[0]
    wanted = [{"name": "x", "port": 80}, {"name": "y", "port": 81, "nodePort": given}]
    first, second = ports(STRATEGY.admit(service("a", type="NodePort", ports=wanted), None, Others()))
    assert second == given != first


def test_health_check_gets_its_own_node_port() -> None:
    spec = STRATEGY.admit(service("a", type="LoadBalancer", externalTrafficPolicy="Local"), None, Others())["spec"]
    assert spec["healthCheckNodePort"] in NODE_PORTS
    assert spec["healthCheckNodePort"] != spec["ports"][0]["nodePort"]


def test_exhausted_node_ports_are_an_error() -> None:
    taken = service("full", type="NodePort", ports=[{"port": 1, "nodePort": port} for port in NODE_PORTS])
    with pytest.raises(InternalError, match="failed to allocate a nodePort: range is full"):
        STRATEGY.admit(service("late", type="NodePort"), None, Others(taken))


def test_external_name_that_becomes_a_service_gets_an_address() -> None:
    old = STRATEGY.admit(service("a", type="ExternalName", externalName="example.com"), None, Others())
    assert "clusterIP" not in old["spec"]
    new = STRATEGY.admit({**old, "spec": {**old["spec"], "type": "ClusterIP"}}, old, Others())
    assert new["spec"]["clusterIPs"] == [new["spec"]["clusterIP"]]
    assert new["spec"]["ipFamilies"] == ["IPv4"]
