"""Random objects, right and wrong, given to a real kube-apiserver and compared with what we make of them."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from sandpool.api import kinds
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.admit import Admission, Undecodable, compile_admission
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.crds import crd
from sandpool.api.schema.formats import format_test
from sandpool.api.schema.shape import Shape, from_openapi
from tests.support.assets import Assets
from tests.support.control_plane import ControlPlane
from tests.support.users import ADMIN

pytestmark = pytest.mark.kubernetes


@dataclass
class Real:
    """A real API server with our CRDs in it."""

    control_plane: ControlPlane
    connection: http.client.HTTPSConnection

    def post(self, path: str, body: Object) -> tuple[int, Any, list[str]]:
        return self.call("POST", path, json.dumps(body))

    def call(self, method: str, path: str, body: str | None = None) -> tuple[int, Any, list[str]]:
        headers = {
            "Authorization": f"Bearer {self.control_plane.tokens[ADMIN]}",
            "Content-Type": "application/json",
        }
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(content) if is_json else content, answer.headers.get_all("Warning") or []


@pytest.fixture(scope="module")
def real(kubernetes_assets: Assets) -> Iterator[Real]:
    with ControlPlane(kubernetes_assets, controller_manager=False, fsync=False) as control_plane:
        host = control_plane.url.removeprefix("https://")
        context = ssl.create_default_context(cadata=control_plane.ca)
        with closing(http.client.HTTPSConnection(host, context=context, timeout=60)) as connection:
            api = Real(control_plane, connection)
            for type in kinds.SANDPOOL:
                status, answer, warnings = api.post(kinds.CUSTOM_RESOURCE_DEFINITION.path(), crd(type))
                assert (status, warnings) == (201, []), answer
            wait_until_served(api)
            yield api


def wait_until_served(api: Real) -> None:
    deadline = time.monotonic() + 60
    for type in kinds.SANDPOOL:
        while api.post(type.path("default") + "?dryRun=All", {})[0] == 404:
            assert time.monotonic() < deadline, f"{type} is not served"


@pytest.mark.parametrize("type", [*kinds.BUILT_IN, *kinds.SANDPOOL], ids=str)
def test_kinds_match_discovery(real: Real, type: ResourceType) -> None:
    resources = {entry["name"]: entry for entry in real.call("GET", type.base_path)[1]["resources"]}
    entry = resources[type.plural]
    assert (entry["kind"], entry["singularName"], entry["namespaced"]) == (type.kind, type.singular, type.namespaced)
    assert tuple(entry.get("shortNames", ())) == type.short_names
    assert tuple(entry.get("categories", ())) == type.categories
    assert tuple(entry["verbs"]) == type.verbs
    subresources = {name.partition("/")[2] for name in resources if name.startswith(f"{type.plural}/")}
    assert subresources == type.subresources
    for name in subresources:
        listed, ours = resources[f"{type.plural}/{name}"], kinds.subresource(type, name)
        assert (listed["kind"], tuple(listed["verbs"])) == (ours.kind or type.kind, ours.verbs)
        if "group" in listed:
            assert (listed["group"], listed["version"]) == (ours.group, ours.version)


# --- objects ----------------------------------------------------------------------------------------------------------

CONTAINER = {
    "name": "c",
    "image": "i",
    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"key": "k", "name": "s"}}}],
    "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}],
    "resources": {"limits": {"cpu": "1", "memory": 1024}},
    "livenessProbe": {"httpGet": {"port": "http"}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
TEMPLATE_SPEC = {
    "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}},
    "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}],
    "service": True,
}
SPECS: dict[ResourceType, Object] = {
    kinds.SANDBOX: {**TEMPLATE_SPEC, "shutdownTime": "2026-01-01T00:00:00Z", "operatingMode": "Suspended"},
    kinds.SANDBOX_TEMPLATE: {
        **TEMPLATE_SPEC,
        "networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}]},
    },
    kinds.SANDBOX_CLAIM: {
        "warmPoolRef": {"name": "p"},
        "env": [{"name": "A", "value": "1"}],
        "lifecycle": {"ttlSecondsAfterFinished": 1},
        "additionalPodMetadata": {"labels": {"a": "b"}},
    },
    kinds.SANDBOX_WARM_POOL: {
        "sandboxTemplateRef": {"name": "t"},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "10%"}},
    },
    kinds.CONFIG_MAP: {},
    kinds.LEASE: {"holderIdentity": "me", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseTransitions": 0},
}
STRANGERS: list[Any] = [None, True, 0, -1, 1.5, 2.0, 10**12, "", "x", "1Gi", "Running", [], [None], {}, {"x": 1}]


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def mutated(obj: Object, chance: random.Random, times: int) -> Object:
    """The object with values replaced, items repeated, or fields added or removed."""
    copy: Object = json.loads(json.dumps(obj))
    for _ in range(times):
        path = chance.choice(
            [place for place in places(copy) if len(place) > 1 and place[0] not in ("apiVersion", "kind")]
        )
        parent: Any = copy
        for key in path[:-1]:
            parent = parent[key]
        change = chance.choice(["replace", "replace", "replace", "remove", "add", "repeat"])
        if path[0] == "metadata" and change != "add":
            continue
        if change == "replace":
            parent[path[-1]] = chance.choice(STRANGERS)
        elif change == "remove":
            del parent[path[-1]]
        elif change == "repeat" and isinstance(parent[path[-1]], list):
            parent[path[-1]] += parent[path[-1]]
        elif isinstance(parent, dict):
            names = ["unknown", "labels"] if path[0] == "metadata" else ["unknown", "labels", "name", "spec"]
            parent[chance.choice(names)] = chance.choice(STRANGERS)
    return copy


# --- the comparison ---------------------------------------------------------------------------------------------------


def ours(admit: Admission, obj: Object) -> tuple[str, Any, Any]:
    try:
        admitted = admit(obj)
    except Undecodable as error:
        return "unreadable", str(error), None
    if admitted.causes:
        return "invalid", sorted(map(str, admitted.causes)), None
    return "stored", {key: admitted.object.get(key) for key in ("spec", "data")}, sorted(admitted.unknown)


def theirs(api: Real, type: ResourceType, obj: Object) -> tuple[str, Any, Any]:
    status, answer, warnings = api.post(type.path("default") + "?dryRun=All&fieldValidation=Warn", obj)
    if status == 400:
        return "unreadable", answer["message"].split(f"cannot be handled as a {type.kind}: ")[-1], None
    if status == 422:
        causes = [f"{cause['field']}: {cause['message']}" for cause in answer["details"]["causes"]]
        # The scale subresource has its own word about the number of replicas.
        return "invalid", sorted(cause for cause in causes if not cause.startswith(".spec.")), None
    assert status == 201, answer
    unknown = sorted(warning.split('unknown field \\"')[1].split('\\"')[0] for warning in warnings)
    return "stored", {key: answer.get(key) for key in ("spec", "data")}, unknown


def is_known_difference(shape: Shape, obj: Object) -> bool:
    """kube-apiserver takes a list for a text that has a format, and we do not."""
    return any(
        isinstance(value, list) and node.type == "string" and format_test(node.format) is not None
        for value, node in visited(obj, shape)
    )


def visited(value: Any, shape: Shape) -> Iterator[tuple[Any, Shape]]:
    yield value, shape
    if isinstance(value, dict):
        for key, inner in value.items():
            node = shape.properties.get(key) or shape.additional
            if node is not None:
                yield from visited(inner, node)
    elif isinstance(value, list) and shape.items is not None:
        for inner in value:
            yield from visited(inner, shape.items)


@pytest.mark.parametrize("type", SPECS, ids=str)
def test_same_objects_get_the_same_responses(real: Real, type: ResourceType) -> None:
    shape = (
        from_openapi(crd(type)["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        if type in kinds.SANDPOOL
        else shape_of(type)
    )
    admit = compile_admission(shape)
    obj: Object = {"apiVersion": type.api_version, "kind": type.kind, "metadata": {"name": "x", "namespace": "default"}}
    if type is kinds.CONFIG_MAP:
        obj |= {"data": {"a": "b"}, "binaryData": {"c": "YQ=="}, "immutable": False}
    else:
        obj["spec"] = SPECS[type]
    assert ours(admit, obj) == theirs(real, type, obj)
    chance = random.Random(str(type))
    for _ in range(100):
        # Of several mistakes in a built-in object, Go reports one that depends on how its parts are decoded.
        changed = mutated(obj, chance, chance.choice([1, 1, 2]) if type in kinds.SANDPOOL else 1)
        if is_known_difference(shape, changed):
            continue
        answer = theirs(real, type, changed)
        if type in kinds.SANDPOOL or answer[0] != "invalid":  # built-in kinds have rules beyond their shape
            assert ours(admit, changed) == answer, json.dumps(changed)
