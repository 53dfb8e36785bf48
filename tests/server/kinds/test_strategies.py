"""Details of the kinds that the recorded cases do not cover."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.kinds import BUILT_IN, CONFIG_MAP, NAMESPACE, NODE, SERVICE
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.errors import BadRequest, Forbidden, Invalid, MethodNotAllowed
from sandpool.server.kinds.containers import pull_policy
from sandpool.server.kinds.custom_resources import CustomResourceStrategy
from sandpool.server.kinds.differences import differences
from sandpool.server.kinds.events import from_core, to_core
from sandpool.server.kinds.label_selectors import matches
from sandpool.server.kinds.service_allocation import NODE_PORTS, SERVICE_RANGE
from sandpool.server.kinds.strategies import strategy_for


class FakeClusterReader:
    def __init__(self, *objects: Object) -> None:
        self.given = objects

    def get(self, group_resource: str, namespace: str | None, name: str) -> Object | None:
        return None

    def objects(self, group_resource: str) -> Iterator[Object]:
        return iter(self.given)


def service(name: str, **spec: object) -> Object:
    strategy = strategy_for(SERVICE)
    return strategy.default({"metadata": {"name": name, "namespace": "n"}, "spec": {"ports": [{"port": 80}], **spec}})


def test_every_service_gets_its_own_address() -> None:
    strategy = strategy_for(SERVICE)
    made: list[Object] = []
    for index in range(50):
        made.append(strategy.admit(service(f"s{index}", type="NodePort"), None, FakeClusterReader(*made)))
    addresses = [each["spec"]["clusterIP"] for each in made]
    ports = [each["spec"]["ports"][0]["nodePort"] for each in made]
    assert len(set(addresses)) == len(set(ports)) == 50
    assert all(ip_address(address) in SERVICE_RANGE for address in addresses)
    assert all(port in NODE_PORTS for port in ports)


def test_service_gets_the_same_address_unless_it_is_taken() -> None:
    strategy = strategy_for(SERVICE)
    first = strategy.admit(service("a"), None, FakeClusterReader())
    assert strategy.admit(service("a"), None, FakeClusterReader())["spec"]["clusterIP"] == first["spec"]["clusterIP"]
    squatter = service("squatter", clusterIP=first["spec"]["clusterIP"])
    other = strategy.admit(service("a"), None, FakeClusterReader(squatter))
    assert other["spec"]["clusterIP"] != first["spec"]["clusterIP"]
    with pytest.raises(Invalid, match="provided IP is already allocated"):
        strategy.admit(service("late", clusterIP=first["spec"]["clusterIP"]), None, FakeClusterReader(first))


def test_unchanged_service_is_not_validated() -> None:
    strategy = strategy_for(SERVICE)
    old = strategy.admit(service("a"), None, FakeClusterReader())
    assert strategy.admit(old, old, FakeClusterReader()) is old
    assert strategy.validate({**old, "metadata": {}}, old) == []


def test_invalid_field_selectors_have_the_words_of_the_kind() -> None:
    with pytest.raises(BadRequest) as caught:
        strategy_for(CONFIG_MAP).check_field_labels(["data.x"])
    assert caught.value.message == '"data.x" is not a known field selector: only "metadata.name", "metadata.namespace"'
    for type in (NODE, NAMESPACE):
        with pytest.raises(BadRequest) as caught:
            strategy_for(type).check_field_labels(["metadata.namespace"])
        assert caught.value.message == "field label not supported: metadata.namespace"


@pytest.mark.parametrize("type", BUILT_IN, ids=str)
def test_every_selectable_field_has_a_name(type: ResourceType) -> None:
    strategy = strategy_for(type)
    values = strategy.selectable_fields({"metadata": {"name": "a"}})
    assert values.keys() <= strategy.field_labels
    assert all(isinstance(value, str) for value in values.values())


def test_custom_resources_are_selected_by_declared_fields() -> None:
    strategy = CustomResourceStrategy([".spec.color", ".spec.big", ".spec.size"], namespaced=False)
    assert strategy.selectable_fields({"spec": {"color": "red", "big": True, "size": 3}}) == {
        "spec.color": "red",
        "spec.big": "true",
        "spec.size": "3",
    }
    assert strategy.selectable_fields({})["spec.color"] == ""
    with pytest.raises(BadRequest, match=r"field label not supported: metadata.namespace"):
        strategy.check_field_labels(["metadata.namespace"])
    with pytest.raises(BadRequest, match=r"field label not supported: spec.other"):
        CustomResourceStrategy().check_field_labels(["metadata.name", "spec.other"])


def test_create_of_a_terminating_custom_kind_is_rejected() -> None:
    strategy = CustomResourceStrategy(terminating=True)
    with pytest.raises(MethodNotAllowed, match="create not allowed while custom resource definition is terminating"):
        strategy.admit({}, None, FakeClusterReader())
    assert strategy.admit({"a": 1}, {}, FakeClusterReader()) == {"a": 1}


def test_system_namespaces_cannot_be_deleted() -> None:
    strategy = strategy_for(NAMESPACE)
    for name in ("default", "kube-system", "kube-public"):
        with pytest.raises(Forbidden, match=f'namespaces "{name}" is forbidden: this namespace may not be deleted'):
            strategy.check_delete({"metadata": {"name": name}})
    strategy.check_delete({"metadata": {"name": "kube-node-lease"}})


def test_namespace_is_kept_until_its_finalizers_are_removed() -> None:
    strategy = strategy_for(NAMESPACE)
    created = strategy.prepare_create(strategy.default({"metadata": {"name": "a"}}))
    assert strategy.blocks_removal(created)
    doomed = strategy.prepare_delete(
        {**created, "metadata": {"deletionTimestamp": "t", "deletionGracePeriodSeconds": 0}}
    )
    assert doomed["status"]["phase"] == "Terminating"
    assert "deletionGracePeriodSeconds" not in doomed["metadata"]
    assert not strategy.blocks_removal({**doomed, "spec": {}})


EVENT = st.fixed_dictionaries(
    {"metadata": st.just({"name": "e", "namespace": "n"})},
    optional={
        "regarding": st.just({"kind": "Pod", "name": "p"}),
        "note": st.text(min_size=1, max_size=5),
        "reason": st.just("r"),
        "reportingController": st.just("c"),
        "deprecatedCount": st.integers(1, 5),
        "type": st.just("Normal"),
        "series": st.just({"count": 2, "lastObservedTime": "t"}),
    },
)


@given(EVENT)
def test_events_are_unchanged_by_a_round_trip(event: Object) -> None:
    filled = from_core(to_core(event))
    assert to_core(filled) == to_core(event)
    assert from_core(to_core(filled)) == filled
    assert {key: value for key, value in filled.items() if key in event} == event


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("reg.io:5000/a", "Always"),
        ("reg.io:5000/a:1", "IfNotPresent"),
        ("a@sha256:" + "0" * 64, "IfNotPresent"),
        ("a:latest@sha256:" + "0" * 64, "Always"),
        ("Not A Reference", "IfNotPresent"),
        ("", "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(image: str, expected: str) -> None:
    assert pull_policy(image) == expected


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ({}, {}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "b", "c": "d"}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "c"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, {"a": "b"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {"a": "b"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": ""}, False),
    ],
)
def test_label_selector_matches_labels(selector: Object, labels: dict[str, str], expected: bool) -> None:
    assert matches(selector, labels) == expected


def test_differences_are_listed_by_path() -> None:
    old = {"a": 1, "b": [{"c": "x"}], "d": "gone"}
    new = {"a": 1, "b": [{"c": "y"}], "e": [1]}
    assert differences(old, new, "spec") == ('- spec.b[0].c: "x"\n+ spec.b[0].c: "y"\n- spec.d: "gone"\n+ spec.e: [1]')
    assert differences(old, old) == ""
