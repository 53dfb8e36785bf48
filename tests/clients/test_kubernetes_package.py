"""The official Python client: typed objects, custom objects, watches, the dynamic client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import kubernetes as typed
import pytest
from kubernetes.client.exceptions import ApiException

from sandpool.bench.server_process import ServerProcess
from tests.support.control_plane import ControlPlane

kubernetes: Any = typed  # its type hints want models where it takes plain dictionaries just as well
Server = ServerProcess | ControlPlane
GROUP = {"group": "extensions.agents.x-k8s.io", "version": "v1beta1", "plural": "sandboxclaims"}


@pytest.fixture
def api(server: Server) -> Iterator[Any]:
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    with kubernetes.client.ApiClient(configuration) as client:
        yield client


@pytest.fixture
def core(api: Any, namespace: str) -> Any:
    """The core API, with a fresh namespace."""
    core = kubernetes.client.CoreV1Api(api)
    core.create_namespace({"metadata": {"name": namespace}})
    return core


@pytest.fixture
def claims(api: Any, core: Any, target: str, sandbox_definitions: list[Any]) -> Any:
    """The custom objects API, where our kinds are served."""
    if target == "kubernetes":
        extensions = kubernetes.client.ApiextensionsV1Api(api)
        for definition in sandbox_definitions:
            try:
                extensions.create_custom_resource_definition(definition)
            except ApiException as error:
                assert error.reason == "Conflict"
    claims = kubernetes.client.CustomObjectsApi(api)
    deadline = time.monotonic() + 30
    while True:
        try:
            claims.list_cluster_custom_object(**GROUP)
        except ApiException:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return claims


def claim(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {"name": name, "labels": {"agents.x-k8s.io/created-by": "python-client"}},
        "spec": {"warmPoolRef": {"name": "python"}},
    }


def test_typed_objects_are_created_changed_and_deleted(core: Any, namespace: str) -> None:
    metadata = kubernetes.client.V1ObjectMeta(name="settings", labels={"team": "red"})
    created = core.create_namespaced_config_map(
        namespace, kubernetes.client.V1ConfigMap(metadata=metadata, data={"colour": "red"})
    )
    assert (created.metadata.name, created.data) == ("settings", {"colour": "red"})
    core.patch_namespaced_config_map("settings", namespace, {"data": {"size": "large"}})
    found = core.read_namespaced_config_map("settings", namespace)
    assert found.data == {"colour": "red", "size": "large"}
    found.data = {"size": "small"}
    replaced = core.replace_namespaced_config_map("settings", namespace, found)
    assert replaced.data == {"size": "small"}
    listed = core.list_namespaced_config_map(namespace, label_selector="team=red")
    assert [item.metadata.name for item in listed.items] == ["settings"]
    core.delete_namespaced_config_map("settings", namespace)
    with pytest.raises(ApiException) as refused:
        core.read_namespaced_config_map("settings", namespace)
    assert refused.value.status == 404


def test_pods_satisfy_the_models_of_the_client(core: Any, namespace: str) -> None:
    """The response must satisfy the models of the client."""
    container = kubernetes.client.V1Container(
        name="main",
        image="example.com/i:1",
        ports=[kubernetes.client.V1ContainerPort(container_port=80)],
        resources=kubernetes.client.V1ResourceRequirements(limits={"cpu": "1", "memory": "64Mi"}),
        liveness_probe=kubernetes.client.V1Probe(http_get=kubernetes.client.V1HTTPGetAction(path="/", port=80)),
    )
    pod = kubernetes.client.V1Pod(
        metadata=kubernetes.client.V1ObjectMeta(name="p"),
        spec=kubernetes.client.V1PodSpec(containers=[container], node_name="n1"),
    )
    created = core.create_namespaced_pod(namespace, pod)
    assert (created.status.phase, created.spec.restart_policy) == ("Pending", "Always")
    status = {
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "main", "ready": True, "restartCount": 0, "image": "i", "imageID": "x", "state": {}}
            ],
        }
    }
    core.patch_namespaced_pod_status("p", namespace, status)
    [found] = core.list_namespaced_pod(namespace, field_selector="status.phase=Running").items
    assert (found.status.pod_ip, found.status.container_statuses[0].ready) == ("10.0.0.1", True)
    deleted = core.delete_namespaced_pod("p", namespace, grace_period_seconds=0)
    assert deleted.metadata.name == "p"


def test_lists_are_read_in_pages(core: Any, namespace: str) -> None:
    for name in "abc":
        core.create_namespaced_secret(namespace, {"metadata": {"name": name}, "stringData": {"k": name}})
    first = core.list_namespaced_secret(namespace, limit=2)
    assert [item.metadata.name for item in first.items] == ["a", "b"]
    assert first.metadata.remaining_item_count == 1
    rest = core.list_namespaced_secret(namespace, limit=2, _continue=first.metadata._continue)
    assert [item.metadata.name for item in rest.items] == ["c"]
    core.delete_collection_namespaced_secret(namespace, label_selector="nothing=here")
    core.delete_collection_namespaced_secret(namespace)
    assert core.list_namespaced_secret(namespace).items == []


def test_errors_have_status_and_reason(core: Any, namespace: str) -> None:
    core.create_namespaced_secret(namespace, {"metadata": {"name": "a"}})
    with pytest.raises(ApiException) as refused:
        core.create_namespaced_secret(namespace, {"metadata": {"name": "a"}})
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert "AlreadyExists" in str(refused.value.body)


def test_claims_are_created_patched_and_deleted(claims: Any, namespace: str) -> None:
    """The life of a claim as the agent-sandbox client lives it."""
    created = claims.create_namespaced_custom_object(namespace=namespace, body=claim("mine"), **GROUP)
    assert created["metadata"]["uid"]
    patched = claims.patch_namespaced_custom_object(
        namespace=namespace,
        name="mine",
        body={"spec": {"additionalPodMetadata": {"annotations": {"a": "b"}}}},
        **GROUP,
    )
    assert patched["spec"]["additionalPodMetadata"] == {"annotations": {"a": "b"}}
    listed = claims.list_namespaced_custom_object(
        namespace=namespace, label_selector="agents.x-k8s.io/created-by=python-client", **GROUP
    )
    assert [item["metadata"]["name"] for item in listed["items"]] == ["mine"]
    body = {"preconditions": {"uid": created["metadata"]["uid"]}}
    claims.delete_namespaced_custom_object(namespace=namespace, name="mine", body=body, **GROUP)
    with pytest.raises(ApiException) as refused:
        claims.get_namespaced_custom_object(namespace=namespace, name="mine", **GROUP)
    assert refused.value.status == 404


def test_watch_from_the_creation_shows_a_claim_that_is_ready_early(claims: Any, namespace: str) -> None:
    """It may become ready before the watch opens: a watch from the version of the creation shows it anyway."""
    created = claims.create_namespaced_custom_object(namespace=namespace, body=claim("mine"), **GROUP)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Bound",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    claims.patch_namespaced_custom_object_status(
        namespace=namespace,
        name="mine",
        body={"status": {"conditions": [condition], "sandbox": {"name": "python-x7"}}},
        **GROUP,
    )
    watch = kubernetes.watch.Watch()
    for event in watch.stream(
        claims.list_namespaced_custom_object,
        namespace=namespace,
        field_selector="metadata.name=mine",
        resource_version=created["metadata"]["resourceVersion"],
        timeout_seconds=30,
        **GROUP,
    ):
        assert event["type"] == "MODIFIED"
        assert event["object"]["status"]["sandbox"]["name"] == "python-x7"
        watch.stop()


def test_watch_yields_events(core: Any, namespace: str) -> None:
    start = core.list_namespaced_secret(namespace).metadata.resource_version

    def write() -> None:
        core.create_namespaced_secret(namespace, {"metadata": {"name": "a"}})
        core.patch_namespaced_secret("a", namespace, {"metadata": {"labels": {"l": "1"}}})
        core.delete_namespaced_secret("a", namespace)

    writer = threading.Thread(target=write)
    writer.start()
    watch = kubernetes.watch.Watch()
    seen = []
    for event in watch.stream(core.list_namespaced_secret, namespace, resource_version=start, timeout_seconds=30):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            watch.stop()
    writer.join()
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_watch_ends_after_its_timeout(core: Any, namespace: str) -> None:
    watch = kubernetes.watch.Watch()
    assert list(watch.stream(core.list_namespaced_secret, namespace, timeout_seconds=1)) == []


def test_dynamic_client_works(api: Any, core: Any, namespace: str) -> None:
    dynamic = kubernetes.dynamic.DynamicClient(api)
    config_maps = dynamic.resources.get(api_version="v1", kind="ConfigMap")
    body = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": "1"}}
    config_maps.create(body=body, namespace=namespace)
    config_maps.patch(
        name="a", namespace=namespace, body={"data": {"k": "2"}}, content_type="application/merge-patch+json"
    )
    assert config_maps.get(name="a", namespace=namespace).data.k == "2"
    applied = config_maps.server_side_apply(
        body={**body, "data": {"k": "3"}}, namespace=namespace, field_manager="test", force_conflicts=True
    )
    assert applied.data.k == "3"
    deployments = dynamic.resources.get(api_version="apps/v1", kind="Deployment")
    assert deployments.get(namespace=namespace).items == []
    config_maps.delete(name="a", namespace=namespace)


def test_version_and_groups_are_read(api: Any, core: Any, namespace: str) -> None:
    assert kubernetes.client.VersionApi(api).get_code().major == "1"
    names = {group.name for group in kubernetes.client.ApisApi(api).get_api_versions().groups}
    assert {"apps", "rbac.authorization.k8s.io"} <= names
    review = kubernetes.client.AuthorizationV1Api(api).create_self_subject_access_review(
        {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": namespace}}}
    )
    assert review.status.allowed is True
    lease = kubernetes.client.CoordinationV1Api(api).create_namespaced_lease(
        namespace, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 5}}
    )
    assert lease.spec.holder_identity == "me"
