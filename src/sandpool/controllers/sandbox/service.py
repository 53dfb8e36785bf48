"""The Service of a sandbox: headless and named like the sandbox, so that the pod has a stable DNS name.

``spec.service`` has three states: true creates a Service or adopts a prepared one, false deletes an own one, and unset
keeps an own one without ever creating one. The Service stays while the sandbox is suspended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import SANDBOX, SERVICE
from sandpool.api.names import service_port_name
from sandpool.api.resource import Object, SharedObject
from sandpool.api.views import SandboxView, ServiceView, adopted_by, controller_reference
from sandpool.controllers.sandbox.ownership import precondition, refusal, tracking_labels
from sandpool.controllers.writer import Create, Delete, Patch
from sandpool.kube.patches import merge_diff

_HEADLESS: Final = "None"
_TCP: Final = "TCP"


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """A Create answered by 409 AlreadyExists means a Service that the cache did not show: plan again with it."""

    kept: bool = False  # whether the sandbox has a Service after the write
    write: Create | Patch | Delete | None = None
    error: str = ""


def plan_service(sandbox: SandboxView, found: ServiceView | None) -> ServicePlan:
    """``found`` is the Service of the sandbox's name."""
    if found is None:
        return ServicePlan(True, Create(SERVICE, _new_service(sandbox))) if sandbox.service else ServicePlan()
    if sandbox.service is False:
        deletable = found.controlled_by(sandbox) and not found.deleting
        return ServicePlan(False, Delete(SERVICE, found.name, found.uid) if deletable else None)
    if found.owner is None and sandbox.service is None:
        return ServicePlan()
    if error := refusal("service", found, sandbox) or _unfit(found, sandbox):
        return ServicePlan(error=error)
    return ServicePlan(True, _update(found, sandbox))


def service_ports(sandbox: SandboxView) -> list[Object]:
    """The ports of the pod's containers, sorted. The first container that names a port determines its name, unless
    another port has that name already."""
    names: dict[tuple[int, str], str] = {}
    taken: set[str] = set()
    for port in _container_ports(sandbox):
        key = (port.get("containerPort") or 0, port.get("protocol") or _TCP)
        name = port.get("name") or ""
        if not key[0]:
            continue
        names.setdefault(key, "")
        if name and not names[key] and name not in taken:
            names[key] = name
            taken.add(name)
    ports: list[Object] = []
    for (number, protocol), name in sorted(names.items()):
        name = name or service_port_name(number, protocol, taken)
        taken.add(name)
        ports.append({"name": name, "protocol": protocol, "port": number, "targetPort": number})
    return ports


def _container_ports(sandbox: SandboxView) -> Iterator[Object]:
    """Ports of the containers, then of the sidecars (init containers that keep running)."""
    spec = sandbox.pod_template.get("spec") or {}
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    for container in [*(spec.get("containers") or ()), *sidecars]:
        yield from container.get("ports") or ()


def _new_service(sandbox: SandboxView) -> Object:
    spec: Object = {"clusterIP": _HEADLESS, "selector": tracking_labels(sandbox)}
    if ports := service_ports(sandbox):
        spec["ports"] = ports
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": {
            "name": sandbox.name,
            "namespace": sandbox.namespace,
            "labels": tracking_labels(sandbox),
            "ownerReferences": [controller_reference(SANDBOX, sandbox)],
        },
        "spec": spec,
    }


def _unfit(found: ServiceView, sandbox: SandboxView) -> str:
    """The reason why the sandbox cannot adopt an unowned Service. The cluster IP of a Service cannot be removed."""
    if found.owner is not None or found.cluster_ip in ("", _HEADLESS):
        return ""
    return (
        f'cannot adopt unowned service "{found.name}" for sandbox "{sandbox.name}": '
        f"it is not headless (clusterIP: {found.cluster_ip})"
    )


def _update(found: ServiceView, sandbox: SandboxView) -> Patch | None:
    tracking = tracking_labels(sandbox)
    before: Object = {"metadata": {"labels": found.labels}, "spec": {"selector": found.selector}}
    after: Object = {"metadata": {"labels": {**found.labels, **tracking}}, "spec": {"selector": tracking}}
    if found.owner is None:
        after["metadata"]["ownerReferences"] = adopted_by(found, SANDBOX, sandbox)
    if sandbox.service:
        if found.ports:
            before["spec"]["ports"] = found.ports
        if ports := _merged_ports(found.ports, service_ports(sandbox)):
            after["spec"]["ports"] = ports
    body = merge_diff(before, after)
    if body is None:
        return None
    if required := precondition(found):
        body["metadata"] = {**required, **body.get("metadata", {})}
    return Patch(SERVICE, found.name, body)


def _merged_ports(found: Sequence[SharedObject], wanted: Sequence[SharedObject]) -> list[SharedObject]:
    """The wanted ports. An existing one stays as it is, with the fields that other clients have added."""
    there = {_essence(port): port for port in found}
    return [there.get(_essence(port), port) for port in wanted]


def _essence(port: SharedObject) -> tuple[str, str, int, int | str]:
    number: int = port["port"]
    return port.get("name") or "", port.get("protocol") or _TCP, number, port.get("targetPort") or number
