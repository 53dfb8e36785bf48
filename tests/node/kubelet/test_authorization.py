"""Authentication and authorization of the node's own API."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden, InternalError, ServiceUnavailable
from sandpool.node.kubelet.authorization import REMEMBERED, NodeAuthorizer
from sandpool.server.auth.groups import MASTERS
from sandpool.server.request.messages import User
from sandpool.server.serving.pki import KUBELET_CLIENT, Authority, Identity
from sandpool.testing.clock import ManualClock
from tests.support.fake_kubelet import NODE

if TYPE_CHECKING:
    from tests.node.kubelet.conftest import Rig

SPDY = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
WEBSOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n"
)
EXEC = "/exec/default/box/main?command=true&output=1"
REQUESTS = {
    "exec": f"POST {EXEC} HTTP/1.1\r\nHost: a\r\n{SPDY}\r\n",
    "exec by GET": f"GET {EXEC} HTTP/1.1\r\nHost: a\r\n{WEBSOCKET}\r\n",
    "attach": f"POST /attach/default/box/main?output=1 HTTP/1.1\r\nHost: a\r\n{SPDY}\r\n",
    "ports": f"POST /portForward/default/box HTTP/1.1\r\nHost: a\r\n{SPDY.replace('v4.channel', 'portforward')}\r\n",
    "logs": "GET /containerLogs/default/box/main HTTP/1.1\r\nHost: a\r\n\r\n",
    "health": "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "nothing": "GET /pods HTTP/1.1\r\nHost: a\r\n\r\n",
    "a public path of others": "GET /version HTTP/1.1\r\nHost: a\r\n\r\n",
}
ALL_IN = dict(zip(REQUESTS, (101, 101, 101, 101, 200, 200, 404, 404), strict=True))
LOOKING_ONLY = {**dict.fromkeys(REQUESTS, 403), "logs": 200, "health": 200}
NONE_IN = {**dict.fromkeys(REQUESTS, 403), "health": 200}
UNKNOWN = {**dict.fromkeys(REQUESTS, 401), "health": 200, "a public path of others": 404}


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def may(client: Client, user: str, verbs: list[str], names: list[str], resource: str = "nodes/proxy") -> None:
    rule: Object = {"apiGroups": [""], "resources": [resource], "verbs": verbs}
    rules = [{**rule, **({"resourceNames": names} if names else {})}]
    await client.create(CLUSTER_ROLE, {**made(CLUSTER_ROLE.kind, user), "rules": rules})
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": user}
    subjects = [{"apiGroup": CLUSTER_ROLE.group, "kind": "User", "name": user}]
    await client.create(
        CLUSTER_ROLE_BINDING, {**made(CLUSTER_ROLE_BINDING.kind, user), "roleRef": reference, "subjects": subjects}
    )


def made(kind: str, name: str) -> Object:
    return {"apiVersion": CLUSTER_ROLE.api_version, "kind": kind, "metadata": {"name": name}}


# User, groups, granted permission (verbs, node names, resource), and the expected responses.
TABLE = [
    pytest.param("", (), None, UNKNOWN, id="without a certificate"),
    pytest.param("sandpool-admin", (MASTERS,), None, ALL_IN, id="an administrator"),
    pytest.param(KUBELET_CLIENT, (MASTERS,), None, ALL_IN, id="the API server"),
    pytest.param("jane", ("users",), None, NONE_IN, id="an ordinary user"),
    pytest.param(f"system:node:{NODE}", ("system:nodes",), None, NONE_IN, id="a node"),
    pytest.param("jane", (), (["*"], [], "pods/exec"), NONE_IN, id="permission for pods/exec"),
    pytest.param("jane", (), (["*"], ["other"], "nodes/proxy"), NONE_IN, id="permission for another node"),
    pytest.param("jane", (), (["*"], [], "nodes"), NONE_IN, id="permission for nodes without proxy"),
    pytest.param("jane", (), (["get"], [], "nodes/proxy"), LOOKING_ONLY, id="permission to read"),
    pytest.param("jane", (), (["get", "create"], [NODE], "nodes/proxy"), ALL_IN, id="permission for this node"),
]


@pytest.mark.parametrize(("user", "groups", "grant", "expected"), TABLE)
async def test_only_authorized_certificates_are_admitted(
    rig: Rig,
    user: str,
    groups: tuple[str, ...],
    grant: tuple[list[str], list[str], str] | None,
    expected: dict[str, int],
) -> None:
    if grant is not None:
        await may(rig.client, user, *grant)
    identity = rig.kubelet.authority.client("another", user, *groups) if user else None
    found = {name: status(await rig.kubelet.ask(identity, text.encode())) for name, text in REQUESTS.items()}
    assert found == expected


@pytest.mark.parametrize(
    "line",
    ["Authorization: Bearer anything", "Impersonate-User: sandpool-admin\r\nImpersonate-Group: system:masters"],
)
async def test_headers_and_tokens_do_not_authenticate(rig: Rig, line: str) -> None:
    request = REQUESTS["exec"].replace("Host: a", f"Host: a\r\n{line}").encode()
    assert status(await rig.kubelet.ask(None, request)) == 401
    jane = rig.kubelet.authority.client("jane", "jane")
    assert status(await rig.kubelet.ask(jane, request)) == 403


async def test_impersonation_is_rejected(rig: Rig) -> None:
    request = REQUESTS["logs"].replace("Host: a", "Host: a\r\nImpersonate-User: jane").encode()
    answer = await rig.kubelet.ask(rig.kubelet.authority.admin(), request)
    assert (status(answer), b"impersonation is not supported" in answer) == (403, True)


class LastYear(SystemClock):
    def now(self) -> datetime:
        return datetime.now(UTC) - timedelta(days=400)


def stranger(rig: Rig, directory: Path) -> Identity:
    """The administrator's certificate, signed by another CA."""
    return Authority(directory / "other", SystemClock()).admin()


