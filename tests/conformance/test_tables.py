"""Tables: what kubectl get prints."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import (
    CONFIG_MAP,
    CORE_EVENT,
    CUSTOM_RESOURCE_DEFINITION,
    DAEMON_SET,
    DEPLOYMENT,
    LEASE,
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    REPLICA_SET,
    ROLE,
    ROLE_BINDING,
    RUNTIME_CLASS,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.testing.objects import new, pod
from tests.support.api_access import Raw
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def table(raw: Raw, target: str) -> Any:
    answer = await raw("GET", target, headers={"Accept": TABLE})
    assert answer.status == 200
    assert answer.content_type == "application/json"
    return answer.json()


async def cells(raw: Raw, target: str) -> dict[str, Any]:
    """The only row, by column."""
    found = await table(raw, target)
    [row] = found["rows"]
    return dict(zip((column["name"] for column in found["columnDefinitions"]), row["cells"], strict=True))


async def test_list_is_served_as_a_table(raw: Raw, client: Client, namespace: str) -> None:
    created = await client.create(SECRET, new(SECRET, "a", metadata={"labels": {"l": "1"}}), namespace)
    found = await table(raw, SECRET.path(namespace))
    assert (found["kind"], found["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert int(found["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
    [row] = found["rows"]
    assert row["cells"][:3] == ["a", "Opaque", 0]
    assert (row["object"]["kind"], row["object"]["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert row["object"]["metadata"] == created["metadata"]
    assert row["object"].keys() == {"kind", "apiVersion", "metadata"}


async def test_object_is_served_as_a_table(raw: Raw, client: Client, namespace: str) -> None:
    created = await client.create(SECRET, new(SECRET, "a"), namespace)
    found = await table(raw, SECRET.path(namespace, "a"))
    assert found["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    assert [row["cells"][0] for row in found["rows"]] == ["a"]


async def test_empty_list_is_a_table_without_rows(raw: Raw, namespace: str) -> None:
    found = await table(raw, SECRET.path(namespace))
    assert found["rows"] == []
    assert found["columnDefinitions"][0]["name"] == "Name"


async def test_tables_are_served_in_pages(raw: Raw, client: Client, namespace: str) -> None:
    for name in "abc":
        await client.create(SECRET, new(SECRET, name), namespace)
    found = await table(raw, SECRET.path(namespace) + "?limit=2")
    assert [row["cells"][0] for row in found["rows"]] == ["a", "b"]
    assert found["metadata"]["remainingItemCount"] == 1
    rest = await table(raw, SECRET.path(namespace) + f"?limit=2&continue={found['metadata']['continue']}")
    assert [row["cells"][0] for row in rest["rows"]] == ["c"]


async def test_include_object_decides_what_a_row_carries(raw: Raw, client: Client, namespace: str) -> None:
    await client.create(SECRET, new(SECRET, "a"), namespace)
    path = SECRET.path(namespace, "a")
    assert (await table(raw, path + "?includeObject=None"))["rows"][0]["object"] is None
    [row] = (await table(raw, path + "?includeObject=Object"))["rows"]
    assert (row["object"]["kind"], row["object"]["type"]) == ("Secret", "Opaque")
    answer = await raw("GET", path + "?includeObject=Frob", headers={"Accept": TABLE})
    assert answer.status == 400
    assert "must be 'Metadata', 'Object', 'None', or empty" in answer.json()["message"]


async def test_error_is_not_a_table(raw: Raw, namespace: str) -> None:
    answer = await raw("GET", SECRET.path(namespace, "missing"), headers={"Accept": TABLE})
    assert (answer.status, answer.json()["kind"]) == (404, "Status")


async def test_first_known_table_version_is_served(raw: Raw, namespace: str) -> None:
    """kubectl asks for tables first and for plain objects otherwise."""
    accept = f"application/json;as=Table;v=v1beta9;g=meta.k8s.io,{TABLE},application/json"
    answer = await raw("GET", SECRET.path(namespace), headers={"Accept": accept})
    assert answer.json()["kind"] == "Table"


async def test_watch_sends_tables(raw: Raw, client: Client, namespace: str) -> None:
    start = (await client.list(SECRET, namespace))["metadata"]["resourceVersion"]
    for name in "ab":
        await client.create(SECRET, new(SECRET, name), namespace)
    await client.delete(SECRET, "b", namespace)
    target = SECRET.path(namespace) + f"?watch=true&resourceVersion={start}&timeoutSeconds=1"
    answer = await raw("GET", target, headers={"Accept": TABLE})
    lines = answer.lines()
    assert [(line["type"], line["object"]["kind"]) for line in lines] == [
        ("ADDED", "Table"),
        ("ADDED", "Table"),
        ("DELETED", "Table"),
    ]
    assert [[row["cells"][0] for row in line["object"]["rows"]] for line in lines] == [["a"], ["b"], ["b"]]
    assert lines[0]["object"]["columnDefinitions"], "the first event says what the columns are"
    assert not lines[1]["object"]["columnDefinitions"], "the others need not"


@pytest.mark.parametrize(
    ("type", "columns"),
    [
        (POD, "Name Ready Status Restarts Age +IP +Node +Nominated_Node +Readiness_Gates"),
        (SERVICE, "Name Type Cluster-IP External-IP Port(s) Age +Selector"),
        (CONFIG_MAP, "Name Data Age"),
        (SECRET, "Name Type Data Age"),
        (SERVICE_ACCOUNT, "Name Age"),
        (
            PERSISTENT_VOLUME_CLAIM,
            "Name Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass Age +VolumeMode",
        ),
        (CORE_EVENT, "Last_Seen Type Reason Object +Subobject +Source Message +First_Seen +Count +Name"),
        (LEASE, "Name Holder Age"),
        (DEPLOYMENT, "Name Ready Up-to-date Available Age +Containers +Images +Selector"),
        (REPLICA_SET, "Name Desired Current Ready Age +Containers +Images +Selector"),
        (
            DAEMON_SET,
            "Name Desired Current Ready Up-to-date Available Node_Selector Age +Containers +Images +Selector",
        ),
        (NETWORK_POLICY, "Name Pod-Selector Age"),
        (ROLE, "Name Created_At"),
        (ROLE_BINDING, "Name Role Age +Users +Groups +ServiceAccounts"),
        (NAMESPACE, "Name Status Age"),
        (
            NODE,
            "Name Status Roles Age Version +Internal-IP +External-IP +OS-Image +Kernel-Version +Container-Runtime",
        ),
        (STORAGE_CLASS, "Name Provisioner ReclaimPolicy VolumeBindingMode AllowVolumeExpansion Age"),
        (RUNTIME_CLASS, "Name Handler Age"),
        (CUSTOM_RESOURCE_DEFINITION, "Name Created_At"),
    ],
    ids=str,
)
async def test_tables_have_the_columns_of_kubernetes(
    raw: Raw, namespace: str, type: ResourceType, columns: str
) -> None:
    """A plus marks the columns that only a wide table shows."""
    found = await table(raw, type.path(namespace) + "?limit=1")
    names = [
        ("+" if column["priority"] else "") + column["name"].replace(" ", "_") for column in found["columnDefinitions"]
    ]
    assert " ".join(names) == columns
    by_name = {column["name"]: column for column in found["columnDefinitions"]}
    assert (by_name["Name"]["type"], by_name["Name"]["format"]) == ("string", "name")


async def test_table_of_a_pod_has_ready_restarts_and_node(raw: Raw, client: Client, namespace: str) -> None:
    spec = {"nodeName": "n1", "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}
    await client.create(POD, pod("p", spec=spec), namespace)
    row = await cells(raw, POD.path(namespace, "p"))
    assert (row["Name"], row["Ready"], row["Status"], row["Restarts"]) == ("p", "0/2", "Pending", "0")
    assert (row["IP"], row["Node"], row["Nominated Node"], row["Readiness Gates"]) == (
        "<none>",
        "n1",
        "<none>",
        "<none>",
    )
    statuses = [
        {"name": name, "ready": ready, "restartCount": 0, "image": "i", "imageID": "", "state": {"running": {}}}
        for name, ready in (("a", True), ("b", False))
    ]
    status = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": statuses}
    await client.patch(POD, "p", MergePatch({"status": status}), namespace, subresource="status")
    row = await cells(raw, POD.path(namespace, "p"))
    assert (row["Ready"], row["Status"], row["IP"]) == ("1/2", "Running", "10.0.0.1")
    statuses[0] = {
        **statuses[0],
        "ready": False,
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    status = {"containerStatuses": statuses}
    await client.patch(POD, "p", MergePatch({"status": status}), namespace, subresource="status")
    row = await cells(raw, POD.path(namespace, "p"))
    assert (row["Ready"], row["Status"], row["Restarts"]) == ("0/2", "CrashLoopBackOff", "3")
    await client.delete(POD, "p", namespace)
    assert (await cells(raw, POD.path(namespace, "p")))["Status"] == "Terminating"
    await client.delete(POD, "p", namespace, grace_period_seconds=0)


@pytest.mark.parametrize(
    ("status", "state", "shown"),
    [
        ({"phase": "Succeeded"}, {"terminated": {"exitCode": 0, "reason": "Completed"}}, "Completed"),
        ({"phase": "Failed"}, {"terminated": {"exitCode": 1, "reason": "Error"}}, "Error"),
        ({"phase": "Failed"}, {"terminated": {"exitCode": 7}}, "ExitCode:7"),
        ({"phase": "Failed", "reason": "Evicted"}, None, "Evicted"),
        ({"phase": "Pending"}, {"waiting": {"reason": "ContainerCreating"}}, "ContainerCreating"),
    ],
)
async def test_status_column_of_a_pod_follows_its_containers(
    raw: Raw, client: Client, namespace: str, status: Object, state: Object | None, shown: str
) -> None:
    await client.create(POD, pod("p", spec={"nodeName": "n1"}), namespace)
    container = {"name": "main", "ready": False, "restartCount": 0, "image": "i", "imageID": "", "state": state}
    statuses = [] if state is None else [container]
    patch = MergePatch({"status": {**status, "containerStatuses": statuses}})
    await client.patch(POD, "p", patch, namespace, subresource="status")
    assert (await cells(raw, POD.path(namespace, "p")))["Status"] == shown


async def test_table_of_services_has_addresses_and_ports(raw: Raw, client: Client, namespace: str) -> None:
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 53, "protocol": "UDP"}]
    await client.create(SERVICE, new(SERVICE, "s", spec={"selector": {"a": "b"}, "ports": ports}), namespace)
    row = await cells(raw, SERVICE.path(namespace, "s"))
    assert (row["Type"], row["External-IP"], row["Port(s)"], row["Selector"]) == (
        "ClusterIP",
        "<none>",
        "80/TCP,53/UDP",
        "a=b",
    )
    await client.create(SERVICE, new(SERVICE, "h", spec={"clusterIP": "None"}), namespace)
    row = await cells(raw, SERVICE.path(namespace, "h"))
    assert (row["Cluster-IP"], row["Port(s)"], row["Selector"]) == ("None", "<none>", "<none>")


async def test_table_of_a_deployment_has_replica_counts(raw: Raw, client: Client, namespace: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    await client.create(DEPLOYMENT, new(DEPLOYMENT, "d", spec=spec), namespace)
    row = await cells(raw, DEPLOYMENT.path(namespace, "d"))
    assert (row["Ready"], row["Up-to-date"], row["Available"]) == ("0/3", 0, 0)
    assert (row["Containers"], row["Images"], row["Selector"]) == ("main", "i", "a=b")


async def test_table_of_a_node_has_status_and_roles(raw: Raw, client: Client, namespace: str) -> None:
    labels = {"node-role.kubernetes.io/worker": ""}
    await client.create(NODE, new(NODE, namespace, metadata={"labels": labels}, spec={"unschedulable": True}))
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "nodeInfo": {
            "kubeletVersion": "v1.36.0",
            "osImage": "Os",
            "kernelVersion": "6",
            "containerRuntimeVersion": "x://1",
            **dict.fromkeys(
                ("machineID", "systemUUID", "bootID", "kubeProxyVersion", "operatingSystem", "architecture"), ""
            ),
        },
    }
    await client.patch(NODE, namespace, MergePatch({"status": status}), subresource="status")
    row = await cells(raw, NODE.path(None, namespace))
    assert (row["Status"], row["Roles"], row["Version"], row["Internal-IP"], row["OS-Image"]) == (
        "Ready,SchedulingDisabled",
        "worker",
        "v1.36.0",
        "10.0.0.1",
        "Os",
    )
    await client.delete(NODE, namespace)


async def test_table_of_an_event_has_reason_and_object(raw: Raw, client: Client, namespace: str) -> None:
    event = new(
        CORE_EVENT,
        "e",
        involvedObject={"kind": "Pod", "name": "p", "namespace": namespace},
        reason="Why",
        message="What happened",
        type="Normal",
        count=3,
        source={"component": "tester"},
        firstTimestamp="2001-01-01T00:00:00Z",
        lastTimestamp="2001-01-01T00:00:00Z",
    )
    await client.create(CORE_EVENT, event, namespace)
    row = await cells(raw, CORE_EVENT.path(namespace, "e"))
    assert (row["Type"], row["Reason"], row["Object"], row["Message"], row["Source"], row["Count"]) == (
        "Normal",
        "Why",
        "pod/p",
        "What happened",
        "tester",
        3,
    )
    assert row["Last Seen"].endswith("y")


async def test_table_of_a_custom_kind_has_its_printer_columns(raw: Raw, client: Client, namespace: str) -> None:
    type = custom_type(f"{namespace}.example.com")
    columns: list[Object] = [
        {"name": "Text", "type": "string", "jsonPath": ".spec.text"},
        {"name": "Number", "type": "integer", "jsonPath": ".spec.number", "priority": 1},
        {"name": "Fraction", "type": "number", "jsonPath": ".spec.fraction"},
        {"name": "Flag", "type": "boolean", "jsonPath": ".spec.flag"},
        {"name": "When", "type": "date", "jsonPath": ".spec.when"},
        {"name": "Chosen", "type": "string", "jsonPath": ".spec.list[?(@.key=='b')].value"},
        {"name": "Second", "type": "string", "jsonPath": ".spec.list[1].key"},
        {"name": "Label", "type": "string", "jsonPath": r".metadata.labels.example\.com/key"},
        {"name": "Missing", "type": "string", "jsonPath": ".spec.missing.deeper"},
    ]
    await install(client, definition(type, additionalPrinterColumns=columns))
    spec = {
        "text": "t",
        "number": 5,
        "fraction": 1.5,
        "flag": True,
        "when": "2001-01-01T00:00:00Z",
        "list": [{"key": "a", "value": "x"}, {"key": "b", "value": "y"}],
    }
    metadata = {"labels": {"example.com/key": "label"}}
    await client.create(type, new(type, "a", metadata=metadata, spec=spec), namespace)
    found = await table(raw, type.path(namespace, "a"))
    assert [(column["name"], column["type"], column["priority"]) for column in found["columnDefinitions"]] == [
        ("Name", "string", 0),
        *((column["name"], column["type"], column.get("priority", 0)) for column in columns),
    ]
    row = await cells(raw, type.path(namespace, "a"))
    assert {name: value for name, value in row.items() if name != "When"} == {
        "Name": "a",
        "Text": "t",
        "Number": 5,
        "Fraction": 1.5,
        "Flag": True,
        "Chosen": "y",
        "Second": "b",
        "Label": "label",
        "Missing": None,
    }
    assert row["When"].endswith("y"), "dates are shown as ages"


async def test_table_of_a_custom_kind_without_columns_has_name_and_age(
    raw: Raw, client: Client, namespace: str, widgets: ResourceType
) -> None:
    await client.create(widgets, new(widgets, "a", spec={}), namespace)
    row = await cells(raw, widgets.path(namespace, "a"))
    assert row.keys() == {"Name", "Age"}
