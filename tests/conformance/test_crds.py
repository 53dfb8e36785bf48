"""CustomResourceDefinitions: establishing, refusing, changing and removing custom kinds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import pytest_asyncio

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, Invalid, NotFound, TooManyRequests
from sandpool.kube.transport import Request
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.api_access import Raw
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import condition, install
from tests.support.extra_verbs import replace

CRD = CUSTOM_RESOURCE_DEFINITION


@pytest_asyncio.fixture(loop_scope="session")
async def group(namespace: str) -> str:
    """A unique API group."""
    return f"{namespace}.example.com"


async def served(client: Client, type: ResourceType) -> bool:
    try:
        await client.list(type)
    except (NotFound, TooManyRequests):
        return False
    return True


async def test_definition_gets_defaults_and_is_established(client: Client, group: str) -> None:
    type = custom_type(group)
    wanted = definition(type)
    wanted["spec"]["names"] = {"plural": "widgets", "kind": "Widget"}
    installed = await install(client, wanted)
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    assert installed["spec"]["names"] == names
    assert installed["spec"]["conversion"] == {"strategy": "None"}
    assert installed["status"]["acceptedNames"] == names
    assert installed["status"]["storedVersions"] == ["v1"]
    assert [
        {key: value for key, value in each.items() if key not in ("lastTransitionTime", "observedGeneration")}
        for each in installed["status"]["conditions"]
    ] == [
        {
            "type": "NamesAccepted",
            "status": "True",
            "reason": "NoConflicts",
            "message": "no conflicts found",
        },
        {
            "type": "Established",
            "status": "True",
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]


async def test_objects_of_a_custom_kind_are_served(client: Client, namespace: str, group: str) -> None:
    type = custom_type(group)
    await install(client, definition(type))
    created = await client.create(type, new(type, "a", spec={"any": [1, {"thing": True}]}), namespace)
    assert (created["apiVersion"], created["kind"]) == (f"{group}/v1", "Widget")
    assert created["spec"] == {"any": [1, {"thing": True}]}
    listed = await client.list(type, namespace)
    assert (listed["kind"], listed["items"]) == ("WidgetList", [created])
    await client.delete(type, "a", namespace)


async def test_cluster_scoped_custom_kind_is_served(client: Client, namespace: str, group: str) -> None:
    type = custom_type(group, namespaced=False)
    await install(client, definition(type))
    created = await client.create(type, new(type, "a", spec={}))
    assert "namespace" not in created["metadata"]
    with pytest.raises(NotFound):
        await client.transport.request(Request("GET", f"{type.base_path}/namespaces/{namespace}/{type.plural}"))


async def test_kind_and_version_of_the_body_must_match(client: Client, namespace: str, group: str) -> None:
    type = custom_type(group)
    await install(client, definition(type))
    with pytest.raises(Invalid, match=r'kind: Invalid value: "Other": must be Widget'):
        await client.create(type, {**new(type, "a"), "kind": "Other"}, namespace)
    with pytest.raises(ApiError) as refused:
        await client.create(type, {**new(type, "a"), "apiVersion": f"{group}/v2"}, namespace)
    assert (refused.value.code, refused.value.message) == (
        400,
        f"the API version in the data ({group}/v2) does not match the expected API version ({group}/v1)",
    )


async def test_definition_with_a_taken_kind_is_not_served(client: Client, group: str) -> None:
    """The second definition of a kind exists but is not served."""
    await install(client, definition(custom_type(group)))
    other = ResourceType(group, "v1", "Widget", "otherwidgets", list_kind="OtherList", singular="otherwidget")
    await client.create(CRD, definition(other))

    async def refused() -> SharedObject | None:
        current = await client.get(CRD, other.group_resource)
        return current if condition(current, "NamesAccepted") == "False" else None

    current = await until(refused)
    assert current is not None
    [accepted] = [each for each in current["status"]["conditions"] if each["type"] == "NamesAccepted"]
    assert (accepted["reason"], accepted["message"]) == ("KindConflict", '"Widget" is already in use')
    assert condition(current, "Established") == "False"
    assert not await served(client, other)


async def test_deleting_a_definition_deletes_its_objects(client: Client, namespace: str, group: str) -> None:
    type = custom_type(group)
    await install(client, definition(type))
    await client.create(type, new(type, "a", spec={}), namespace)
    await client.delete(CRD, type.group_resource)

    async def gone() -> bool:
        try:
            await client.get(CRD, type.group_resource)
        except NotFound:
            return True
        return False

    await until(gone, within=60)

    async def unserved() -> bool:
        return not await served(client, type)

    await until(unserved, within=60)
    await install(client, definition(type))
    assert (await client.list(type, namespace))["items"] == []


async def test_finalizers_of_objects_delay_the_deletion_of_the_definition(
    client: Client, namespace: str, group: str
) -> None:
    type = custom_type(group)
    await install(client, definition(type))
    held = new(type, "held", metadata={"finalizers": ["example.com/hold"]}, spec={})
    await client.create(type, held, namespace)
    await client.delete(CRD, type.group_resource)

    async def deleting() -> bool:
        return "deletionTimestamp" in (await client.get(type, "held", namespace))["metadata"]

    await until(deleting, within=60)
    current = await client.get(CRD, type.group_resource)
    assert current["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert condition(current, "Terminating") == "True"
    with pytest.raises(ApiError) as refused:
        await client.create(type, new(type, "new", spec={}), namespace)
    assert refused.value.code in (403, 405)
    await client.patch(type, "held", MergePatch({"metadata": {"finalizers": None}}), namespace)

    async def gone() -> bool:
        return not await served(client, type)

    await until(gone, within=60)


async def test_changed_schema_takes_effect(client: Client, namespace: str, group: str) -> None:
    type = custom_type(group)
    spec: Object = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wanted = definition(type, {"type": "object", "properties": {"spec": spec}})
    await install(client, wanted)
    await client.create(type, new(type, "before", spec={"n": 50}), namespace)
    changed = copy.deepcopy(wanted)
    properties = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["n"]["maximum"] = 10
    properties["added"] = {"type": "string", "default": "d"}
    await client.patch(CRD, type.group_resource, MergePatch({"spec": changed["spec"]}))

    async def refuses() -> bool:
        try:
            await client.create(type, new(type, "probe", spec={"n": 11}), namespace, dry_run=True)
        except Invalid:
            return True
        except TooManyRequests:
            pass
        return False

    await until(refuses)
    before = await client.get(type, "before", namespace)
    assert before["spec"] == {"n": 50, "added": "d"}, "what is stored gets the new default and keeps the old value"


async def test_replacing_a_definition_with_itself_changes_nothing(client: Client, group: str) -> None:
    """kubectl apply and replace of an unchanged manifest change nothing."""
    type = custom_type(group)
    installed = await install(client, definition(type))
    again = await replace(
        client,
        CRD,
        {**definition(type), "metadata": installed["metadata"]},
        fieldManager="sandpool",
    )
    assert again["metadata"]["generation"] == 1
    assert condition(again, "Established") == "True"


async def test_status_of_a_created_definition_is_ignored(client: Client, group: str) -> None:
    type = custom_type(group)
    wanted = definition(type)
    wanted["status"] = {
        "acceptedNames": {"plural": "x", "kind": "X"},
        "conditions": [{"type": "Established", "status": "True", "lastTransitionTime": "2001-01-01T00:00:00Z"}],
        "storedVersions": ["v9"],
    }
    created = await client.create(CRD, wanted)
    assert created["status"]["storedVersions"] == ["v1"]
    assert not created["status"]["conditions"]


# Definitions that are refused


def change(path: str, value: Any) -> Callable[[Object], None]:
    """A change of a definition at a dotted path; None removes."""

    def apply(object: Object) -> None:
        *parents, last = path.split(".")
        target: Any = object
        for parent in parents:
            target = target[int(parent)] if parent.isdigit() else target[parent]
        if value is None:
            del target[last]
        else:
            target[last] = value

    return apply


SCHEMA = "spec.versions.0.schema.openAPIV3Schema"
AT = "spec.validation.openAPIV3Schema"


BAD = [
    *("name", "no-schema", "no-storage-version", "scope", "kind", "plural", "version", "preserve-unknown-fields"),
    *("no-type-at-root", "no-type", "unknown-type", "no-items", "bad-default", "no-map-keys", "both-properties"),
]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("metadata.name", "wrong", 'metadata.name: Invalid value: "wrong": must be spec.names.plural+"."+spec.group'),
        ("spec.versions.0.schema", None, "spec.versions[0].schema.openAPIV3Schema: Required value"),
        ("spec.versions.0.storage", False, "must have exactly one version marked as storage version"),
        ("spec.scope", "Frob", 'spec.scope: Unsupported value: "Frob": supported values: "Cluster", "Namespaced"'),
        ("spec.names.kind", "bad kind", "spec.names.kind: Invalid value"),
        ("spec.names.plural", "Upper", "spec.names.plural: Invalid value"),
        ("spec.versions.0.name", "1", "spec.versions[0].name: Invalid value"),
        ("spec.preserveUnknownFields", True, "spec.preserveUnknownFields: Invalid value: true: cannot set to true"),
        (f"{SCHEMA}.type", None, f"{AT}.type: Required value: must not be empty at the root"),
        (
            f"{SCHEMA}.properties.spec",
            {"properties": {}},
            f"{AT}.properties[spec].type: Required value: must not be empty for specified object fields",
        ),
        (
            f"{SCHEMA}.properties.spec",
            {"type": "frob"},
            f'{AT}.properties[spec].type: Unsupported value: "frob": '
            'supported values: "array", "boolean", "integer", "number", "object", "string"',
        ),
        (
            f"{SCHEMA}.properties.spec",
            {"type": "array"},
            f"{AT}.properties[spec].items: Required value: must be specified",
        ),
        (
            f"{SCHEMA}.properties.spec",
            {"type": "integer", "default": "x"},
            f'{AT}.properties[spec].default: Invalid value: "string":  in body must be of type integer: "string"',
        ),
        (
            f"{SCHEMA}.properties.spec",
            {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"},
            "x-kubernetes-list-map-keys: Required value",
        ),
        (
            f"{SCHEMA}.properties.spec",
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "additionalProperties": {"type": "string"},
            },
            f"{AT}.properties[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual",
        ),
    ],
    ids=BAD,
)
async def test_invalid_definitions_are_rejected(
    client: Client, group: str, path: str, value: Any, message: str
) -> None:
    wanted = copy.deepcopy(definition(custom_type(group)))
    change(path, value)(wanted)
    with pytest.raises(Invalid) as refused:
        await client.create(CRD, wanted)
    assert message in refused.value.message
    assert refused.value.message.startswith(
        f'CustomResourceDefinition.apiextensions.k8s.io "{wanted["metadata"]["name"]}" is invalid: '
    )


async def test_group_must_be_a_domain(client: Client) -> None:
    with pytest.raises(Invalid, match=r"spec.group: Invalid value: .*should be a domain with at least one dot"):
        await client.create(CRD, definition(custom_type("nodots")))


async def test_scope_is_immutable(client: Client, group: str) -> None:
    type = custom_type(group)
    await install(client, definition(type))
    with pytest.raises(Invalid, match=r'spec.scope: Invalid value: "Cluster": field is immutable'):
        await client.patch(CRD, type.group_resource, MergePatch({"spec": {"scope": "Cluster"}}))


async def test_groups_of_kubernetes_are_protected(client: Client) -> None:
    with pytest.raises(Invalid, match=r"protected groups must have approval annotation"):
        await client.create(CRD, definition(custom_type("conformance.k8s.io")))


# Discovery


async def test_discovery_lists_a_new_custom_kind(raw: Raw, client: Client, group: str) -> None:
    type = ResourceType(group, "v1", "Widget", "widgets", short_names=("wi", "wid"), categories=("all", "things"))
    await install(client, definition(type, subresources=("status", "scale")))

    async def resources() -> list[Any] | None:
        answer = await raw("GET", f"/apis/{group}/v1")
        found: list[Any] | None = answer.json()["resources"] if answer.status == 200 else None
        return found

    listed = await until(resources)
    assert listed is not None
    by_name = {each["name"]: each for each in listed}
    assert by_name.keys() == {"widgets", "widgets/status", "widgets/scale"}
    widgets = by_name["widgets"]
    assert (widgets["kind"], widgets["singularName"], widgets["namespaced"]) == ("Widget", "widget", True)
    assert widgets["shortNames"] == ["wi", "wid"]
    assert widgets["categories"] == ["all", "things"]
    assert set(widgets["verbs"]) == {
        "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
    }  # fmt: skip
    assert by_name["widgets/scale"]["kind"] == "Scale"
    assert (by_name["widgets/scale"]["group"], by_name["widgets/scale"]["version"]) == ("autoscaling", "v1")
    assert set(by_name["widgets/status"]["verbs"]) == {"get", "patch", "update"}
    groups = (await raw("GET", "/apis")).json()["groups"]
    assert {
        "name": group,
        "versions": [{"groupVersion": f"{group}/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": f"{group}/v1", "version": "v1"},
    } in groups
