"""Random sequences of writes by several managers, done by a real kube-apiserver and compared with what we make of them.

Every step starts from the state the real server is in, so one difference does not hide the next. Times are compared
too: the clock we get is the one the real server put into its answer.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, POD, SERVICE
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.shape import Shape
from sandpool.kube.errors import ApiError
from sandpool.kube.transport import APPLY_PATCH, JSON, MERGE_PATCH
from sandpool.server.apply import (
    apply,
    check_applied_kind,
    reset_fields,
    scale_managed_fields,
    scaled_managed_fields,
    track_update,
)
from sandpool.server.apply.last_applied import LAST_APPLIED
from tests.support.assets import Assets
from tests.support.control_plane import ControlPlane
from tests.support.users import ADMIN

pytestmark = pytest.mark.kubernetes

WIDGET = ResourceType("example.com", "v1", "Widget", "widgets", subresources=frozenset({"status"}))


class Api:
    """The real server, one request after another."""

    def __init__(self, plane: ControlPlane) -> None:
        context = ssl.create_default_context(cadata=plane.ca)
        host, _, port = plane.url.removeprefix("https://").partition(":")
        self.connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
        self.headers = {"Authorization": f"Bearer {plane.tokens[ADMIN]}", "User-Agent": "tests/1.0"}

    def close(self) -> None:
        self.connection.close()

    def call(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> tuple[int, Object]:
        text = None if body is None else json.dumps(body)
        self.connection.request(method, path, text, {**self.headers, "Content-Type": content_type})
        answer = self.connection.getresponse()
        content = answer.read()
        is_json = answer.headers.get_content_type() == JSON
        return answer.status, json.loads(content) if is_json else {"message": content.decode()}


def widget_crd(schema: Object) -> Object:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": WIDGET.kind, "plural": WIDGET.plural}
    versions = [{**version, "subresources": {"status": {}}}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGET.group_resource},
        "spec": {"group": WIDGET.group, "scope": "Namespaced", "names": names, "versions": versions},
    }


@pytest.fixture(scope="module")
def api(kubernetes_assets: Assets, schema: Object) -> Iterator[Api]:
    with ControlPlane(kubernetes_assets, controller_manager=False, fsync=False) as plane, closing(Api(plane)) as api:
        status, answer = api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_crd(schema))
        assert status == 201, answer
        while api.call("GET", WIDGET.path("default"))[0] != 200:
            pass  # served within a moment, and every attempt waits for an answer
        yield api


# What is written

Random = random.Random
MANAGERS = ("ann", "bob", "kubectl", "zoe")
LETTERS = "abc"
SEQUENCES = 40


def some(rng: Random, choices: dict[str, Callable[[], Any]], chance: float = 0.5) -> Object:
    return {name: make() for name, make in choices.items() if rng.random() < chance}


def metadata(rng: Random, chance: float = 0.4) -> Object:
    return some(
        rng,
        {
            "labels": lambda: texts(rng),
            "annotations": lambda: texts(rng),
            "finalizers": lambda: [f"example.com/{x}" for x in LETTERS if rng.random() < 0.5],
            "ownerReferences": lambda: [
                {"apiVersion": "v1", "kind": "Node", "name": x, "uid": x} for x in LETTERS if rng.random() < 0.3
            ],
        },
        chance,
    )


def texts(rng: Random) -> Object:
    return {x: rng.choice("123") for x in LETTERS if rng.random() < 0.6}


def config_map(rng: Random) -> Object:
    return some(rng, {"data": lambda: texts(rng), "metadata": lambda: metadata(rng)}, 0.8)


def service(rng: Random) -> Object:
    def port() -> Object:
        return {
            "port": rng.choice((80, 443, 8080)),
            "name": rng.choice(LETTERS),
            **some(rng, {"protocol": lambda: rng.choice(("TCP", "UDP")), "targetPort": lambda: rng.choice((1, "web"))}),
        }

    ports = {(p["port"], p.get("protocol", "TCP")): p for p in (port() for _ in range(rng.randint(1, 3)))}
    spec = some(rng, {"selector": lambda: texts(rng), "publishNotReadyAddresses": lambda: True})
    return {"metadata": metadata(rng), "spec": {"ports": list(ports.values()), **spec}}


def pod_spec(rng: Random) -> Object:
    def container(name: str) -> Object:
        parts: dict[str, Callable[[], Any]] = {
            "args": lambda: rng.choice((["x"], ["y", "z"])),
            # The same name twice is allowed in an environment, but not in what is applied.
            "env": lambda: [{"name": x, "value": rng.choice("123")} for x in LETTERS + "aa" if rng.random() < 0.4],
            "ports": lambda: [{"containerPort": p} for p in (80, 443) if rng.random() < 0.6],
            "resources": lambda: {"limits": {"cpu": rng.choice("12")}},
            "volumeMounts": lambda: [{"name": "v", "mountPath": rng.choice(("/v", "/w"))}],
        }
        return {"name": name, "image": rng.choice(("one", "two")), **some(rng, parts, 0.4)}

    spec = some(
        rng,
        {
            "terminationGracePeriodSeconds": lambda: rng.choice((1, 30)),
            "nodeSelector": lambda: texts(rng),
            "securityContext": lambda: some(rng, {"runAsUser": lambda: rng.choice((1, 2))}),
            "tolerations": lambda: [{"key": "k", "operator": "Exists"}],
        },
        0.4,
    )
    names = [x for x in LETTERS if rng.random() < 0.6] or ["a"]
    rng.shuffle(names)
    return {"containers": [container(name) for name in names], "volumes": [{"name": "v", "emptyDir": {}}], **spec}


def deployment(rng: Random) -> Object:
    parts: dict[str, Callable[[], Any]] = {
        "replicas": lambda: rng.choice((0, 1, 2)),
        "strategy": lambda: rng.choice(({"type": "Recreate"}, {"type": "RollingUpdate"})),
    }
    template = {"metadata": {"labels": {"app": "x", **texts(rng)}}, "spec": pod_spec(rng)}
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template, **some(rng, parts)}
    return {"metadata": metadata(rng), "spec": spec}


def pod(rng: Random) -> Object:
    # Most of a pod cannot be changed: what can be is metadata, images and the status.
    spec = {"containers": [{"name": "a", "image": rng.choice(("one", "two"))}]}
    return {"metadata": metadata(rng, 0.7), "spec": spec}


def status(rng: Random) -> Object:
    conditions = [{"type": x, "status": rng.choice(("True", "False"))} for x in LETTERS if rng.random() < 0.6]
    rng.shuffle(conditions)
    return {
        "status": some(
            rng, {"phase": lambda: rng.choice(("Pending", "Running")), "conditions": lambda: conditions}, 0.8
        )
    }


def workload_status(rng: Random) -> Object:
    made = status(rng)["status"]
    made.pop("phase", None)
    return {"status": {**made, "replicas": rng.choice((1, 2))}}


def anything(rng: Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice("123"),
        lambda: 1,
        lambda: True,
        lambda: None,
        lambda: [1, {"a": 2}],
    ]
    if depth < 3:
        kinds += [lambda: {x: anything(rng, depth + 1) for x in LETTERS if rng.random() < 0.5}] * 4
    return rng.choice(kinds)()


def widget(rng: Random) -> Object:
    def parts() -> list[Object]:
        found = {}
        for _ in range(rng.randint(0, 3)):
            part: Object = {
                "name": rng.choice(LETTERS),
                **some(rng, {"slot": lambda: rng.choice((1, 2, 10))}),
            }
            extra: dict[str, Callable[[], Any]] = {"weight": lambda: rng.choice((1, 2)), "notes": lambda: texts(rng)}
            found[part["name"], part.get("slot", 1)] = {**part, **some(rng, extra)}
        return list(found.values())

    def group() -> Object:
        return some(rng, {"a": lambda: rng.choice("12"), "b": lambda: rng.choice("12")})

    choices: dict[str, Callable[[], Any]] = {
        "size": lambda: rng.choice((0, 1, 2)),
        "color": lambda: rng.choice(("", "red", "blue")),
        "tags": lambda: rng.sample(LETTERS, rng.randint(0, 3)),
        "ratios": lambda: rng.sample((1, 1.5, 20, 3), rng.randint(0, 3)),
        "steps": lambda: rng.sample(LETTERS, rng.randint(0, 3)),
        "limits": lambda: texts(rng),
        "pair": lambda: rng.choice(({"left": "1"}, {"left": "1", "right": "2"}, {})),
        "parts": parts,
        "anything": lambda: {x: anything(rng) for x in LETTERS if rng.random() < 0.5},
        "groups": lambda: {x: group() for x in LETTERS if rng.random() < 0.5},
    }
    return {"metadata": metadata(rng), "spec": some(rng, choices), **(status(rng) if rng.random() < 0.2 else {})}


# What is compared


@dataclass(frozen=True)
class Kind:
    type: ResourceType
    make: Callable[[Random], Object]
    make_status: Callable[[Random], Object] | None = None
    custom: bool = False
    # Fields of a new spec that are set after tracking, by admission or when the object is stored.
    admitted: tuple[str, ...] = ()


KINDS = {
    "configmaps": Kind(CONFIG_MAP, config_map),
    "services": Kind(SERVICE, service, admitted=("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")),
    "deployments": Kind(DEPLOYMENT, deployment, workload_status),
    "pods": Kind(POD, pod, status, admitted=("priority", "preemptionPolicy", "tolerations")),
    "widgets": Kind(WIDGET, widget, status, custom=True),
}


@dataclass
class Sequence:
    """A handful of random writes to one object."""

    api: Api
    kind: Kind
    seed: str
    shape: Shape
    name: str
    log: list[str] = field(default_factory=list)

    def run(self, steps: int) -> None:
        rng = random.Random(self.seed)
        for _ in range(steps):
            before = self.read()
            verb = (
                rng.choices(("apply", "patch", "put", "reset"), (6, 3, 2, 0.4))[0]
                if before
                else rng.choice(("apply", "post"))
            )
            manager = rng.choice(MANAGERS) if rng.random() < 0.9 else f"manager-{rng.randint(10, 30)}"
            status = before is not None and self.kind.make_status is not None and rng.random() < 0.3
            make = self.kind.make_status if status else self.kind.make
            assert make is not None
            body = make(rng)
            self.log.append(f"{verb} {'status ' if status else ''}as {manager}: {json.dumps(body)}")
            self.step(rng, verb, manager, "status" if status else "", body, before)

    def read(self) -> Object | None:
        code, answer = self.api.call("GET", self.path())
        return answer if code == 200 else None

    def path(self, subresource: str = "", **query: str) -> str:
        text = "&".join(f"{key}={value}" for key, value in query.items())
        return self.kind.type.path("default", self.name, subresource or None) + ("?" + text if text else "")

    def step(self, rng: Random, verb: str, manager: str, subresource: str, body: Object, before: Object | None) -> None:
        identity = {"apiVersion": self.kind.type.api_version, "kind": self.kind.type.kind}
        named = {**identity, **body, "metadata": {**body.get("metadata", {}), "name": self.name}}
        if verb == "apply":
            named = spoiled(rng, named)
            self.apply(manager, rng.random() < 0.4, subresource, named, before)
            return
        if verb == "post":
            path = self.kind.type.path("default") + f"?fieldManager={manager}"
            code, after = self.api.call("POST", path, named)
        elif verb == "put":
            assert before is not None
            whole = {
                **before,
                **{name: {**before.get(name, {}), **part} for name, part in body.items()},
            }
            code, after = self.api.call("PUT", self.path(subresource, fieldManager=manager), whole)
        else:
            patch = {"metadata": {"managedFields": [{}]}} if verb == "reset" else nulled(rng, body)
            code, after = self.api.call("PATCH", self.path(subresource, fieldManager=manager), patch, MERGE_PATCH)
        if code < 300:
            self.check_tracked(verb, manager, subresource, before, after)

    def check_tracked(self, verb: str, manager: str, subresource: str, before: Object | None, after: Object) -> None:
        given = before["metadata"].get("managedFields") if before is not None and verb != "reset" else [{}]
        new = {**after, "metadata": {**after["metadata"], "managedFields": given if before is not None else None}}
        if before is None and "spec" in after:
            new["spec"] = {k: v for k, v in after["spec"].items() if k not in self.kind.admitted}
        ours = track_update(
            before,
            new,
            shape=self.shape,
            manager=manager,
            subresource=subresource,
            api_version=self.kind.type.api_version,
            now=newest(after),
            reset=reset_fields(self.kind.type, subresource, custom=self.kind.custom),
        )
        self.expect(ours["metadata"].get("managedFields"), after["metadata"].get("managedFields"))

    def apply(self, manager: str, force: bool, subresource: str, applied: Object, before: Object | None) -> None:
        query = {"fieldManager": manager, **({"force": "true"} if force else {})}
        code, after = self.api.call("PATCH", self.path(subresource, **query), applied, APPLY_PATCH)
        try:
            check_applied_kind(applied, self.kind.type)
            ours = apply(
                before,
                applied,
                shape=self.shape,
                manager=manager,
                force=force,
                subresource=subresource,
                now=newest(after) if code < 300 else "2030-01-01T00:00:00Z",
                reset=reset_fields(self.kind.type, subresource, custom=self.kind.custom),
            )
        except ApiError as error:
            status = error.status()
            # The real server lists what is wrong in no particular order.
            self.expect((error.code, sorted(lines(status))), (code, sorted(lines(after))))
            causes, expected = error.details.get("causes", []), after.get("details", {}).get("causes", [])
            self.expect(sorted(map(str, causes)), sorted(map(str, expected)))
            return
        if code >= 300:
            assert code in (404, 422), (code, after, self.log)  # refused by validation, which is not ours to do
            return
        self.expect(ours["metadata"].get("managedFields"), after["metadata"].get("managedFields"))
        if not subresource:
            self.expect_object(ours, after)

    def expect(self, ours: Any, theirs: Any) -> None:
        assert ours == theirs, self.story(ours, theirs)

    def expect_object(self, ours: Object, theirs: Object) -> None:
        ours, theirs = plain(ours), plain(theirs)
        if self.kind.make_status is not None:
            ours.pop("status", None)
            theirs.pop("status", None)
        for part in ours.get("spec", {}).get("parts") or () if self.kind.custom else ():
            part.setdefault("slot", 1)
        if self.kind.custom:
            assert ours == theirs, self.story(ours, theirs)
        else:
            assert contained(ours, theirs), self.story(ours, theirs)
            assert self.kind.type is not CONFIG_MAP or contained(theirs, ours), self.story(ours, theirs)

    def story(self, ours: Any, theirs: Any) -> str:
        steps = "\n".join(self.log)
        return f"{self.seed}\n{steps}\nours:   {json.dumps(ours)}\ntheirs: {json.dumps(theirs)}"


def nulled(rng: Random, value: Any) -> Any:
    """A merge patch that also removes things."""
    if isinstance(value, dict):
        return {name: None if rng.random() < 0.15 else nulled(rng, each) for name, each in value.items()}
    return value


def spoiled(rng: Random, config: Object) -> Object:
    """Now and then with something that says nothing, or should not be there at all."""
    chance = rng.random()
    if chance < 0.1:
        return {**nulled(rng, config), "metadata": config["metadata"]}
    if chance < 0.13:
        return {**config, "metadata": {**config["metadata"], "unknown": 1}}
    if chance < 0.16:
        return {**config, "metadata": {**config["metadata"], "labels": {"a": 1, "b": ["x", {"y": None}]}}}
    if chance < 0.18:
        return {**config, "metadata": {**config["metadata"], "finalizers": rng.choice(("x", ["x", "x"], [{"x": 1}]))}}
    if chance < 0.2:
        return {**config, "metadata": {**config["metadata"], "managedFields": []}}
    if chance < 0.21:
        return {**config, "kind": "Other"}
    return config


def lines(status: Object) -> list[str]:
    return str(status.get("message")).splitlines()


def newest(object: Object) -> str:
    return max((entry.get("time", "") for entry in object["metadata"].get("managedFields", [])), default="")


def plain(object: Object) -> Object:
    """Without what the server alone sets, and without nulls, which mean nothing."""
    mine = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "namespace")
    metadata = {name: value for name, value in object["metadata"].items() if name not in mine and value}
    copied: Object = json.loads(json.dumps({**object, "metadata": metadata}))
    return copied


def contained(ours: Any, theirs: Any) -> bool:
    """Whether theirs is ours with defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(value is None or contained(value, theirs.get(name)) for name, value in ours.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(contained, ours, theirs))
    return ours == theirs or (not ours and not theirs)


