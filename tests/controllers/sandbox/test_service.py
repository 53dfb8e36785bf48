from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX, SERVICE
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.views import SandboxView, ServiceView, controller_reference
from sandpool.controllers.sandbox.service import ServicePlan, plan_service, service_ports
from sandpool.controllers.writer import Create, Delete, Patch
from tests.support import sandbox_objects

HASH = "agents.x-k8s.io/sandbox-name-hash"
TRACKED = {HASH: name_hash("box")}
HTTP = {"name": "http", "protocol": "TCP", "port": 8080, "targetPort": 8080}
ELSEWHERE = {"apiVersion": "v1", "kind": "Gateway", "name": "g", "uid": "g-1", "controller": True}
NOT_OWNED = 'service "box" is owned by Gateway/g (UID: g-1), not by sandbox "box"'


def box(service: bool | None = None, *ports: Object, **spec: Any) -> Object:
    containers = [{"name": "main", "ports": list(ports)}]
    given = {} if service is None else {"service": service}
    return sandbox_objects.sandbox("box", spec={**given, "podTemplate": {"spec": {"containers": containers, **spec}}})


def planned(sandbox: Object, found: Object | None = None) -> ServicePlan:
    return plan_service(SandboxView.from_object(sandbox), None if found is None else ServiceView.from_object(found))


def own(sandbox: Object, *, metadata: Object | None = None, **spec: Any) -> Object:
    return sandbox_objects.sandbox_service(sandbox, metadata=metadata or {}, spec=spec)


def unowned(sandbox: Object, labels: dict[str, str], **spec: Any) -> Object:
    return own(sandbox, metadata={"labels": labels, "ownerReferences": []}, **spec)


def deletion(service: Object) -> Delete:
    return Delete(SERVICE, "box", service["metadata"]["uid"])


def adoption(sandbox: Object) -> list[Object]:
    return [controller_reference(SANDBOX, SandboxView.from_object(sandbox))]


# --- missing ---------------------------------------------------------------------------------------------------------


def test_requested_service_is_created_headless() -> None:
    sandbox = box(True, {"containerPort": 8080, "name": "http"})
    assert planned(sandbox) == ServicePlan(
        True,
        Create(
            SERVICE,
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {
                    "name": "box",
                    "namespace": "default",
                    "labels": TRACKED,
                    "ownerReferences": adoption(sandbox),
                },
                "spec": {"clusterIP": "None", "selector": TRACKED, "ports": [HTTP]},
            },
        ),
    )


def test_service_without_ports_has_no_port_list() -> None:
    write = planned(box(True)).write
    assert isinstance(write, Create)
    assert "ports" not in write.object["spec"]


@pytest.mark.parametrize("service", [None, False])
def test_service_that_is_not_requested_is_not_created(service: bool | None) -> None:
    assert planned(box(service)) == ServicePlan()


# --- not wanted ------------------------------------------------------------------------------------------------------


def test_own_service_is_deleted_when_it_is_not_requested() -> None:
    sandbox = box(False)
    service = own(sandbox)
    assert planned(sandbox, service) == ServicePlan(False, deletion(service))


def test_terminating_service_is_not_deleted_again() -> None:
    sandbox = box(False)
    assert planned(sandbox, own(sandbox, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})) == ServicePlan()


@pytest.mark.parametrize("references", [[], [ELSEWHERE]])
def test_foreign_service_is_ignored_when_none_is_requested(references: list[Object]) -> None:
    sandbox = box(False)
    assert planned(sandbox, own(sandbox, metadata={"ownerReferences": references})) == ServicePlan()


# --- unset -----------------------------------------------------------------------------------------------------------


def test_own_service_is_kept_when_the_field_is_unset() -> None:
    sandbox = box()
    assert planned(sandbox, own(sandbox)) == ServicePlan(True)


def test_unowned_service_is_ignored_when_the_field_is_unset() -> None:
    sandbox = box()
    assert planned(sandbox, unowned(sandbox, TRACKED)) == ServicePlan()


def test_edge_15_label_and_selector_of_a_kept_service_are_repaired_and_its_ports_are_not() -> None:
    sandbox = box(None, {"containerPort": 8080})
    service = own(sandbox, metadata={"labels": {"mine": "1"}}, selector={"app": "x"}, ports=[{"port": 1}])
    assert planned(sandbox, service) == ServicePlan(
        True,
        Patch(SERVICE, "box", {"metadata": {"labels": TRACKED}, "spec": {"selector": {**TRACKED, "app": None}}}),
    )


@pytest.mark.parametrize("service", [None, True])
def test_edge_16a_foreign_service_is_an_error_even_when_the_field_is_unset(service: bool | None) -> None:
    sandbox = box(service)
    found = own(sandbox, metadata={"ownerReferences": [ELSEWHERE]})
    assert planned(sandbox, found) == ServicePlan(error=NOT_OWNED)


# --- wanted ----------------------------------------------------------------------------------------------------------


def test_ports_of_a_requested_service_follow_the_template() -> None:
    sandbox = box(True, {"containerPort": 8080, "name": "http"})
    old = {"name": "old", "protocol": "TCP", "port": 1, "targetPort": 1}
    assert planned(sandbox, own(sandbox, ports=[old])) == ServicePlan(
        True, Patch(SERVICE, "box", {"spec": {"ports": [HTTP]}})
    )


