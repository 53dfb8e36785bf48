"""Authorization: denials, roles and bindings."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from sandpool.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINTS,
    NODE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SUBJECT_ACCESS_REVIEW,
)
from sandpool.api.resource import Object
from sandpool.kube.client import ApplyPatch, Client, MergePatch
from sandpool.kube.errors import Forbidden, Invalid, NotFound
from sandpool.kube.transport import Request
from sandpool.testing.objects import new
from sandpool.testing.waiting import drain, until
from tests.support.api_access import ApiEndpoint, Raw
from tests.support.extra_verbs import delete_collection, replace

RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def alice(api: ApiEndpoint) -> Client:
    """A user with only the permissions of all authenticated users."""
    return api.client_for("alice")


def rule(resources: str, verbs: str, *, group: str = "", names: str = "") -> Object:
    made: Object = {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
    if names:
        made["resourceNames"] = names.split()
    return made


def bound(role: str, *, kind: str = "Role", **subject: str) -> Object:
    return {
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": "alice", **subject}],
    }


async def allowed(client: Client, user: str, verb: str, resource: str, namespace: str = "", **more: Any) -> bool:
    attributes = {"verb": verb, "resource": resource, "namespace": namespace, **more}
    groups = attributes.pop("groups", [])
    spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
    review = await client.create(SUBJECT_ACCESS_REVIEW, new(SUBJECT_ACCESS_REVIEW, None, spec=spec))
    answer: bool = review["status"]["allowed"]
    return answer


# Refusals


@pytest.mark.parametrize(
    ("attempt", "message", "details"),
    [
        (
            lambda client, ns: client.get(CONFIG_MAP, "a", ns),
            'configmaps "a" is forbidden: User "alice" cannot get resource "configmaps" in API group "" in the '
            'namespace "{ns}"',
            {"name": "a", "kind": "configmaps"},
        ),
        (
            lambda client, ns: client.list(CONFIG_MAP, ns),
            'configmaps is forbidden: User "alice" cannot list resource "configmaps" in API group "" in the '
            'namespace "{ns}"',
            {"kind": "configmaps"},
        ),
        (
            lambda client, ns: client.list(CONFIG_MAP),
            'configmaps is forbidden: User "alice" cannot list resource "configmaps" in API group "" at the '
            "cluster scope",
            {"kind": "configmaps"},
        ),
        (
            lambda client, ns: drain(client.watch(CONFIG_MAP, ns, timeout_seconds=1)),
            'configmaps is forbidden: User "alice" cannot watch resource "configmaps" in API group "" in the '
            'namespace "{ns}"',
            {"kind": "configmaps"},
        ),
        (
            lambda client, ns: client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), ns),
            'configmaps is forbidden: User "alice" cannot create resource "configmaps" in API group "" in the '
            'namespace "{ns}"',
            {"kind": "configmaps"},
        ),
        (
            lambda client, ns: replace(client, CONFIG_MAP, new(CONFIG_MAP, "a"), ns),
            'configmaps "a" is forbidden: User "alice" cannot update resource "configmaps" in API group "" in the '
            'namespace "{ns}"',
            {"name": "a", "kind": "configmaps"},
        ),
        (
            lambda client, ns: client.patch(DEPLOYMENT, "a", MergePatch({}), ns, subresource="scale"),
            'deployments.apps "a" is forbidden: User "alice" cannot patch resource "deployments/scale" in API group '
            '"apps" in the namespace "{ns}"',
            {"name": "a", "group": "apps", "kind": "deployments"},
        ),
        (
            lambda client, ns: client.delete(POD, "a", ns),
            'pods "a" is forbidden: User "alice" cannot delete resource "pods" in API group "" in the namespace "{ns}"',
            {"name": "a", "kind": "pods"},
        ),
        (
            lambda client, ns: delete_collection(client, SECRET, ns),
            'secrets is forbidden: User "alice" cannot deletecollection resource "secrets" in API group "" in the '
            'namespace "{ns}"',
            {"kind": "secrets"},
        ),
        (
            lambda client, ns: client.get(NODE, "n"),
            'nodes "n" is forbidden: User "alice" cannot get resource "nodes" in API group "" at the cluster scope',
            {"name": "n", "kind": "nodes"},
        ),
        (
            lambda client, ns: client.transport.request(Request("GET", "/metrics")),
            'forbidden: User "alice" cannot get path "/metrics"',
            {},
        ),
    ],
    ids=[
        *("get", "list", "list-all", "watch", "create", "update", "scale", "delete", "deletecollection"),
        *("get-cluster", "path"),
    ],
)
async def test_forbidden_request_names_user_verb_and_resource(
    alice: Client,
    namespace: str,
    attempt: Callable[[Client, str], Awaitable[object]],
    message: str,
    details: Object,
) -> None:
    with pytest.raises(Forbidden) as refused:
        await attempt(alice, namespace)
    assert refused.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message.replace("{ns}", namespace),
        "reason": "Forbidden",
        **({"details": details} if details else {}),
        "code": 403,
    }


async def test_unknown_resource_is_forbidden_without_permission(alice: Client, namespace: str) -> None:
    with pytest.raises(Forbidden):
        await alice.transport.request(Request("GET", f"/api/v1/namespaces/{namespace}/nonsense"))


@pytest.mark.parametrize("path", ["/api", "/apis", "/api/v1", "/version", "/healthz", "/openapi/v3", "/readyz"])
async def test_discovery_is_allowed_for_every_user(raw: Raw, path: str) -> None:
    assert (await raw("GET", path, user="alice")).status == 200


# Roles


async def test_role_grants_in_its_namespace(client: Client, alice: Client, namespace: str) -> None:
    await client.create(ROLE, new(ROLE, "reader", rules=[rule("configmaps", "get list")]), namespace)
    await client.create(ROLE_BINDING, new(ROLE_BINDING, "reader", **bound("reader")), namespace)

    async def may() -> bool:
        try:
            await alice.list(CONFIG_MAP, namespace)
        except Forbidden:
            return False
        return True

    await until(may)
    for refused in (
        alice.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace),
        alice.list(SECRET, namespace),
        alice.list(CONFIG_MAP),
        alice.list(CONFIG_MAP, "default"),
    ):
        with pytest.raises(Forbidden):
            await refused
    await client.delete(ROLE_BINDING, "reader", namespace)

    async def may_not() -> bool:
        return not await may()

    await until(may_not)


@pytest_asyncio.fixture(loop_scope="session")
async def grant(client: Client, namespace: str) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Grants rules to a user invented for the test, everywhere; returns the user's name once it holds."""
    user = f"user-{namespace}"
    made: list[str] = []

    async def grant(*rules: Object) -> str:
        name = f"{namespace}-{len(made)}"
        await client.create(CLUSTER_ROLE, new(CLUSTER_ROLE, name, rules=list(rules)))
        binding = new(CLUSTER_ROLE_BINDING, name, **bound(name, kind="ClusterRole", name=user))
        await client.create(CLUSTER_ROLE_BINDING, binding)
        made.append(name)
        verb, resource = rules[0]["verbs"][0], rules[0]["resources"][0]
        kind, _, subresource = resource.partition("/")
        first = {
            "group": rules[0]["apiGroups"][0].replace("*", "any.example.com"),
            "name": rules[0].get("resourceNames", ["any"])[0],
            "subresource": subresource,
        }
        await until(lambda: allowed(client, user, verb.replace("*", "frob"), kind.replace("*", "any"), **first))
        return user

    yield grant
    for name in made:
        await client.delete(CLUSTER_ROLE_BINDING, name)
        await client.delete(CLUSTER_ROLE, name)