@pytest.mark.parametrize("plural", KINDS)
def test_random_writes_give_the_managed_fields_of_kube_apiserver(api: Api, plural: str, shape: Shape) -> None:
    kind = KINDS[plural]
    shape = shape if kind.custom else shape_of(kind.type)
    for number in range(SEQUENCES):
        Sequence(api, kind, f"{plural}-{number}", shape, f"s-{number}").run(steps=6)


def test_many_updaters_are_merged_as_in_kube_apiserver(api: Api) -> None:
    """Only so many of them are remembered one by one."""
    kind = KINDS["configmaps"]
    sequence = Sequence(api, kind, "updaters", shape_of(kind.type), "updaters")
    for number in range(25):
        before = sequence.read()
        body = {"data": {f"key-{number}": "x"}}
        sequence.step(
            Random(0), "patch" if before else "post", f"{LETTERS[number % 3]}-{number * 7 % 25}", "", body, before
        )


def test_client_side_apply_migrates_to_server_side_apply(api: Api) -> None:
    """kubectl takes over what it wrote as a client, and keeps the annotation true that it left behind."""
    kind = KINDS["configmaps"]
    for number in range(10):
        rng = Random(number)
        sequence = Sequence(api, kind, f"kubectl-{number}", shape_of(kind.type), f"kubectl-{number}")
        last = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": sequence.name}, "data": texts(rng)}
        annotations = {"annotations": {LAST_APPLIED: json.dumps(last), "b": "<&>"}}
        sequence.step(rng, "post", "kubectl-client-side-apply", "", {**last, "metadata": annotations}, None)
        for manager in ("other", "kubectl", "kubectl"):
            before = sequence.read()
            applied = {**last, "data": texts(rng), "metadata": {"name": sequence.name, "annotations": {"b": "<&>"}}}
            sequence.apply(manager, False, "", applied, before)


