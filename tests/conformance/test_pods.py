"""Pods: what is filled in for the creator, what is refused, and how one gets its node."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import POD, SERVICE_ACCOUNT
from sandpool.api.resource import Object
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, Invalid
from sandpool.testing.objects import new, pod

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


async def test_pod_gets_its_defaults(client: Client, namespace: str) -> None:
    created = await client.create(POD, pod("p", spec={"containers": [CONTAINER]}), namespace)
    spec = created["spec"]
    assert spec["containers"] == [FILLED]
    assert {key: spec[key] for key in POD_SPEC} == POD_SPEC
    assert (spec["enableServiceLinks"], spec["priority"], spec["preemptionPolicy"]) == (
        True,
        0,
        "PreemptLowerPriority",
    )
    assert created["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


@pytest.mark.parametrize(
    ("container", "filled"),
    [
        ({"image": "i"}, {"imagePullPolicy": "Always"}),
        ({"image": "i:latest"}, {"imagePullPolicy": "Always"}),
        ({"image": "r:5000/i"}, {"imagePullPolicy": "Always"}),
        ({"image": "i:v2"}, {"imagePullPolicy": "IfNotPresent"}),
        ({"image": "i@sha256:" + "0" * 64}, {"imagePullPolicy": "IfNotPresent"}),
        ({"ports": [{"containerPort": 80}]}, {"ports": [{"containerPort": 80, "protocol": "TCP"}]}),
        (
            {"livenessProbe": {"httpGet": {"port": 80}}},
            {
                "livenessProbe": {
                    "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
                    "timeoutSeconds": 1,
                    "periodSeconds": 10,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                }
            },
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}]},
        ),
        (
            {"resources": {"limits": {"cpu": "1"}}},
            {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}},
        ),
    ],
)
async def test_containers_get_their_defaults(client: Client, namespace: str, container: Object, filled: Object) -> None:
    created = await client.create(POD, pod("p", spec={"containers": [{**CONTAINER, **container}]}), namespace)
    [stored] = created["spec"]["containers"]
    assert {key: stored[key] for key in filled} == filled


@pytest.mark.parametrize(
    ("volume", "filled"),
    [
        ({}, {"emptyDir": {}}),
        ({"secret": {"secretName": "s"}}, {"secret": {"secretName": "s", "defaultMode": 420}}),
        ({"configMap": {"name": "c"}}, {"configMap": {"name": "c", "defaultMode": 420}}),
        ({"hostPath": {"path": "/x"}}, {"hostPath": {"path": "/x", "type": ""}}),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {
                "projected": {
                    "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}],
                    "defaultMode": 420,
                }
            },
        ),
    ],
)
async def test_volumes_get_their_defaults(client: Client, namespace: str, volume: Object, filled: Object) -> None:
    await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, "robot"), namespace)
    spec = {"containers": [CONTAINER], "serviceAccountName": "robot", "volumes": [{"name": "v", **volume}]}
    created = await client.create(POD, pod("p", spec=spec), namespace)
    assert created["spec"]["volumes"][0] == {"name": "v", **filled}


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
    ],
)
async def test_qos_class_follows_the_resources(client: Client, namespace: str, resources: Object, quality: str) -> None:
    spec = {"containers": [{**CONTAINER, "resources": resources}]}
    assert (await client.create(POD, pod("p", spec=spec), namespace))["status"]["qosClass"] == quality


async def test_quantities_are_stored_in_canonical_form(client: Client, namespace: str) -> None:
    requests = {"cpu": "1000m", "memory": "1024Mi", "ephemeral-storage": "0.5Gi"}
    spec = {"containers": [{**CONTAINER, "resources": {"requests": requests}}]}
    created = await client.create(POD, pod("p", spec=spec), namespace)
    assert created["spec"]["containers"][0]["resources"]["requests"] == {
        "cpu": "1",
        "memory": "1Gi",
        "ephemeral-storage": "512Mi",
    }


async def test_numbers_are_accepted_as_quantities(client: Client, namespace: str) -> None:
    spec = {"containers": [{**CONTAINER, "resources": {"requests": {"cpu": 2}}}]}
    created = await client.create(POD, pod("p", spec=spec), namespace)
    assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2"}


LABEL = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image: Required value"),
        ({"containers": [{**CONTAINER, "name": "A"}]}, f'spec.containers[0].name: Invalid value: "A": {LABEL}'),
        ({"containers": [CONTAINER, CONTAINER]}, 'spec.containers[1].name: Duplicate value: "a"'),
        (
            {"restartPolicy": "X"},
            'spec.restartPolicy: Unsupported value: "X": supported values: "Always", "OnFailure", "Never"',
        ),
        (
            {"containers": [{**CONTAINER, "ports": [{"containerPort": 0}]}]},
            "spec.containers[0].ports[0].containerPort: Required value",
        ),
        (
            {"containers": [{**CONTAINER, "ports": [{"containerPort": 70000}]}]},
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            {"containers": [{**CONTAINER, "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]},
            'spec.containers[0].volumeMounts[0].name: Not found: "x"',
        ),
        (
            {"containers": [{**CONTAINER, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
            'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        ({"containers": [{**CONTAINER, "env": [{"name": ""}]}]}, "spec.containers[0].env[0].name: Required value"),
        (
            {"containers": [{**CONTAINER, "imagePullPolicy": "X"}]},
            'spec.containers[0].imagePullPolicy: Unsupported value: "X": '
            'supported values: "Always", "IfNotPresent", "Never"',
        ),
        ({"nodeSelector": {"bad key": "v"}}, 'spec.nodeSelector: Invalid value: "bad key"'),
    ],
)
async def test_invalid_pods_are_rejected(client: Client, namespace: str, spec: Object, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(POD, pod("p", spec={"containers": [CONTAINER], **spec}), namespace)
    assert refused.value.message.startswith(f'Pod "p" is invalid: {message}')


async def test_invalid_quantity_is_rejected(client: Client, namespace: str) -> None:
    spec = {"containers": [{**CONTAINER, "resources": {"requests": {"cpu": "x"}}}]}
    with pytest.raises(ApiError, match=r"quantities must match the regular expression") as refused:
        await client.create(POD, pod("p", spec=spec), namespace)
    assert refused.value.code == 400


async def test_binding_assigns_a_pod_to_a_node(client: Client, namespace: str) -> None:
    """A scheduler creates this binding."""
    await client.create(POD, pod("p"), namespace)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    answer = await client.create(POD, binding, namespace, name="p", subresource="binding")
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    bound = await client.get(POD, "p", namespace)
    assert bound["spec"]["nodeName"] == "n1"
    [scheduled] = [each for each in bound["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert scheduled["status"] == "True"
    with pytest.raises(ApiError) as refused:
        await client.create(POD, binding, namespace, name="p", subresource="binding")
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    assert "pod p is already assigned to node" in refused.value.message


async def test_eviction_deletes_a_pod_with_its_grace_period(client: Client, namespace: str) -> None:
    """Deletion by another name, with the grace of the pod; where a disruption budget allows it."""
    await client.create(POD, pod("p", spec={"nodeName": "n1"}), namespace)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": namespace},
        "deleteOptions": {"gracePeriodSeconds": 5},
    }
    answer = await client.create(POD, eviction, namespace, name="p", subresource="eviction")
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert (await client.get(POD, "p", namespace))["metadata"]["deletionGracePeriodSeconds"] == 5
    await client.delete(POD, "p", namespace, grace_period_seconds=0)
