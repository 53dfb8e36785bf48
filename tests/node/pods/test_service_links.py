"""Environment variables for Services."""

from __future__ import annotations

from sandpool.api.resource import Object
from sandpool.api.views import ServiceView
from sandpool.node.pods.service_links import service_links


def service(
    name: str, namespace: str = "space", ip: str = "10.96.0.5", ports: list[Object] | None = None
) -> ServiceView:
    ports = [{"port": 80, "protocol": "TCP"}] if ports is None else ports
    metadata = {"name": name, "namespace": namespace}
    return ServiceView.from_object({"metadata": metadata, "spec": {"clusterIP": ip, "ports": ports}})


def test_service_has_its_variables() -> None:
    ports = [{"name": "web", "port": 80, "protocol": "TCP"}, {"name": "dns-udp", "port": 53, "protocol": "UDP"}]
    assert service_links([service("front-end", ports=ports)], "space", True) == {
        "FRONT_END_SERVICE_HOST": "10.96.0.5",
        "FRONT_END_SERVICE_PORT": "80",
        "FRONT_END_SERVICE_PORT_WEB": "80",
        "FRONT_END_SERVICE_PORT_DNS_UDP": "53",
        "FRONT_END_PORT": "tcp://10.96.0.5:80",
        "FRONT_END_PORT_80_TCP": "tcp://10.96.0.5:80",
        "FRONT_END_PORT_80_TCP_PROTO": "tcp",
        "FRONT_END_PORT_80_TCP_PORT": "80",
        "FRONT_END_PORT_80_TCP_ADDR": "10.96.0.5",
        "FRONT_END_PORT_53_UDP": "udp://10.96.0.5:53",
        "FRONT_END_PORT_53_UDP_PROTO": "udp",
        "FRONT_END_PORT_53_UDP_PORT": "53",
        "FRONT_END_PORT_53_UDP_ADDR": "10.96.0.5",
    }


def test_headless_and_foreign_services_are_skipped() -> None:
    services = [service("headless", ip="None"), service("other", namespace="elsewhere"), service("none", ip="")]
    assert service_links(services, "space", True) == {}


def test_api_service_is_always_included() -> None:
    services = [service("kubernetes", namespace="default"), service("front")]
    found = service_links(services, "space", False)
    assert "KUBERNETES_SERVICE_HOST" in found and "FRONT_SERVICE_HOST" not in found
