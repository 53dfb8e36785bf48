from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.causes import Cause
from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.api.schema.admit import compile_admission
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.findings import Undecodable
from sandpool.kube.errors import ApiError, BadRequest
from sandpool.server.kinds import pods
from sandpool.server.kinds.pod_spec import validate_pod_spec
from sandpool.server.kinds.pod_status import default_pod_status, keep_unknown_status_fields
from sandpool.server.kinds.pods import bind
from sandpool.server.kinds.resource_requirements import qos_class
from sandpool.server.kinds.strategies import strategy_for

STRATEGY = strategy_for(POD)
NOW = "2026-01-01T00:00:00Z"


def pod(spec: Object | None = None, **status: object) -> Object:
    obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "x"}], **(spec or {})},
        "status": status,
    }
    return STRATEGY.default(obj)


@pytest.mark.parametrize(
    ("spec", "status", "requested", "expected"),
    [
        ({"nodeName": "n"}, {}, None, 30),
        ({"nodeName": "n"}, {}, 5, 5),
        ({"nodeName": "n"}, {}, 0, 0),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 7}, {}, None, 7),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 0}, {}, None, 0),
        ({"nodeName": "n", "terminationGracePeriodSeconds": -1}, {}, None, 1),
        ({"nodeName": "n"}, {}, -5, 1),
        ({}, {}, None, 0),
        ({}, {}, 5, 0),
        ({"nodeName": "n"}, {"phase": "Succeeded"}, None, 0),
        ({"nodeName": "n"}, {"phase": "Failed"}, 5, 0),
        ({"nodeName": "n"}, {"phase": "Running"}, None, 30),
    ],
)
def test_grace_period_follows_spec_and_request(
    spec: Object, status: Object, requested: int | None, expected: int
) -> None:
    assert STRATEGY.grace_period(pod(spec, **status), requested) == expected


def test_unchanged_spec_is_not_validated_again() -> None:
    old = pod()
    new = {**old, "metadata": {**old["metadata"], "labels": {"a": "c"}}}
    assert STRATEGY.default(new, old)["spec"] is old["spec"]
    assert STRATEGY.validate(new, old) == []


CASES = yaml.safe_load((Path(__file__).parent / "cases" / "pods.yaml").read_text())
SPECS = [case["create"]["spec"] for case in CASES.values() if "spec" in case.get("create", {})]
ADMIT = compile_admission(shape_of(POD))


def admitted(spec: Object) -> Object | None:
    """A new pod as it reaches the rules, or None if its schema refuses it."""
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": deepcopy(spec)}
    try:
        return dict(ADMIT(obj).object)
    except Undecodable:
        return None


@settings(deadline=None)
@given(st.data())
def test_rules_for_new_specs_decide_the_same_whether_or_not_an_equal_spec_is_known(data: st.DataObject) -> None:
    """Specs of the recorded cases, with a field or two of others, in any order and repeatedly."""
    specs = []
    for _ in range(data.draw(st.integers(1, 4))):
        spec = dict(data.draw(st.sampled_from(SPECS)))
        for _ in range(data.draw(st.integers(0, 2))):
            other = data.draw(st.sampled_from(SPECS))
            name = data.draw(st.sampled_from(sorted(other)))
            spec[name] = other[name]
        specs.append(spec)
    for spec in [*specs, *reversed(specs)]:
        obj = admitted(spec)
        if obj is None:
            continue
        before = deepcopy(obj)
        defaulted = STRATEGY.default(obj, None)
        assert obj == before, "defaults are not written into the object"
        assert defaulted["spec"] == pods._with_defaults(before["spec"])
        plainly = [*pods._validate_spec(defaulted), *pods._validate_create(defaulted)]
        assert STRATEGY.validate(defaulted, None) == plainly
        assert STRATEGY.prepare_create(defaulted)["status"]["qosClass"] == qos_class(defaulted["spec"])


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_spec_with_ephemeral_volumes_is_validated_for_each_name(names: tuple[str, str]) -> None:
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    volumes = [
        {"name": "data", "ephemeral": {"volumeClaimTemplate": template}},
        {"name": "other", "persistentVolumeClaim": {"claimName": "a-data"}},
    ]
    obj = pod({"volumes": volumes})
    refused = {
        name: [cause.field for cause in STRATEGY.validate({**obj, "metadata": {"name": name}}, None)] for name in names
    }
    assert refused == {"a": ["spec.volumes[1].persistentVolumeClaim.claimName"], "b": []}


def test_valid_spec_is_validated_once_for_all_pods_and_an_invalid_one_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inspected: list[Object] = []

    def validate_and_count(spec: Object, path: str, *, pod_name: str, pod: bool) -> Iterator[Cause]:
        inspected.append(spec)
        return validate_pod_spec(spec, path, pod_name=pod_name, pod=pod)

    monkeypatch.setattr(pods, "validate_pod_spec", validate_and_count)
    good, bad = pod({"hostname": "validated-once"}), pod({"hostname": "Not_A_Label"})
    refused = [[cause.field for cause in STRATEGY.validate(deepcopy(each), None)] for each in (good, bad, good, bad)]
    assert refused == [[], ["spec.hostname"], [], ["spec.hostname"]]
    assert inspected == [good["spec"], bad["spec"], bad["spec"]]