Grant = Callable[..., Awaitable[str]]


async def test_cluster_role_grants_in_all_namespaces(client: Client, grant: Grant, namespace: str) -> None:
    user = await grant(rule("nodes secrets", "get"))
    assert await allowed(client, user, "get", "nodes")
    assert await allowed(client, user, "get", "secrets")
    assert await allowed(client, user, "get", "secrets", namespace)
    assert not await allowed(client, user, "list", "nodes")
    assert not await allowed(client, user, "get", "configmaps")


async def test_wildcard_grants_everything(client: Client, grant: Grant) -> None:
    user = await grant(rule("*", "*", group="*"))
    assert await allowed(client, user, "escalate", "anythings", group="anywhere.example.com", subresource="frob")


async def test_subresources_are_granted_separately(client: Client, grant: Grant) -> None:
    user = await grant(rule("pods/log", "get"), rule("*/scale", "update", group="apps"))
    assert await allowed(client, user, "get", "pods", subresource="log")
    assert not await allowed(client, user, "get", "pods")
    assert not await allowed(client, user, "get", "pods", subresource="exec")
    assert await allowed(client, user, "update", "deployments", group="apps", subresource="scale")
    assert not await allowed(client, user, "update", "deployments", group="apps")


async def test_resource_names_limit_a_rule(client: Client, grant: Grant, namespace: str) -> None:
    user = await grant(rule("secrets", "get", names="one two"))
    assert await allowed(client, user, "get", "secrets", namespace, name="one")
    assert not await allowed(client, user, "get", "secrets", namespace, name="three")
    assert not await allowed(client, user, "get", "secrets", namespace)


