"""Any request is answered or rejected: none crashes the server or leaves a partial write."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandpool.api.kinds import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    POD,
    SANDBOX,
    SANDBOX_WARM_POOL,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    SERVICE,
    SUBJECT_ACCESS_REVIEW,
    TOKEN_REVIEW,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.errors import ApiError
from sandpool.kube.transport import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.tokens import ADMIN
from sandpool.server.request.body import PROTOBUF
from sandpool.server.request.messages import Response, ServerRequest
from sandpool.testing.objects import new, pod
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install
from tests.support.hostile_input import Chaos

NAMESPACE_NAME = "hostile"
GADGET = custom_type("hostile.example.com", "Gadget")
EXAMPLES = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)

# What kube-apiserver answers 500 to, and so do we.
DOCUMENTED = (
    "resourceVersion should not be set on objects to be created",
    "failed to create typed ",
    # strategic merge patches that make no sense
    "unknown patch type: ",
    "list element types are not identical: ",
    "runtime error: comparing uncomparable type ",
    "map: map[",
)

CONTAINER = {
    "name": "main",
    "image": "example.com/image:1",
    "command": ["run"],
    "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "ports": [{"containerPort": 80, "protocol": "TCP"}],
    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "readinessProbe": {"httpGet": {"port": 80}},
    "securityContext": {"runAsUser": 1},
}
POD_SPEC = {
    "containers": [CONTAINER],
    "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}],
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}],
    "nodeSelector": {"a": "b"},
    "terminationGracePeriodSeconds": 1,
}
METADATA = {
    "labels": {"a": "b"},
    "annotations": {"a": "b"},
    "finalizers": ["example.com/hold"],
    "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u", "controller": True}],
    "managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {}}}],
    "generateName": "x-",
    "uid": "",
    "resourceVersion": "",
    "generation": 1,
    "deletionGracePeriodSeconds": 1,
    "creationTimestamp": None,
    "namespace": NAMESPACE_NAME,
}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {**POD_SPEC}}
BASES: list[tuple[ResourceType, Object]] = [
    (CONFIG_MAP, {"data": {"a": "b"}, "binaryData": {"c": "AA=="}, "immutable": False}),
    (POD, {"spec": POD_SPEC, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
    (SANDBOX, {"spec": {"podTemplate": TEMPLATE, "replicas": 1}, "status": {"conditions": []}}),
    (SANDBOX_WARM_POOL, {"spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}}),
    (
        SERVICE,
        {"spec": {"selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": "http"}], "clusterIP": "None"}},
    ),
    (
        DEPLOYMENT,
        {
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
                "template": TEMPLATE,
                "strategy": {"rollingUpdate": {"maxSurge": "25%"}},
            }
        },
    ),
    (GADGET, {"spec": {"replicas": 1, "a": [1]}, "status": {"replicas": 1, "selector": "a=b"}}),
    (
        CUSTOM_RESOURCE_DEFINITION,
        definition(
            custom_type("fuzzed.example.com"),
            {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object",
                        "required": ["a"],
                        "properties": {
                            "a": {"type": "string", "default": "x", "pattern": "^x", "enum": ["x"], "maxLength": 3},
                            "b": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                            "c": {"x-kubernetes-int-or-string": True},
                        },
                        "x-kubernetes-validations": [{"rule": "self.a == 'x'", "message": "m"}],
                    }
                },
            },
            subresources=("status", "scale"),
            additionalPrinterColumns=[{"name": "A", "type": "string", "jsonPath": ".spec.a"}],
            selectableFields=[{"jsonPath": ".spec.a"}],
        ),
    ),
]
REVIEWS: list[tuple[ResourceType, Object]] = [
    (TOKEN_REVIEW, {"spec": {"token": "x", "audiences": ["a"]}}),
    (SUBJECT_ACCESS_REVIEW, {"spec": {"user": "u", "groups": ["g"], "resourceAttributes": {"verb": "get"}}}),
    (SELF_SUBJECT_ACCESS_REVIEW, {"spec": {"nonResourceAttributes": {"path": "/x", "verb": "get"}}}),
    (SELF_SUBJECT_RULES_REVIEW, {"spec": {"namespace": "default"}}),
]
ACTIONS: list[tuple[str, str, Object]] = [
    ("POST", "pods/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}),
    (
        "POST",
        "pods/p/eviction",
        {
            "metadata": {"name": "p"},
            "deleteOptions": {"dryRun": ["All"], "preconditions": {"uid": "u"}, "gracePeriodSeconds": 1},
        },
    ),
    (
        "POST",
        "serviceaccounts/default/token",
        {"spec": {"audiences": ["a"], "expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "name": "p"}}},
    ),
    ("PUT", "finalize", {"metadata": {"name": NAMESPACE_NAME}, "spec": {"finalizers": ["kubernetes"]}}),
    ("PUT", "status", {"metadata": {"name": NAMESPACE_NAME}, "status": {"phase": "Active"}}),
]


class Server:
    """A server and the loop it lives in, for tests that are not asynchronous themselves."""

    def __init__(self, runner: asyncio.Runner, api: ApiServer) -> None:
        self.runner = runner
        self.api = api

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Response | ApiError:
        """Send one request through the handler. Raises anything but a response or an API error."""
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        request = ServerRequest(method, path, ADMIN, query or {}, headers=headers or {}, body=data)

        async def handle() -> Response | ApiError:
            try:
                response = await self.api.handler.handle(request)
            except ApiError as error:
                return error
            if response.stream is not None:
                with suppress(TimeoutError, StopAsyncIteration):  # what there is to see comes at once
                    async with asyncio.timeout(0.002):
                        await anext(aiter(response.stream))
                await response.stream.aclose()
            return response

        return self.runner.run(handle())

    def check(self, *args: Any, **kwargs: Any) -> Response | ApiError:
        """The invariant: an answer, or a refusal that blames the client."""
        answer = self.ask(*args, **kwargs)
        if isinstance(answer, ApiError):
            orjson.dumps(answer.status())
            assert answer.code < 500 or answer.message.startswith(DOCUMENTED), answer.message
        elif answer.stream is None:
            orjson.loads(answer.encode())
        return answer

    def audit_store(self) -> None:
        """Check that every stored object can be listed and would be admitted unchanged."""
        for resource in self.api.resources:
            if "list" not in resource.type.verbs:
                continue
            listed = self.check("GET", resource.type.path())
            assert isinstance(listed, Response)
            for item in listed.decode()["items"]:
                entire = {"kind": resource.type.kind, "apiVersion": resource.type.api_version, **item}
                metadata = item["metadata"]
                path = resource.type.path(metadata.get("namespace"), metadata["name"])
                answer = self.check("PUT", path, body=entire, query={"dryRun": "All", "fieldValidation": "Strict"})
                assert isinstance(answer, Response), (entire, answer)
                assert answer.decode()["metadata"]["resourceVersion"] == metadata["resourceVersion"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with asyncio.Runner() as runner:
        api = ApiServer(tmp_path_factory.mktemp("hostile"))
        runner.run(api.start())
        client = api.client()
        runner.run(client.create(NAMESPACE, new(NAMESPACE, NAMESPACE_NAME)))
        runner.run(install(client, definition(GADGET, subresources=("status", "scale"))))
        server = Server(runner, api)
        yield server
        server.audit_store()
        runner.run(api.stop())


chaos = st.integers(0, 2**32 - 1).map(Chaos)


def entire(type: ResourceType, fields: Object) -> Object:
    metadata = METADATA if type.namespaced else {**METADATA, "namespace": "", "ownerReferences": []}
    return new(
        type,
        "x",
        metadata={**metadata, **fields.get("metadata", {})},
        **{k: v for k, v in fields.items() if k not in ("metadata", "kind", "apiVersion")},
    )


def put_in_place(server: Server, type: ResourceType, fields: Object) -> str:
    """Make sure that there is an object to write to; returns its path."""
    obj = entire(type, fields)
    obj["metadata"] = {"name": fields.get("metadata", {}).get("name", "x")}
    namespace = NAMESPACE_NAME if type.namespaced else None
    server.check("POST", type.path(namespace), body=obj)
    return type.path(namespace, obj["metadata"]["name"])


# Writes ---------------------------------------------------------------------------------------------------------------


@EXAMPLES
@given(chaos=chaos)
def test_any_body_of_a_create_is_answered(server: Server, chaos: Chaos) -> None:
    type, fields = chaos.pick(BASES)
    path = type.path(NAMESPACE_NAME if type.namespaced else None)
    query = {"fieldValidation": chaos.pick(["Strict", "Warn", "Ignore"])}
    answer = server.check("POST", path, body=chaos.mutated(entire(type, fields)), query=query)
    if isinstance(answer, Response):
        metadata = answer.decode()["metadata"]
        server.check("DELETE", type.path(metadata.get("namespace"), metadata["name"]))


@EXAMPLES
@given(chaos=chaos)
def test_any_body_of_an_update_is_answered(server: Server, chaos: Chaos) -> None:
    type, fields = chaos.pick(BASES)
    path = put_in_place(server, type, fields)
    found = server.check("GET", path)
    assert isinstance(found, Response)
    server.check("PUT", path + chaos.pick(["", "", "/status", "/scale"]), body=chaos.mutated(found.decode()))


PATHS = ("", "/", "/metadata", "/metadata/labels", "/metadata/labels/a~1b", "/metadata/name", "/spec", "/spec/a/0")
MORE_PATHS = ("/spec/containers/-", "/spec/containers/0/name", "/metadata/resourceVersion", "/kind", "/a~", "a", "/é")


def operation(chaos: Chaos) -> Any:
    return chaos.mutated(
        {
            "op": chaos.pick(["add", "remove", "replace", "move", "copy", "test", "x"]),
            "path": chaos.pick(PATHS + MORE_PATHS),
            "from": chaos.pick(PATHS + MORE_PATHS),
            "value": chaos.value(),
        }
    )


@EXAMPLES
@given(chaos=chaos)
def test_any_patch_is_answered(server: Server, chaos: Chaos) -> None:
    type, fields = chaos.pick(BASES)
    path = put_in_place(server, type, fields)
    media_type = chaos.pick([MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH, APPLY_PATCH, JSON_PATCH])
    fresh = entire(type, fields)
    if media_type == APPLY_PATCH:
        del fresh["metadata"]["managedFields"]
    body: Any = chaos.mutated(fresh)
    if media_type == JSON_PATCH:
        body = [operation(chaos) for _ in range(chaos.rng.randrange(3))]
    query = {"fieldManager": "fuzz", "force": "true"} if media_type == APPLY_PATCH else {}
    place = path + chaos.pick(["", "", "/status", "/scale"])
    server.check("PATCH", place, body=body, query=query, headers={"content-type": media_type})


@EXAMPLES
@given(chaos=chaos)
def test_any_use_of_a_subresource_or_a_review_is_answered(server: Server, chaos: Chaos) -> None:
    method, place, body = chaos.pick(ACTIONS)
    server.check("POST", POD.path(NAMESPACE_NAME), body=pod("p", metadata={"finalizers": ["example.com/hold"]}))
    server.check(method, f"/api/v1/namespaces/{NAMESPACE_NAME}/{place}", body=chaos.mutated(body))
    type, fields = chaos.pick(REVIEWS)
    server.check("POST", type.path(), body=chaos.mutated(new(type, None, **fields)))


DELETE_OPTIONS = {
    "kind": "DeleteOptions",
    "apiVersion": "v1",
    "gracePeriodSeconds": 1,
    "propagationPolicy": "Orphan",
    "orphanDependents": None,
    "preconditions": {"uid": "u", "resourceVersion": "1"},
    "dryRun": ["All"],
}


@EXAMPLES
@given(chaos=chaos)
def test_any_delete_options_are_answered(server: Server, chaos: Chaos) -> None:
    type, fields = chaos.pick(BASES)
    path = put_in_place(server, type, fields)
    names = ["gracePeriodSeconds", "propagationPolicy", "orphanDependents", "dryRun"]
    texts = ["", "0", "-1", "All", "Orphan", "Foreground", "true", "x", "9" * 18, "9" * 5000]
    query = {chaos.pick(names): chaos.pick(texts) for _ in range(chaos.rng.randrange(3))}
    server.check("DELETE", path, query=query, body=chaos.mutated(DELETE_OPTIONS))


@EXAMPLES
@given(
    data=st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"k8s\0" + rest),
    content_type=st.sampled_from(["", PROTOBUF, "application/yaml", "application/json; charset=x", "text/plain"]),
    text=st.text(alphabet="&*<>!?|:-[]{}#'\"\n \\abc019.~", max_size=40),
)
def test_any_bytes_are_answered(server: Server, data: bytes, content_type: str, text: str) -> None:
    for body in (data, text.encode()):
        server.check("POST", POD.path(NAMESPACE_NAME), body=body, headers={"content-type": content_type})
        for patch_type in (APPLY_PATCH, JSON_PATCH, MERGE_PATCH):
            path = CONFIG_MAP.path(NAMESPACE_NAME, "x")
            server.check("PATCH", path, body=body, headers={"content-type": patch_type}, query={"fieldManager": "m"})


# Reads ----------------------------------------------------------------------------------------------------------------

numbers = st.sampled_from(["", "0", "1", "-1", "x", "1.5", "٣", "9" * 19, "9" * 25, "9" * 5000, " 1", "+1", "1_0"])
tokens = st.text(max_size=8) | chaos.map(lambda it: base64.urlsafe_b64encode(orjson.dumps(it.value())).decode())
selectors = st.text(alphabet="abc=!,() in notexists<>/.-\\", max_size=16) | st.sampled_from(
    ["a in (b", "a in ()", "!a", "a=b,,c", "a notin (b,c)", "metadata.name=x", "spec.nodeName!=", "a>1", "a<b", "\\"]
)
flags = st.sampled_from(["", "0", "1", "true", "false", "x"])
queries = st.fixed_dictionaries(
    {},
    optional={
        "limit": numbers,
        "continue": tokens
        | st.tuples(st.integers(-2, 2**63), st.text(max_size=3)).map(
            lambda it: base64.urlsafe_b64encode(
                orjson.dumps({"v": "meta.k8s.io/v1", "rv": it[0], "start": [NAMESPACE_NAME, it[1]]})
            ).decode()
        ),
        "labelSelector": selectors,
        "fieldSelector": selectors,
        "resourceVersion": numbers,
        "resourceVersionMatch": st.sampled_from(["", "Exact", "NotOlderThan", "x"]),
        "watch": flags,
        "timeoutSeconds": numbers,
        "sendInitialEvents": flags,
        "allowWatchBookmarks": flags,
        "includeObject": st.sampled_from(["", "None", "Object", "x"]),
        "dryRun": st.sampled_from(["", "All", "x"]),
        "fieldManager": st.text(max_size=3),
        "fieldValidation": st.sampled_from(["", "Strict", "x"]),
        "pretty": flags,
    },
)
META = "v=v1;g=meta.k8s.io"
accepts = st.sampled_from(
    ["", "*/*", "application/json", "application/yaml", PROTOBUF, "text/html", ";;,", "a/b;q=x"]
) | st.sampled_from(["Table", "PartialObjectMetadata", "PartialObjectMetadataList", "X"]).map(
    lambda form: f"application/json;as={form};{META}"
)


@EXAMPLES
@given(type=st.sampled_from([CONFIG_MAP, POD, SANDBOX, GADGET, NAMESPACE]), query=queries, accept=accepts)
def test_any_list_or_watch_is_answered(server: Server, type: ResourceType, query: dict[str, str], accept: str) -> None:
    for path in (type.path(), type.path(NAMESPACE_NAME)):
        answer = server.ask("GET", path, query=query, headers={"accept": accept})
        # A version of the future is something to wait for, and the wait ends with a time-out.
        assert not isinstance(answer, ApiError) or answer.code < 500 or answer.code == 504


WORDS = (
    "api apis v1 namespaces pods x status scale binding watch apps deployments finalize openapi v2 v3 version readyz"
)
segments = st.lists(
    st.sampled_from([*WORDS.split(), NAMESPACE_NAME, "", "..", "%2F", "%", "%00", "%ff"])
    | st.text(max_size=3).map(quote),
    max_size=8,
)


@EXAMPLES
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "X"]),
    segments=segments,
    known=st.booleans(),
    query=queries,
    content_type=st.sampled_from(["", MERGE_PATCH, "application/json"]),
    chaos=chaos,
)
def test_any_path_is_answered(
    server: Server,
    method: str,
    segments: list[str],
    known: bool,
    query: dict[str, str],
    content_type: str,
    chaos: Chaos,
) -> None:
    path = "/" + "/".join(["api", "v1", "namespaces", NAMESPACE_NAME, *segments] if known else segments)
    if method == "DELETE" and known and not segments:
        return  # the other tests still need it
    answer = server.ask(method, path, query=query, headers={"content-type": content_type}, body=chaos.value())
    assert not isinstance(answer, ApiError) or answer.code < 500 or answer.code == 504


def test_server_still_serves_after_hostile_input(server: Server) -> None:
    assert isinstance(server.ask("GET", "/readyz"), Response)
    assert all(not task.done() for task in server.api._tasks)
