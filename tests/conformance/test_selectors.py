"""Label and field selectors of lists."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, CORE_EVENT, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import BadRequest
from sandpool.testing.objects import new, pod


def names(listed: SharedObject) -> str:
    return " ".join(item["metadata"]["name"] for item in listed["items"])


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", "a b c d"),
        ("app=x", "a b"),
        ("app==x", "a b"),
        ("app!=x", "c d"),
        ("app", "a b c"),
        ("!app", "d"),
        ("app=x,tier=front", "a"),
        ("app=x,tier!=front", "b"),
        ("app in (x,y)", "a b c"),
        ("app in (y)", "c"),
        ("app notin (x)", "c d"),
        ("app notin (x),app", "c"),
        ("app in (x, y),tier", "a b"),
        ("tier in ()", ""),
        ("size>1", "b c"),
        ("size<3", "a b"),
        ("app=", ""),
        ("example.com/key=v", "c"),
        ("app in (x),!example.com/key", "a b"),
        (" app = x , tier = back ", "b"),
    ],
)
async def test_label_selectors_filter_a_list(client: Client, namespace: str, selector: str, expected: str) -> None:
    for name, labels in (
        ("a", {"app": "x", "tier": "front", "size": "1"}),
        ("b", {"app": "x", "tier": "back", "size": "2"}),
        ("c", {"app": "y", "example.com/key": "v", "size": "3"}),
        ("d", {}),
    ):
        await client.create(SECRET, new(SECRET, name, metadata={"labels": labels}), namespace)
    assert names(await client.list(SECRET, namespace, label_selector=selector)) == expected


async def test_empty_label_value_is_selected(client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a", metadata={"labels": {"app": ""}}), namespace)
    await client.create(SECRET, new(SECRET, "b"), namespace)
    assert names(await client.list(SECRET, namespace, label_selector="app=")) == "a"
    assert names(await client.list(SECRET, namespace, label_selector="app in (x,)")) == "a"


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("=x", "found '=', expected: !, identifier, or 'end of string'"),
        (
            "a b",
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        ),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        (
            "-a=b",
            'unable to parse requirement: <nil>: Invalid value: "-a": name part must consist of alphanumeric '
            "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or "
            "'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        (
            "a=b@c",
            'unable to parse requirement: values[0][a]: Invalid value: "b@c": a valid label must be an empty string or '
            "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
            "character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
            "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        ),
        (
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must "
            "be an integer",
        ),
    ],
)
async def test_invalid_label_selectors_are_rejected(
    client: Client, namespace: str, selector: str, message: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await client.list(SECRET, namespace, label_selector=selector)
    assert refused.value.message == message


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=a", "a"),
        ("metadata.name==a", "a"),
        ("metadata.name!=a", "b c"),
        ("metadata.name=a,metadata.name!=a", ""),
        ("metadata.name=missing", ""),
        ("metadata.namespace=elsewhere", ""),
    ],
)
async def test_field_selectors_filter_by_name_and_namespace(
    client: Client, namespace: str, selector: str, expected: str
) -> None:
    for name in "abc":
        await client.create(SECRET, new(SECRET, name), namespace)
    assert names(await client.list(SECRET, namespace, field_selector=selector)) == expected


async def test_field_selectors_of_custom_kinds_filter_by_name(
    client: Client, namespace: str, widgets: ResourceType
) -> None:
    for name in "ab":
        await client.create(widgets, new(widgets, name, spec={"n": 1}), namespace)
    assert names(await client.list(widgets, namespace, field_selector="metadata.name=b")) == "b"
    assert names(await client.list(widgets, namespace, field_selector=f"metadata.namespace={namespace}")) == "a b"
    with pytest.raises(BadRequest, match=r"field label not supported: spec.n"):
        await client.list(widgets, namespace, field_selector="spec.n=1")


async def test_label_and_field_selectors_combine(client: Client, namespace: str) -> None:
    for name in "ab":
        await client.create(SECRET, new(SECRET, name, metadata={"labels": {"l": "1"}}), namespace)
    listed = await client.list(SECRET, namespace, label_selector="l=1", field_selector="metadata.name=b")
    assert names(listed) == "b"


async def test_pods_are_selected_by_their_fields(client: Client, namespace: str) -> None:
    await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, "sa"), namespace)
    await client.create(POD, pod("a", spec={"nodeName": "n1"}), namespace)
    await client.create(POD, pod("b", spec={"restartPolicy": "Never", "serviceAccountName": "sa"}), namespace)
    await client.patch(
        POD, "a", MergePatch({"status": {"phase": "Running", "podIP": "10.0.0.9"}}), namespace, subresource="status"
    )
    for selector, expected in (
        ("spec.nodeName=n1", "a"),
        ("spec.nodeName=", "b"),
        ("status.phase=Running", "a"),
        ("status.phase!=Running", "b"),
        ("status.phase=Pending", "b"),
        ("status.podIP=10.0.0.9", "a"),
        ("status.podIP!=", "a"),
        ("spec.restartPolicy=Never", "b"),
        ("spec.schedulerName=default-scheduler", "a b"),
        ("spec.serviceAccountName=sa", "b"),
        ("spec.hostNetwork=false", "a b"),
    ):
        assert names(await client.list(POD, namespace, field_selector=selector)) == expected, selector


async def test_events_are_selected_by_their_fields(client: Client, namespace: str) -> None:
    for name, kind in (("a", "Pod"), ("b", "Service")):
        event = new(
            CORE_EVENT,
            name,
            involvedObject={"kind": kind, "name": f"obj-{name}", "namespace": namespace, "uid": f"uid-{name}"},
            reason="Testing",
            type="Normal",
        )
        await client.create(CORE_EVENT, event, namespace)
    for selector, expected in (
        ("involvedObject.kind=Pod", "a"),
        ("involvedObject.name=obj-b", "b"),
        ("involvedObject.uid=uid-a,involvedObject.kind=Pod", "a"),
        (f"involvedObject.namespace={namespace}", "a b"),
        ("reason=Testing", "a b"),
        ("type=Warning", ""),
        ("type!=Warning", "a b"),
    ):
        assert names(await client.list(CORE_EVENT, namespace, field_selector=selector)) == expected, selector


async def test_namespaces_secrets_and_nodes_are_selected_by_their_fields(client: Client, namespace: str) -> None:
    selector = f"metadata.name={namespace},status.phase=Active"
    assert names(await client.list(NAMESPACE, field_selector=selector)) == namespace
    await client.create(SECRET, new(SECRET, "a", type="example.com/kind"), namespace)
    assert names(await client.list(SECRET, namespace, field_selector="type=example.com/kind")) == "a"
    assert names(await client.list(SECRET, namespace, field_selector="type=Opaque")) == ""
    await client.create(NODE, new(NODE, namespace, spec={"unschedulable": True}))
    selector = f"metadata.name={namespace},spec.unschedulable=true"
    assert names(await client.list(NODE, field_selector=selector)) == namespace
    await client.delete(NODE, namespace)


@pytest.mark.parametrize(
    ("type", "selector", "message"),
    [
        (CONFIG_MAP, "data.k=v", '"data.k" is not a known field selector: only "metadata.name", "metadata.namespace"'),
        (POD, "spec.nope=1", "field label not supported: spec.nope"),
        (CONFIG_MAP, "metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
    ],
)
async def test_invalid_field_selectors_are_rejected(
    client: Client, namespace: str, type: ResourceType, selector: str, message: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await client.list(type, namespace, field_selector=selector)
    assert message in refused.value.message