async def test_object_that_a_role_names_can_be_listed_and_watched_by_its_name(
    client: Client, alice: Client, namespace: str
) -> None:
    """As `kubectl get NAME -w` and `kubectl wait` do."""
    for name in ("mine", "other"):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, name), namespace)
    named = rule("configmaps", "get list watch deletecollection", names="mine")
    await client.create(ROLE, new(ROLE, "named", rules=[named]), namespace)
    await client.create(ROLE_BINDING, new(ROLE_BINDING, "named", **bound("named")), namespace)

    async def may() -> bool:
        try:
            await alice.get(CONFIG_MAP, "mine", namespace)
        except Forbidden:
            return False
        return True

    await until(may)
    found = await alice.list(CONFIG_MAP, namespace, field_selector="metadata.name=mine")
    assert [each["metadata"]["name"] for each in found["items"]] == ["mine"]
    events = await drain(alice.watch(CONFIG_MAP, namespace, field_selector="metadata.name=mine", timeout_seconds=1))
    assert {event.object["metadata"]["name"] for event in events if event.type != "BOOKMARK"} <= {"mine"}
    for selector in ("metadata.name=other", "metadata.name!=other", "metadata.namespace=mine"):
        with pytest.raises(Forbidden):
            await alice.list(CONFIG_MAP, namespace, field_selector=selector)
        with pytest.raises(Forbidden):
            await drain(alice.watch(CONFIG_MAP, namespace, field_selector=selector, timeout_seconds=1))
    with pytest.raises(Forbidden) as refused:
        await alice.list(SECRET, namespace, field_selector="metadata.name=mine")
    assert str(refused.value).startswith('secrets "mine" is forbidden')
    with pytest.raises(Forbidden):
        await delete_collection(alice, CONFIG_MAP, namespace, fieldSelector="metadata.name=mine")


async def test_api_groups_limit_a_rule(client: Client, grant: Grant) -> None:
    user = await grant(rule("deployments", "get", group="apps"))
    assert await allowed(client, user, "get", "deployments", group="apps")
    assert not await allowed(client, user, "get", "deployments")


async def test_binding_to_a_group_grants_to_its_members(client: Client, namespace: str) -> None:
    await client.create(ROLE, new(ROLE, "r", rules=[rule("secrets", "get")]), namespace)
    binding = new(ROLE_BINDING, "b", **bound("r", kind="Role"))
    binding["subjects"] = [{"kind": "Group", "apiGroup": RBAC, "name": "painters"}]
    await client.create(ROLE_BINDING, binding, namespace)
    await until(lambda: allowed(client, "x", "get", "secrets", namespace, groups=["painters"]))
    assert not await allowed(client, "painters", "get", "secrets", namespace)


async def test_binding_to_a_service_account_grants_to_it(client: Client, namespace: str) -> None:
    await client.create(ROLE, new(ROLE, "r", rules=[rule("secrets", "get")]), namespace)
    binding = new(ROLE_BINDING, "b", **bound("r"))
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "robot", "namespace": namespace}]
    await client.create(ROLE_BINDING, binding, namespace)
    robot = f"system:serviceaccount:{namespace}:robot"
    await until(lambda: allowed(client, robot, "get", "secrets", namespace))
    assert not await allowed(client, "system:serviceaccount:default:robot", "get", "secrets", namespace)


async def test_cluster_role_bound_in_a_namespace_grants_there(client: Client, namespace: str) -> None:
    """The built-in roles are there for that."""
    await client.create(ROLE_BINDING, new(ROLE_BINDING, "b", **bound("view", kind="ClusterRole")), namespace)
    await until(lambda: allowed(client, "alice", "list", "configmaps", namespace))
    assert not await allowed(client, "alice", "list", "configmaps", "default")
    assert not await allowed(client, "alice", "list", "secrets", namespace), "viewers do not see secrets"
    assert not await allowed(client, "alice", "create", "configmaps", namespace)


async def test_binding_to_a_missing_role_grants_nothing(client: Client, namespace: str) -> None:
    await client.create(ROLE_BINDING, new(ROLE_BINDING, "b", **bound("missing")), namespace)
    assert not await allowed(client, "alice", "get", "secrets", namespace)