def test_new_pods_with_equal_specs_share_the_defaults() -> None:
    first, second = (STRATEGY.default({"metadata": {}, "spec": {"hostname": "shares-defaults"}}) for _ in range(2))
    assert first["spec"] is second["spec"]
    assert first["spec"]["restartPolicy"] == "Always"


def test_binding_assigns_the_node_and_sets_the_condition() -> None:
    waiting = pod(nominatedNodeName="m", conditions=[{"type": "Other"}, {"type": "PodScheduled", "status": "False"}])
    bound = bind(waiting, {"target": {"kind": "Node", "name": "n1"}, "metadata": {"annotations": {"x": "y"}}}, NOW)
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"x": "y"}
    assert bound["metadata"]["labels"] == {"a": "b"}
    assert "nominatedNodeName" not in bound["status"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": NOW}
    assert bound["status"]["conditions"] == [{"type": "Other"}, scheduled]
    assert "nodeName" not in waiting["spec"]


@pytest.mark.parametrize(
    ("subject", "target", "code", "message"),
    [
        (pod({"nodeName": "m"}), {"name": "n"}, 409, 'pod p is already assigned to node "m"'),
        (pod({"schedulingGates": [{"name": "g"}]}), {"name": "n"}, 409, "pod p has non-empty .spec.schedulingGates"),
        (
            {**pod(), "metadata": {"name": "p", "deletionTimestamp": NOW}},
            {"name": "n"},
            409,
            "pod p is being deleted, cannot be assigned to a host",
        ),
        (pod(), {}, 422, "target.name: Required value"),
        (pod(), {"kind": "Pod", "name": "n"}, 422, 'target.kind: Unsupported value: "Pod"'),
    ],
)
def test_invalid_bindings_are_rejected(subject: Object, target: Object, code: int, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        bind(subject, {"target": target}, NOW)
    assert caught.value.code == code
    assert message in caught.value.message


def test_container_that_ended_for_good_does_not_run_again() -> None:
    ended = {"name": "c", "state": {"terminated": {"exitCode": 1}}}
    running = {"name": "c", "state": {"running": {}}}
    for policy, allowed in (("Always", True), ("OnFailure", True), ("Never", False)):
        old = pod({"restartPolicy": policy}, containerStatuses=[ended])
        found = STRATEGY.validate_status({**old, "status": {"containerStatuses": [running]}}, old)
        assert (found == []) == allowed


def test_pod_ip_and_pod_ips_agree() -> None:
    assert default_pod_status({"podIP": "1.1.1.1"})["podIPs"] == [{"ip": "1.1.1.1"}]
    assert default_pod_status({"podIPs": [{"ip": "1.1.1.1"}]})["podIP"] == "1.1.1.1"
    assert default_pod_status({"podIP": "2.2.2.2", "podIPs": [{"ip": "1.1.1.1"}]})["podIPs"] == [{"ip": "2.2.2.2"}]
    agreed = {"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}
    assert default_pod_status(agreed) is agreed


def test_server_set_status_fields_survive_older_clients() -> None:
    before = {
        "qosClass": "Burstable",
        "observedGeneration": 3,
        "conditions": [{"type": "Ready", "observedGeneration": 2}, {"type": "Other"}],
    }
    written = {"phase": "Running", "conditions": [{"type": "Ready"}, {"type": "New"}]}
    assert keep_unknown_status_fields(written, before) == {
        "phase": "Running",
        "qosClass": "Burstable",
        "observedGeneration": 3,
        "conditions": [{"type": "Ready", "observedGeneration": 2}, {"type": "New"}],
    }


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        ([{}], "BestEffort"),
        ([{"requests": {"cpu": "0"}}], "BestEffort"),
        ([{"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}}, {}], "Burstable"),
    ],
)
def test_qos_class_follows_the_resources(requirements: list[Object], expected: str) -> None:
    assert qos_class({"containers": [{"resources": each} for each in requirements]}) == expected


def test_pod_fields_are_selectable() -> None:
    obj = pod({"nodeName": "n1", "hostNetwork": True}, phase="Running", podIP="1.1.1.1")
    fields = STRATEGY.selectable_fields(obj)
    assert fields["spec.nodeName"] == "n1"
    assert fields["status.phase"] == "Running"
    assert fields["status.podIP"] == "1.1.1.1"
    assert fields["spec.hostNetwork"] == "true"
    STRATEGY.check_field_labels([*fields, "metadata.name", "metadata.namespace"])
    with pytest.raises(BadRequest, match=r"field label not supported: spec.image"):
        STRATEGY.check_field_labels(["spec.image"])
