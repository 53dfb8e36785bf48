"""Our own four kinds: defaults, required fields, enums, the immutable rule, columns and scaling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import ApplyPatch, Client, MergePatch, StrategicPatch
from sandpool.kube.errors import Invalid, UnsupportedMediaType
from sandpool.testing.objects import new
from tests.support.api_access import ApiEndpoint, Raw

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

pytestmark = pytest.mark.usefixtures("sandbox_kinds")

POD_TEMPLATE: Object = {"spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]}}
SPECS: dict[ResourceType, Object] = {
    SANDBOX: {"podTemplate": POD_TEMPLATE},
    SANDBOX_TEMPLATE: {"podTemplate": POD_TEMPLATE},
    SANDBOX_WARM_POOL: {"sandboxTemplateRef": {"name": "t"}},
    SANDBOX_CLAIM: {"warmPoolRef": {"name": "p"}},
}
VOLUME: Object = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


UNMOUNTED: Object = {
    "spec": {
        "containers": [{**POD_TEMPLATE["spec"]["containers"][0], "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
        "volumes": [{"name": "a", "emptyDir": {}}, {"name": "scratch", "emptyDir": {}}],
    }
}


@pytest.mark.parametrize("type", [SANDBOX, SANDBOX_TEMPLATE], ids=lambda type: type.kind)
async def test_volume_that_no_container_mounts_is_a_warning(
    api: ApiEndpoint, raw: Raw, namespace: str, type: ResourceType
) -> None:
    """A CustomResourceDefinition of Kubernetes has no place for such a rule: there, kubectl shows nothing."""

    async def warnings(method: str, path: str, body: Object, content: str = "application/json") -> tuple[str, ...]:
        answer = await raw(method, path, body=json.dumps(body).encode(), headers={"Content-Type": content})
        assert answer.status in (200, 201), answer.body
        return answer.warnings

    def about(*names: str) -> tuple[str, ...]:
        if api.name == "kubernetes":
            return ()
        return tuple(f'299 - "volume \\"{name}\\" is mounted in no container"' for name in names)

    path, merge = type.path(namespace), "application/merge-patch+json"
    unmounted = new(type, "a", spec={"podTemplate": UNMOUNTED, "volumeClaimTemplates": [VOLUME]})
    assert await warnings("POST", path, unmounted) == about("scratch", "data")
    assert await warnings("POST", path, new(type, "b", spec={"podTemplate": POD_TEMPLATE})) == ()
    added = {"spec": {"podTemplate": UNMOUNTED}}
    assert await warnings("PATCH", f"{path}/b", added, merge) == about("scratch")
    labelled = {"metadata": {"labels": {"a": "b"}}}
    assert await warnings("PATCH", f"{path}/b", labelled, merge) == (), "nothing of it was changed"
    applied = new(type, "c", spec={"podTemplate": UNMOUNTED})
    apply = "application/apply-patch+yaml"
    assert await warnings("PATCH", f"{path}/c?fieldManager=me", applied, apply) == about("scratch")


async def create(client: Client, namespace: str, type: ResourceType, **spec: Any) -> SharedObject:
    return await client.create(type, new(type, "a", spec={**SPECS[type], **spec}), namespace)


@pytest.mark.parametrize(
    ("type", "defaults"),
    [
        (SANDBOX, {"operatingMode": "Running", "shutdownPolicy": "Retain"}),
        (
            SANDBOX_TEMPLATE,
            {
                "networkPolicyManagement": "Managed",
                "envVarsInjectionPolicy": "Disallowed",
                "volumeClaimTemplatesPolicy": "Disallowed",
            },
        ),
        (SANDBOX_WARM_POOL, {"replicas": 1}),
        (SANDBOX_CLAIM, {}),
    ],
    ids=str,
)
async def test_missing_fields_get_their_defaults(
    client: Client, namespace: str, type: ResourceType, defaults: Object
) -> None:
    created = await create(client, namespace, type)
    assert created["spec"] == {**SPECS[type], **defaults}
    assert created["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("type", "field", "given", "stored"),
    [
        (SANDBOX_WARM_POOL, "updateStrategy", {}, {"type": "OnReplenish"}),
        (SANDBOX_CLAIM, "lifecycle", {}, {"shutdownPolicy": "Retain"}),
        (
            SANDBOX_CLAIM,
            "env",
            [{"name": "A", "value": "1"}],
            [{"name": "A", "value": "1"}],
        ),
    ],
)
async def test_nested_fields_get_their_defaults(
    client: Client, namespace: str, type: ResourceType, field: str, given: Any, stored: Any
) -> None:
    created = await create(client, namespace, type, **{field: given})
    assert created["spec"][field] == stored


async def test_ports_of_the_pod_template_get_a_protocol(client: Client, namespace: str) -> None:
    """Ports get their protocol from the schema; what kube-apiserver fills into real pods is not filled in here."""
    container = {"name": "main", "image": "i", "ports": [{"containerPort": 80}]}
    created = await create(client, namespace, SANDBOX, podTemplate={"spec": {"containers": [container]}})
    assert created["spec"]["podTemplate"]["spec"] == {
        "containers": [{**container, "ports": [{"containerPort": 80, "protocol": "TCP"}]}]
    }


@pytest.mark.parametrize(
    ("type", "spec", "field"),
    [
        (SANDBOX, {}, "spec.podTemplate"),
        (SANDBOX, {"podTemplate": {}}, "spec.podTemplate.spec"),
        (SANDBOX, {"podTemplate": {"spec": {}}}, "spec.podTemplate.spec.containers"),
        (
            SANDBOX,
            {"podTemplate": {"spec": {"containers": [{"image": "i"}]}}},
            "spec.podTemplate.spec.containers[0].name",
        ),
        (
            SANDBOX,
            {"podTemplate": POD_TEMPLATE, "volumeClaimTemplates": [{"metadata": {"name": "d"}}]},
            "spec.volumeClaimTemplates[0].spec",
        ),
        (SANDBOX_TEMPLATE, {}, "spec.podTemplate"),
        (SANDBOX_WARM_POOL, {}, "spec.sandboxTemplateRef"),
        (SANDBOX_WARM_POOL, {"sandboxTemplateRef": {}}, "spec.sandboxTemplateRef.name"),
        (SANDBOX_CLAIM, {}, "spec.warmPoolRef"),
        (SANDBOX_CLAIM, {"warmPoolRef": {}}, "spec.warmPoolRef.name"),
        (SANDBOX_CLAIM, {"warmPoolRef": {"name": "p"}, "env": [{"name": "A"}]}, "spec.env[0].value"),
    ],
)
async def test_missing_required_fields_are_rejected(
    client: Client, namespace: str, type: ResourceType, spec: Object, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(type, new(type, "a", spec=spec), namespace)
    assert {"reason": "FieldValueRequired", "message": "Required value", "field": field} in refused.value.details[
        "causes"
    ]


@pytest.mark.parametrize(
    ("type", "spec", "field", "supported"),
    [
        (SANDBOX, {"operatingMode": "X"}, "operatingMode", ["Running", "Suspended"]),
        (SANDBOX, {"shutdownPolicy": "X"}, "shutdownPolicy", ["Delete", "Retain"]),
        (SANDBOX_TEMPLATE, {"networkPolicyManagement": "X"}, "networkPolicyManagement", ["Managed", "Unmanaged"]),
        (
            SANDBOX_TEMPLATE,
            {"envVarsInjectionPolicy": "X"},
            "envVarsInjectionPolicy",
            ["Allowed", "Overrides", "Disallowed"],
        ),
        (
            SANDBOX_TEMPLATE,
            {"volumeClaimTemplatesPolicy": "X"},
            "volumeClaimTemplatesPolicy",
            ["Disallowed", "Allowed", "Overrides"],
        ),
        (
            SANDBOX_WARM_POOL,
            {"updateStrategy": {"type": "X"}},
            "updateStrategy.type",
            ["Recreate", "OnReplenish", "RollingUpdate"],
        ),
        (
            SANDBOX_CLAIM,
            {"lifecycle": {"shutdownPolicy": "X"}},
            "lifecycle.shutdownPolicy",
            ["Delete", "DeleteForeground", "Retain"],
        ),
    ],
)
async def test_enums_are_enforced(
    client: Client, namespace: str, type: ResourceType, spec: Object, field: str, supported: list[str]
) -> None:
    with pytest.raises(Invalid) as refused:
        await create(client, namespace, type, **spec)
    values = ", ".join(f'"{value}"' for value in supported)
    assert refused.value.details["causes"][0] == {
        "reason": "FieldValueNotSupported",
        "message": f'Unsupported value: "X": supported values: {values}',
        "field": f"spec.{field}",
    }


@pytest.mark.parametrize(
    ("type", "spec", "field"),
    [
        (SANDBOX_WARM_POOL, {"replicas": -1}, "spec.replicas"),
        (SANDBOX_WARM_POOL, {"replicas": "2"}, "spec.replicas"),
        (SANDBOX_CLAIM, {"lifecycle": {"ttlSecondsAfterFinished": -1}}, "spec.lifecycle.ttlSecondsAfterFinished"),
        (SANDBOX_CLAIM, {"lifecycle": {"shutdownTime": "soon"}}, "spec.lifecycle.shutdownTime"),
        (SANDBOX, {"shutdownTime": "soon"}, "spec.shutdownTime"),
        (SANDBOX, {"service": "yes"}, "spec.service"),
    ],
)
async def test_invalid_values_are_rejected(
    client: Client, namespace: str, type: ResourceType, spec: Object, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await create(client, namespace, type, **spec)
    assert refused.value.details["causes"][0]["field"] == field


@pytest.mark.parametrize(
    ("type", "spec"),
    [
        (SANDBOX, {"service": False, "shutdownTime": "2030-01-01T00:00:00Z", "shutdownPolicy": "Delete"}),
        (SANDBOX, {"volumeClaimTemplates": [VOLUME], "operatingMode": "Suspended"}),
        (SANDBOX_TEMPLATE, {"networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}}),
        (SANDBOX_WARM_POOL, {"replicas": 0, "updateStrategy": {"type": "Recreate"}}),
        (
            SANDBOX_WARM_POOL,
            {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 1}}},
        ),
        (
            SANDBOX_CLAIM,
            {
                "lifecycle": {"shutdownPolicy": "DeleteForeground", "ttlSecondsAfterFinished": 0},
                "additionalPodMetadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                "env": [{"name": "A", "value": "1", "containerName": "main"}],
                "volumeClaimTemplates": [VOLUME],
            },
        ),
    ],
)  # fmt: skip
async def test_valid_values_are_stored_unchanged(
    client: Client, namespace: str, type: ResourceType, spec: Object
) -> None:
    created = await create(client, namespace, type, **spec)
    assert {key: created["spec"][key] for key in spec} == spec


async def test_unknown_fields_are_pruned(client: Client, namespace: str) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "i", "unknown": 1}]}, "metadata": {"name": "x"}}
    created = await create(client, namespace, SANDBOX, podTemplate=template, unknown=1)
    assert created["spec"]["podTemplate"] == {"spec": {"containers": [{"name": "main", "image": "i"}]}, "metadata": {}}
    assert "unknown" not in created["spec"]


# The immutable rule


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([VOLUME], []),
        ([VOLUME], None),
        ([VOLUME], [{**VOLUME, "metadata": {"name": "other"}}]),
        (None, [VOLUME]),
    ],
    ids=["emptied", "removed", "changed", "added"],
)
async def test_volume_claim_templates_are_immutable(client: Client, namespace: str, before: Any, after: Any) -> None:
    spec = {} if before is None else {"volumeClaimTemplates": before}
    created = await create(client, namespace, SANDBOX, **spec)
    with pytest.raises(Invalid) as refused:
        await client.patch(SANDBOX, "a", MergePatch({"spec": {"volumeClaimTemplates": after}}), namespace)
    assert "volumeClaimTemplates is immutable" in refused.value.message
    assert refused.value.details["causes"][0]["field"] == "spec"
    assert await client.get(SANDBOX, "a", namespace) == created


async def test_other_fields_of_a_sandbox_are_mutable(client: Client, namespace: str) -> None:
    await create(client, namespace, SANDBOX, volumeClaimTemplates=[VOLUME])
    changed = {"spec": {"containers": [{"name": "other", "image": "j"}]}}
    patch = MergePatch({"spec": {"podTemplate": changed, "service": True, "operatingMode": "Suspended"}})
    patched = await client.patch(SANDBOX, "a", patch, namespace)
    assert patched["spec"]["podTemplate"] == changed
    assert patched["metadata"]["generation"] == 2


async def test_volume_claim_templates_are_immutable_for_apply(client: Client, namespace: str) -> None:
    wanted = new(SANDBOX, "a", spec={**SPECS[SANDBOX], "volumeClaimTemplates": [VOLUME]})
    await client.patch(SANDBOX, "a", ApplyPatch(wanted), namespace, field_manager="one")
    with pytest.raises(Invalid, match=r"volumeClaimTemplates is immutable"):
        await client.patch(
            SANDBOX, "a", ApplyPatch(new(SANDBOX, "a", spec=SPECS[SANDBOX])), namespace, field_manager="one"
        )


# Status and scale


async def test_status_is_written_through_its_subresource(client: Client, namespace: str) -> None:
    await create(client, namespace, SANDBOX)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "DependenciesReady",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    status = {
        "conditions": [condition],
        "podIPs": ["10.0.0.1"],
        "nodeName": "n",
        "selector": "x=y",
        "service": "a",
        "serviceFQDN": "a.b",
    }
    patched = await client.patch(SANDBOX, "a", MergePatch({"status": status}), namespace, subresource="status")
    assert patched["status"] == status


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"status": "Maybe"}, "status.conditions[0].status"),
        ({"reason": "not a reason"}, "status.conditions[0].reason"),
        ({"reason": ""}, "status.conditions[0].reason"),
        ({"lastTransitionTime": "yesterday"}, "status.conditions[0].lastTransitionTime"),
    ],
)
async def test_conditions_are_validated(client: Client, namespace: str, change: Object, field: str) -> None:
    await create(client, namespace, SANDBOX_CLAIM)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        **change,
    }
    with pytest.raises(Invalid) as refused:
        await client.patch(
            SANDBOX_CLAIM, "a", MergePatch({"status": {"conditions": [condition]}}), namespace, subresource="status"
        )
    assert refused.value.details["causes"][0]["field"] == field


async def test_template_has_no_status(client: Client, namespace: str) -> None:
    created = await client.create(
        SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, "a", spec=SPECS[SANDBOX_TEMPLATE], status={"x": 1}), namespace
    )
    assert "status" not in created


async def test_pool_is_scaled_through_its_subresource(client: Client, namespace: str) -> None:
    await create(client, namespace, SANDBOX_WARM_POOL, replicas=2)
    status = {"replicas": 2, "readyReplicas": 1, "selector": "pool=a"}
    await client.patch(SANDBOX_WARM_POOL, "a", MergePatch({"status": status}), namespace, subresource="status")
    scale = await client.get(SANDBOX_WARM_POOL, "a", namespace, subresource="scale")
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 2, "selector": "pool=a"})
    await client.patch(SANDBOX_WARM_POOL, "a", MergePatch({"spec": {"replicas": 5}}), namespace, subresource="scale")
    pool = await client.get(SANDBOX_WARM_POOL, "a", namespace)
    assert (pool["spec"]["replicas"], pool["metadata"]["generation"]) == (5, 2)


async def test_strategic_patch_is_unsupported(client: Client, namespace: str) -> None:
    await create(client, namespace, SANDBOX)
    with pytest.raises(UnsupportedMediaType):
        await client.patch(SANDBOX, "a", StrategicPatch({"spec": {"service": True}}), namespace)


# Columns and names


@pytest.mark.parametrize(
    ("type", "columns"),
    [
        (SANDBOX, ["Name", "Ready", "Reason", "Age"]),
        (SANDBOX_CLAIM, ["Name", "Ready", "Sandbox", "Reason", "Age"]),
        (SANDBOX_WARM_POOL, ["Name", "Ready", "Desired", "Age"]),
        (SANDBOX_TEMPLATE, ["Name", "Age"]),
    ],
    ids=str,
)
async def test_tables_have_the_columns_of_the_go_implementation(
    raw: Raw, client: Client, namespace: str, type: ResourceType, columns: list[str]
) -> None:
    await create(client, namespace, type)
    answer = await raw("GET", type.path(namespace), headers={"Accept": TABLE})
    table = answer.json()
    assert [column["name"] for column in table["columnDefinitions"]] == columns
    assert len(table["rows"][0]["cells"]) == len(columns)


async def test_table_of_a_claim_has_ready_sandbox_and_reason(raw: Raw, client: Client, namespace: str) -> None:
    await create(client, namespace, SANDBOX_CLAIM)
    conditions = [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Bound",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    status = {"conditions": conditions, "sandbox": {"name": "pool-x1", "podIPs": ["10.0.0.1"]}}
    await client.patch(SANDBOX_CLAIM, "a", MergePatch({"status": status}), namespace, subresource="status")
    answer = await raw("GET", SANDBOX_CLAIM.path(namespace, "a"), headers={"Accept": TABLE})
    [row] = answer.json()["rows"]
    assert row["cells"][:4] == ["a", "True", "pool-x1", "Bound"]


@pytest.mark.parametrize(
    ("type", "short_names", "subresources"),
    [
        (SANDBOX, ["sandbox"], ["status"]),
        (SANDBOX_CLAIM, ["sandboxclaim"], ["status"]),
        (SANDBOX_TEMPLATE, ["sandboxtemplate"], []),
        (SANDBOX_WARM_POOL, ["swp"], ["scale", "status"]),
    ],
    ids=str,
)
async def test_discovery_has_short_names_and_categories(
    raw: Raw, type: ResourceType, short_names: list[str], subresources: list[str]
) -> None:
    listed = (await raw("GET", type.base_path)).json()["resources"]
    [resource] = [each for each in listed if each["name"] == type.plural]
    assert (resource["kind"], resource["namespaced"], resource["shortNames"]) == (type.kind, True, short_names)
    prefix = type.plural + "/"
    found = sorted(each["name"].removeprefix(prefix) for each in listed if each["name"].startswith(prefix))
    assert found == subresources


@pytest.mark.parametrize("type", [SANDBOX, SANDBOX_CLAIM], ids=str)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_v1alpha1_is_not_served(
    raw: Raw, api: ApiEndpoint, namespace: str, type: ResourceType, method: str
) -> None:
    """The embedded API names the served version. kube-apiserver gives its plain text, also where it passes requests for
    these groups on to our server: it looks for a registered version first."""
    path = type.path(namespace).replace(type.version, "v1alpha1")
    body = b"{}" if method == "POST" else None
    answer = await raw(method, path, body=body, headers={"Content-Type": "application/json"})
    assert answer.status == 404
    if api.name == "http":
        assert f"use {type.group}/v1beta1" in answer.json()["message"]
    else:
        assert (answer.content_type.split(";")[0], answer.body) == ("text/plain", b"404 page not found\n")