def test_scaling_tracks_replicas_as_kube_apiserver_does(api: Api) -> None:
    """A Scale is written and tracked, and the object it belongs to has the outcome."""
    name, path = "scaled", ".spec.replicas"
    sequence = Sequence(api, KINDS["deployments"], "scaling", shape_of(DEPLOYMENT), name)
    made = deployment(Random(1))
    code, _ = api.call("POST", DEPLOYMENT.path("default") + "?fieldManager=ann", {**made, "metadata": {"name": name}})
    assert code == 201
    api.call("PATCH", sequence.path(fieldManager="ann"), {"spec": {"replicas": 1}}, MERGE_PATCH)
    for manager, replicas in (("bob", 2), ("bob", 3), ("zoe", 4), ("zoe", 4), ("ann", 5)):
        before = sequence.read()
        assert before is not None
        api.call("PATCH", sequence.path("scale", fieldManager=manager), {"spec": {"replicas": replicas}}, MERGE_PATCH)
        after = sequence.read()
        assert after is not None
        entries = before["metadata"]["managedFields"]
        scale = {"metadata": {"managedFields": scale_managed_fields(entries, path)}, "spec": before["spec"]}
        tracked = track_update(
            scale,
            {**scale, "spec": {**before["spec"], "replicas": replicas}},
            shape=Shape(),
            manager=manager,
            subresource="scale",
            api_version="autoscaling/v1",
            now="2030-01-01T00:00:00Z",
            reset=None,
        )
        ours = scaled_managed_fields(entries, tracked["metadata"].get("managedFields", []), path, "apps/v1")
        sequence.expect(ours, after["metadata"]["managedFields"])
