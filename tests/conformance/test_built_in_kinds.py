"""Built-in kinds other than pods: what is filled in for the creator, and what is refused."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from sandpool.api.kinds import (
    DAEMON_SET,
    DEPLOYMENT,
    NETWORK_POLICY,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    REPLICA_SET,
    RUNTIME_CLASS,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Invalid
from sandpool.testing.objects import new

CONTAINER: Object = {"name": "a", "image": "i:1"}
FILLED: Object = {
    **CONTAINER,
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}
POD_SPEC: Object = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
TEMPLATE: Object = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}
WORKLOAD: Object = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}
FILLED_TEMPLATE: Object = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [FILLED], **POD_SPEC}}


# Services


async def test_service_gets_a_cluster_ip_and_defaults(client: Client, namespace: str) -> None:
    created = await client.create(SERVICE, new(SERVICE, "s", spec={"ports": [{"port": 80}]}), namespace)
    spec = created["spec"]
    address = spec["clusterIP"]
    assert ipaddress.ip_address(address).is_private
    assert spec == {
        "ports": [{"protocol": "TCP", "port": 80, "targetPort": 80}],
        "clusterIP": address,
        "clusterIPs": [address],
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
    }
    assert created["status"] == {"loadBalancer": {}}


async def test_cluster_ips_differ_and_are_kept(client: Client, namespace: str) -> None:
    addresses = set()
    for name in "abc":
        created = await client.create(SERVICE, new(SERVICE, name, spec={"ports": [{"port": 80}]}), namespace)
        addresses.add(created["spec"]["clusterIP"])
    assert len(addresses) == 3
    patched = await client.patch(SERVICE, "c", MergePatch({"spec": {"ports": [{"port": 81}]}}), namespace)
    assert patched["spec"]["clusterIP"] in addresses
    with pytest.raises(Invalid, match=r"spec.clusterIPs.*may not change once set"):
        await client.patch(
            SERVICE, "c", MergePatch({"spec": {"clusterIP": "10.96.1.2", "clusterIPs": ["10.96.1.2"]}}), namespace
        )


async def test_headless_service_gets_no_cluster_ip(client: Client, namespace: str) -> None:
    spec = {"clusterIP": "None", "selector": {"a": "b"}}
    created = await client.create(SERVICE, new(SERVICE, "s", spec=spec), namespace)
    assert (created["spec"]["clusterIP"], created["spec"]["clusterIPs"]) == ("None", ["None"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "spec.ports: Required value"),
        ({"ports": [{"port": 80}, {"port": 81}]}, "spec.ports[0].name: Required value"),
        ({"ports": [{"port": 0, "targetPort": 1}]}, "spec.ports[0].port: Invalid value: 0: must be between 1 and"),
        ({"ports": [{"port": 1, "protocol": "X"}]}, 'spec.ports[0].protocol: Unsupported value: "X"'),
        (
            {"ports": [{"port": 1}], "type": "X"},
            'spec.type: Unsupported value: "X": '
            'supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"',
        ),
        ({"ports": [{"port": 1}], "clusterIP": "x"}, 'spec.clusterIPs[0]: Invalid value: "x": must be a valid IP'),
    ],
)  # fmt: skip
async def test_invalid_services_are_rejected(client: Client, namespace: str, spec: Object, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(SERVICE, new(SERVICE, "s", spec=spec), namespace)
    assert message in refused.value.message


# Workloads


@pytest.mark.parametrize(
    ("type", "filled", "status"),
    [
        (
            DEPLOYMENT,
            {
                "replicas": 1,
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
                },
                "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
            },
            {},
        ),
        (REPLICA_SET, {"replicas": 1}, {"replicas": 0}),
        (
            DAEMON_SET,
            {
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
                },
                "revisionHistoryLimit": 10,
            },
            {
                "currentNumberScheduled": 0,
                "numberMisscheduled": 0,
                "desiredNumberScheduled": 0,
                "numberReady": 0,
            },
        ),
    ],
    ids=str,
)
async def test_workloads_get_their_defaults(
    client: Client, namespace: str, type: ResourceType, filled: Object, status: Any
) -> None:
    created = await client.create(type, new(type, "w", spec=WORKLOAD), namespace)
    assert created["spec"] == {"selector": WORKLOAD["selector"], "template": FILLED_TEMPLATE, **filled}
    assert created["status"] == status


async def test_selector_must_match_the_template(client: Client, namespace: str) -> None:
    spec = {**WORKLOAD, "selector": {"matchLabels": {"a": "c"}}}
    with pytest.raises(Invalid) as refused:
        await client.create(DEPLOYMENT, new(DEPLOYMENT, "w", spec=spec), namespace)
    assert refused.value.message == (
        'Deployment.apps "w" is invalid: spec.template.metadata.labels: Invalid value: {"a":"b"}: '
        "`selector` does not match template `labels`"
    )


async def test_selector_is_immutable(client: Client, namespace: str) -> None:
    await client.create(DEPLOYMENT, new(DEPLOYMENT, "w", spec=WORKLOAD), namespace)
    change = {
        "selector": {"matchLabels": {"a": "c"}},
        "template": {"metadata": {"labels": {"a": "c"}}},
    }
    with pytest.raises(Invalid, match=r"spec.selector: Invalid value: .*: field is immutable"):
        await client.patch(DEPLOYMENT, "w", MergePatch({"spec": change}), namespace)


# Storage


CLAIM: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


async def test_volume_claim_gets_its_defaults(client: Client, namespace: str) -> None:
    type = PERSISTENT_VOLUME_CLAIM
    created = await client.create(type, new(type, "c", spec=CLAIM), namespace)
    assert created["spec"] == {**CLAIM, "volumeMode": "Filesystem"}
    assert created["status"] == {"phase": "Pending"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accessModes": []}, "spec.accessModes: Required value: at least 1 access mode is required"),
        ({"accessModes": ["X"]}, 'spec.accessModes: Unsupported value: "X"'),
        ({"resources": {}}, "spec.resources[storage]: Required value"),
        (
            {"resources": {"requests": {"storage": "0"}}},
            'spec.resources[storage]: Invalid value: "0": must be greater than zero',
        ),
    ],
)
async def test_invalid_volume_claims_are_rejected(client: Client, namespace: str, change: Object, message: str) -> None:
    type = PERSISTENT_VOLUME_CLAIM
    with pytest.raises(Invalid) as refused:
        await client.create(type, new(type, "c", spec={**CLAIM, **change}), namespace)
    assert message in refused.value.message


async def test_spec_of_a_volume_claim_is_immutable(client: Client, namespace: str) -> None:
    type = PERSISTENT_VOLUME_CLAIM
    await client.create(type, new(type, "c", spec=CLAIM), namespace)
    with pytest.raises(Invalid, match=r"spec: Forbidden: spec is immutable after creation except"):
        await client.patch(type, "c", MergePatch({"spec": {"accessModes": ["ReadWriteMany"]}}), namespace)


async def test_storage_class_gets_its_defaults(client: Client, namespace: str) -> None:
    created = await client.create(STORAGE_CLASS, new(STORAGE_CLASS, namespace, provisioner="example.com/p"))
    assert (created["reclaimPolicy"], created["volumeBindingMode"]) == ("Delete", "Immediate")
    await client.delete(STORAGE_CLASS, namespace)


# The rest


async def test_string_data_of_a_secret_become_data(client: Client, namespace: str) -> None:
    wanted = new(SECRET, "s", data={"a": "eA==", "b": "eA=="}, stringData={"a": "text"})
    created = await client.create(SECRET, wanted, namespace)
    assert created["type"] == "Opaque"
    assert created["data"] == {"a": "dGV4dA==", "b": "eA=="}
    assert "stringData" not in created
    patched = await client.patch(SECRET, "s", MergePatch({"stringData": {"c": "more"}}), namespace)
    assert patched["data"] == {"a": "dGV4dA==", "b": "eA==", "c": "bW9yZQ=="}
    assert "stringData" not in patched


async def test_network_policies_get_their_policy_types(client: Client, namespace: str) -> None:
    wanted = new(NETWORK_POLICY, "in", spec={"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]})
    created = await client.create(NETWORK_POLICY, wanted, namespace)
    assert created["spec"] == {
        "podSelector": {},
        "ingress": [{"ports": [{"protocol": "TCP", "port": 80}]}],
        "policyTypes": ["Ingress"],
    }
    wanted = new(NETWORK_POLICY, "out", spec={"podSelector": {}, "egress": [{}]})
    created = await client.create(NETWORK_POLICY, wanted, namespace)
    assert created["spec"]["policyTypes"] == ["Ingress", "Egress"]


async def test_runtime_class_handler_is_stored(client: Client, namespace: str) -> None:
    created = await client.create(RUNTIME_CLASS, new(RUNTIME_CLASS, namespace, handler="gvisor"))
    assert created["handler"] == "gvisor"
    await client.delete(RUNTIME_CLASS, namespace)
    with pytest.raises(Invalid, match=r'handler: Invalid value: "Bad Handler"'):
        await client.create(RUNTIME_CLASS, new(RUNTIME_CLASS, namespace, handler="Bad Handler"))


async def test_node_has_no_generation_and_a_status(client: Client, namespace: str) -> None:
    created = await client.create(NODE, new(NODE, namespace))
    assert "generation" not in created["metadata"]
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": "2"}}
    patched = await client.patch(NODE, namespace, MergePatch({"status": ready}), subresource="status")
    assert patched["status"]["capacity"] == {"cpu": "2"}
    await client.delete(NODE, namespace)


async def test_service_account_is_stored_without_additions(client: Client, namespace: str) -> None:
    created = await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, "robot"), namespace)
    assert created.keys() == {"apiVersion", "kind", "metadata"}