async def test_user_cannot_grant_permissions_it_does_not_have(client: Client, alice: Client, namespace: str) -> None:
    rules = [rule("roles rolebindings", "create", group=RBAC), rule("configmaps", "get")]
    await client.create(ROLE, new(ROLE, "granter", rules=rules), namespace)
    await client.create(ROLE_BINDING, new(ROLE_BINDING, "granter", **bound("granter")), namespace)
    await until(lambda: allowed(client, "alice", "create", "roles", namespace, group=RBAC))
    await alice.create(ROLE, new(ROLE, "fine", rules=[rule("configmaps", "get")]), namespace)
    with pytest.raises(Forbidden) as refused:
        await alice.create(ROLE, new(ROLE, "more", rules=[rule("secrets", "get")]), namespace)
    assert refused.value.message.startswith(
        'roles.rbac.authorization.k8s.io "more" is forbidden: user "alice" '
        '(groups=["developers" "system:authenticated"]) is attempting to grant RBAC permissions not currently held:'
    )
    assert '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}' in refused.value.message
    with pytest.raises(Forbidden):
        await alice.create(ROLE_BINDING, new(ROLE_BINDING, "more", **bound("admin", kind="ClusterRole")), namespace)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ({"verbs": ["get"]}, "rules[0].apiGroups: Required value: resource rules must supply at least one api group"),
        (
            {"apiGroups": [""], "resources": ["x"], "verbs": []},
            "rules[0].verbs: Required value: verbs must contain at least one value",
        ),
    ],
)
async def test_invalid_roles_are_rejected(client: Client, namespace: str, role: Object, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        await client.create(ROLE, new(ROLE, "bad", rules=[role]), namespace)
    assert message in refused.value.message


async def test_invalid_bindings_are_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(
        Invalid, match=r'roleRef.kind: Unsupported value: "Frob": supported values: "Role", "ClusterRole"'
    ):
        await client.create(ROLE_BINDING, new(ROLE_BINDING, "b", **bound("r", kind="Frob")), namespace)
    await client.create(ROLE_BINDING, new(ROLE_BINDING, "b", **bound("r")), namespace)
    with pytest.raises(Invalid, match=r"cannot change roleRef"):
        await client.patch(ROLE_BINDING, "b", MergePatch({"roleRef": {"name": "other"}}), namespace)


async def test_subjects_get_their_default_api_group(client: Client, namespace: str) -> None:
    binding = new(ROLE_BINDING, "b", roleRef={"kind": "Role", "name": "r"}, subjects=[{"kind": "User", "name": "u"}])
    created = await client.create(ROLE_BINDING, binding, namespace)
    assert created["roleRef"] == {"apiGroup": RBAC, "kind": "Role", "name": "r"}
    assert created["subjects"] == [{"kind": "User", "apiGroup": RBAC, "name": "u"}]


async def allow_alice(client: Client, namespace: str, resource: str, verbs: str, *, group: str = "") -> None:
    await client.create(ROLE, new(ROLE, "r", rules=[rule(resource, verbs, group=group)]), namespace)
    await client.create(ROLE_BINDING, new(ROLE_BINDING, "b", **bound("r")), namespace)
    verb = verbs.split()[0]
    await until(lambda: allowed(client, "alice", verb, resource, namespace, group=group))


async def test_right_to_apply_is_none_to_create(client: Client, alice: Client, namespace: str) -> None:
    await allow_alice(client, namespace, "configmaps", "get patch")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"key": "new"}}
    message = f'cannot create resource "configmaps" in API group "" in the namespace "{namespace}"'
    with pytest.raises(Forbidden, match=re.escape(message)):
        await alice.patch(CONFIG_MAP, "a", ApplyPatch(body), namespace)
    with pytest.raises(NotFound):
        await alice.get(CONFIG_MAP, "a", namespace)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), namespace)
    changed = await alice.patch(CONFIG_MAP, "a", ApplyPatch(body), namespace)
    assert changed["data"] == {"key": "new"}


async def test_right_to_update_is_none_to_create(client: Client, alice: Client, namespace: str) -> None:
    """A PUT creates Endpoints that do not exist, for users who may create them."""
    await allow_alice(client, namespace, "endpoints", "get update")
    with pytest.raises(Forbidden, match='cannot create resource "endpoints"'):
        await replace(alice, ENDPOINTS, new(ENDPOINTS, "a"), namespace)
    await client.create(ENDPOINTS, new(ENDPOINTS, "a"), namespace)
    changed = await replace(alice, ENDPOINTS, new(ENDPOINTS, "a", metadata={"labels": {"b": "c"}}), namespace)
    assert changed["metadata"]["labels"]["b"] == "c"
