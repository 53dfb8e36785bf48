"""The filters that decide whether a pod fits a node."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.labels import UNAVAILABLE_RUNTIMES
from sandpool.node.scheduling.fit import NodeView, message, unmet_requirements
from sandpool.node.scheduling.requirements import requests_of, requirements_of
from sandpool.testing.objects import pod


def node(**changes: Any) -> NodeView:
    fields = {
        "name": "node-1",
        "labels": {"zone": "a", "size": "5"},
        "taints": (),
        "allocatable": {"cpu": 4 * 10**9, "pods": 10 * 10**9},
        "ready": True,
        "handlers": frozenset(),
        "missing": {},
    }
    return NodeView(**{**fields, **changes})


def reasons(spec: dict[str, Any], topologies: NodeView) -> list[str]:
    return list(unmet_requirements(requirements_of(pod("pod", spec=spec)), topologies, {}, {"strong": "gvisor"}.get))


def affinity(*expressions: tuple[str, str, list[str]], fields: bool = False) -> dict[str, Any]:
    found = [{"key": key, "operator": operator, "values": values} for key, operator, values in expressions]
    term = {"matchFields" if fields else "matchExpressions": found}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"nodeSelector": {"disk": "ssd"}}, False),
        (affinity(("zone", "In", ["a", "b"])), True),
        (affinity(("zone", "In", ["b"])), False),
        (affinity(("zone", "NotIn", ["b"])), True),
        (affinity(("disk", "NotIn", ["b"])), True),
        (affinity(("zone", "Exists", [])), True),
        (affinity(("disk", "Exists", [])), False),
        (affinity(("disk", "DoesNotExist", [])), True),
        (affinity(("zone", "DoesNotExist", [])), False),
        (affinity(("size", "Gt", ["4"])), True),
        (affinity(("size", "Lt", ["5"])), False),
        (affinity(("zone", "Gt", ["4"])), False),
        (affinity(("zone", "In", ["a"]), ("disk", "Exists", [])), False),
        (affinity(), False),
        (affinity(("metadata.name", "In", ["node-1"]), fields=True), True),
        (affinity(("metadata.name", "In", ["node-2"]), fields=True), False),
    ],
)
def test_node_selectors_and_affinity_filter_nodes(spec: dict[str, Any], fits: bool) -> None:
    expected = [] if fits else ["node(s) didn't match Pod's node affinity/selector"]
    assert reasons(spec, node()) == expected


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "yes"}, False),
    ],
)
def test_taints_filter_nodes_unless_tolerated(toleration: dict[str, str], tolerated: bool) -> None:
    tainted = node(taints=(("gpu", "yes", "NoSchedule"),))
    expected = [] if tolerated else ["node(s) had untolerated taint {gpu: yes}"]
    assert reasons({"tolerations": [toleration]}, tainted) == expected


def test_preferences_do_not_filter() -> None:
    assert reasons({}, node(taints=(("busy", "", "PreferNoSchedule"),))) == []
    assert reasons({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, node()) == []
    assert reasons({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, node()) == []


def test_unsupported_constraints_are_named() -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    (found,) = reasons({"affinity": {"podAntiAffinity": required}}, node())
    assert found == "node(s) cannot be selected by podAntiAffinity, which this scheduler does not support"
    spread = {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}
    (found,) = reasons({"affinity": {"podAffinity": required}, **spread}, node())
    assert found.startswith("node(s) cannot be selected by podAffinity and topologySpreadConstraints, which")


def test_runtime_classes_filter_nodes() -> None:
    assert reasons({"runtimeClassName": "strong"}, node()) == []
    assert reasons({"runtimeClassName": "strong"}, node(handlers=frozenset({"gvisor"}))) == []
    assert reasons({"runtimeClassName": "none"}, node()) == ['node(s) know no RuntimeClass "none"']
    without = node(handlers=frozenset({"bwrap"}), missing={"gvisor": "runsc is not installed"})
    assert reasons({"runtimeClassName": "strong"}, without) == [
        "runtime gvisor is not available on this node: runsc is not installed"
    ]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [('{"gvisor": "no"}', {"gvisor": "no"}), ("", {}), ("[1]", {}), ("{", {}), ('{"gvisor": 1}', {"gvisor": "1"})],
)
def test_reason_for_a_missing_runtime(annotation: str, expected: dict[str, str]) -> None:
    metadata = {"name": "node-1", "annotations": {UNAVAILABLE_RUNTIMES: annotation}}
    assert NodeView.from_object({"metadata": metadata}).missing == expected


def test_requested_resources_add_up() -> None:
    def container(cpu: str, **fields: str) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **fields}

    spec = {
        "initContainers": [container("500m", restartPolicy="Always"), container("3"), container("1")],
        "containers": [container("1"), container("1")],
        "overhead": {"cpu": "250m"},
    }
    # The second init container runs beside the sidecar: 3.5 exceeds the 2.5 of the main containers.
    assert dict(requests_of(spec)) == {"cpu": 3_750_000_000, "pods": 10**9}


def test_reasons_of_all_nodes_are_one_message() -> None:
    assert message([["Insufficient cpu"], ["Insufficient cpu", "Too many pods"]]) == (
        "0/2 nodes are available: 2 Insufficient cpu, 1 Too many pods."
    )
