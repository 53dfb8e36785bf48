"""Environment variables for the Services of a pod's namespace, as a kubelet sets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandpool.api.views import ServiceView

# Every container gets the variables of this Service, even with enableServiceLinks: false.
_API = ("default", "kubernetes")


def service_links(services: Iterable[ServiceView], namespace: str, enabled: bool) -> dict[str, str]:
    """Return the variables for a pod of ``namespace``. A Service without a cluster IP has none."""
    found: dict[str, str] = {}
    for service in sorted(services, key=lambda service: service.name):
        if service.cluster_ip in ("", "None") or not service.ports:
            continue
        if (service.namespace, service.name) == _API or (enabled and service.namespace == namespace):
            found.update(_variables(service))
    return found


def _variables(service: ServiceView) -> Iterator[tuple[str, str]]:
    name, address = _constant(service.name), service.cluster_ip
    yield f"{name}_SERVICE_HOST", address
    yield f"{name}_SERVICE_PORT", str(service.ports[0]["port"])
    for port in service.ports:
        if port.get("name"):
            yield f"{name}_SERVICE_PORT_{_constant(port['name'])}", str(port["port"])
    host = f"[{address}]" if ":" in address else address
    for index, port in enumerate(service.ports):
        number, protocol = port["port"], port.get("protocol") or "TCP"
        url = f"{protocol.lower()}://{host}:{number}"
        prefix = f"{name}_PORT_{number}_{protocol.upper()}"
        if index == 0:
            yield f"{name}_PORT", url
        yield prefix, url
        yield f"{prefix}_PROTO", protocol.lower()
        yield f"{prefix}_PORT", str(number)
        yield f"{prefix}_ADDR", address


def _constant(name: str) -> str:
    return name.upper().replace("-", "_")