def test_edge_15_extra_fields_of_a_port_are_preserved() -> None:
    sandbox = box(True, {"containerPort": 8080, "name": "http"})
    decorated = {**HTTP, "nodePort": 30080, "appProtocol": "h2c"}
    assert planned(sandbox, own(sandbox, ports=[decorated])) == ServicePlan(True)
    more = box(True, {"containerPort": 8080, "name": "http"}, {"containerPort": 9090})
    added = {"name": "p-9090-tcp", "protocol": "TCP", "port": 9090, "targetPort": 9090}
    assert planned(more, own(more, ports=[decorated])) == ServicePlan(
        True, Patch(SERVICE, "box", {"spec": {"ports": [decorated, added]}})
    )


def test_api_defaults_of_a_port_are_no_difference() -> None:
    sandbox = box(True, {"containerPort": 8080, "name": "http"})
    assert planned(sandbox, own(sandbox, ports=[{"name": "http", "port": 8080}])) == ServicePlan(True)


@pytest.mark.parametrize("labels", [TRACKED, {"agents.x-k8s.io/adoptable": "true"}])
def test_adoptable_service_is_adopted(labels: dict[str, str]) -> None:
    sandbox = box(True, {"containerPort": 8080, "name": "http"})
    write = planned(sandbox, unowned(sandbox, labels, selector={"app": "x"}, ports=[{"port": 1}])).write
    assert isinstance(write, Patch)
    assert write.body["metadata"]["ownerReferences"] == adoption(sandbox)
    assert write.body["spec"] == {"selector": {**TRACKED, "app": None}, "ports": [HTTP]}
    assert write.body["metadata"].get("labels", TRACKED) == TRACKED


def test_edge_15_adoption_overwrites_ports_even_with_none() -> None:
    sandbox = box(True)
    assert planned(sandbox, unowned(sandbox, TRACKED, ports=[{"port": 1}])) == ServicePlan(
        True,
        Patch(
            SERVICE,
            "box",
            {"metadata": {"resourceVersion": "1", "ownerReferences": adoption(sandbox)}, "spec": {"ports": None}},
        ),
    )


def test_r10_unowned_service_without_the_labels_is_refused() -> None:
    sandbox = box(True)
    assert planned(sandbox, unowned(sandbox, {})) == ServicePlan(
        error='cannot adopt unowned service "box" for sandbox "box": it has no label agents.x-k8s.io/adoptable="true"'
    )


def test_unowned_service_with_a_cluster_ip_is_refused() -> None:
    sandbox = box(True)
    assert planned(sandbox, unowned(sandbox, TRACKED, clusterIP="10.0.0.1")) == ServicePlan(
        error='cannot adopt unowned service "box" for sandbox "box": it is not headless (clusterIP: 10.0.0.1)'
    )
    assert planned(sandbox, unowned(sandbox, TRACKED, clusterIP="")).kept
    assert planned(sandbox, own(sandbox, clusterIP="10.0.0.1")) == ServicePlan(True)


# --- ports -----------------------------------------------------------------------------------------------------------


def ports(*given: Object, **spec: Any) -> list[tuple[int, str, str]]:
    made = service_ports(SandboxView.from_object(box(None, *given, **spec)))
    assert all(port["targetPort"] == port["port"] for port in made)
    return [(port["port"], port["protocol"], port["name"]) for port in made]


def test_ports_are_sorted_by_number_and_protocol_and_named() -> None:
    assert ports({"containerPort": 90}, {"containerPort": 80, "protocol": "UDP"}, {"containerPort": 80}) == [
        (80, "TCP", "p-80-tcp"),
        (80, "UDP", "p-80-udp"),
        (90, "TCP", "p-90-tcp"),
    ]


def test_port_zero_is_skipped() -> None:
    assert ports({"containerPort": 0, "name": "x"}, {"name": "y"}) == []


def test_first_name_of_a_port_is_used() -> None:
    given: list[Object] = [
        {"containerPort": 80},
        {"containerPort": 80, "name": "a"},
        {"containerPort": 80, "name": "b"},
    ]
    assert ports(*given) == [(80, "TCP", "a")]


def test_port_name_is_used_once() -> None:
    assert ports({"containerPort": 90, "name": "a"}, {"containerPort": 80, "name": "a"}) == [
        (80, "TCP", "p-80-tcp"),
        (90, "TCP", "a"),
    ]


def test_generated_port_names_avoid_given_ones() -> None:
    given: list[Object] = [
        {"containerPort": 80},
        {"containerPort": 1, "name": "p-80-tcp"},
        {"containerPort": 2, "name": "p-80-tcp-2"},
    ]
    assert ports(*given) == [(1, "TCP", "p-80-tcp"), (2, "TCP", "p-80-tcp-2"), (80, "TCP", "p-80-tcp-3")]


def test_ports_of_sidecars_are_served_and_of_other_init_containers_are_not() -> None:
    init = [
        {"name": "sidecar", "restartPolicy": "Always", "ports": [{"containerPort": 81}]},
        {"name": "setup", "ports": [{"containerPort": 82}]},
    ]
    assert ports({"containerPort": 80}, initContainers=init) == [(80, "TCP", "p-80-tcp"), (81, "TCP", "p-81-tcp")]