def late(rig: Rig, directory: Path) -> Identity:
    return Authority(rig.kubelet.directory / "clients", LastYear()).client("late", "sandpool-admin", MASTERS)


def server(rig: Rig, directory: Path) -> Identity:
    """Signed by the right CA, for server use."""
    return rig.kubelet.authority.server()


@pytest.mark.parametrize("show", [stranger, late, server])
async def test_invalid_certificate_closes_the_connection(
    rig: Rig, tmp_path: Path, show: Callable[[Rig, Path], Identity]
) -> None:
    with pytest.raises((ssl.SSLError, OSError, EOFError)):
        await rig.kubelet.ask(show(rig, tmp_path), REQUESTS["health"].encode())
    assert status(await rig.kubelet.ask(None, REQUESTS["health"].encode())) == 200


class Api:
    """Answers access reviews with a given status."""

    def __init__(self) -> None:
        self.answer: Object | Exception = {}
        self.asked: list[Object] = []

    async def create(self, type: object, review: Object) -> Object:
        self.asked.append(review)
        if isinstance(self.answer, Exception):
            raise self.answer
        return {**review, "status": self.answer}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def access(api: Api, clock: ManualClock) -> NodeAuthorizer:
    return NodeAuthorizer(api, clock, NODE)  # type: ignore[arg-type]


async def test_subject_access_review_request(access: NodeAuthorizer, api: Api) -> None:
    api.answer = {"allowed": True}
    await access.require(User("jane", ("a", "b"), extra={"id": ("1",)}), "create")
    (review,) = api.asked
    assert review["spec"] == {
        "user": "jane",
        "groups": ["a", "b"],
        "extra": {"id": ["1"]},
        "resourceAttributes": {
            "verb": "create",
            "version": "v1",
            "resource": "nodes",
            "subresource": "proxy",
            "name": NODE,
        },
    }


@pytest.mark.parametrize(
    "answer", [{}, {"allowed": False}, {"allowed": "true"}, {"allowed": True, "denied": True}, {"allowed": None}]
)
async def test_anything_but_allowed_is_denied(access: NodeAuthorizer, api: Api, answer: Object) -> None:
    api.answer = answer
    with pytest.raises(Forbidden, match="user=jane, verb=create, resource=nodes, subresource=proxy"):
        await access.require(User("jane"), "create")


@pytest.mark.parametrize(
    "error", [Forbidden("the node may not ask"), InternalError("broken"), TimeoutError(), ConnectionError("gone")]
)
async def test_failed_review_denies_and_is_not_cached(access: NodeAuthorizer, api: Api, error: Exception) -> None:
    api.answer = error
    with pytest.raises(ServiceUnavailable):
        await access.require(User("jane"), "create")
    api.answer = {"allowed": True}
    await access.require(User("jane"), "create")


async def test_decision_is_cached_briefly_per_user(access: NodeAuthorizer, api: Api, clock: ManualClock) -> None:
    api.answer = {"allowed": True}
    await access.require(User("jane"), "create")
    api.answer = {"allowed": False}
    await access.require(User("jane"), "create")
    for user, verb in ((User("jane"), "get"), (User("jane", ("a",)), "create"), (User("joe"), "create")):
        with pytest.raises(Forbidden):
            await access.require(user, verb)  # type: ignore[arg-type]
    await clock.advance(REMEMBERED)
    with pytest.raises(Forbidden):
        await access.require(User("jane"), "create")
    assert len(access._answers) == 1, "and what is no longer good is forgotten"
