"""The router process of ``sandpool up``: what it is, what it may, and what happens when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import CLUSTER_ROLE, POD, ROLE, ROLE_BINDING, SANDBOX, SECRET, SUBJECT_ACCESS_REVIEW
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.bench.server_process import ServerProcess
from sandpool.kube.client import Client
from sandpool.kube.credentials import Fixed
from sandpool.kube.errors import NotFound
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.kube.pod_client import HttpPodClient
from sandpool.kube.port_forward import PortForward
from sandpool.router.gateway_api import GATEWAY
from sandpool.router.registration import POD_NAME, PORT
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.children import check_confined, open_files, opened_by, status
from tests.support.users import ADMIN, USERS

ROUTER = "sandpool-router"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests here. Those that kill its router wait for the next one."""
    options = ("--simulated-nodes", "1")
    data = tmp_path_factory.mktemp("up") / "data"
    with ServerProcess("up", options=options, data_dir=data, users=USERS) as running:
        yield running
        (pid,) = routers(parent(running))
    assert not Path(f"/proc/{pid}").exists(), "a parent that is told to stop ends its router"


def parent(server: ServerProcess) -> int:
    pid = server.process.pid
    assert pid is not None
    return pid


def routers(parent: int) -> list[int]:
    """The router processes that a process has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"sandpool.router" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as response:
        body: bytes = response.read()
        return body


def test_router_process_has_no_privileges(server: ServerProcess) -> None:
    (pid,) = routers(parent(server))
    check_confined(pid)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes the router's user")
def test_user_of_the_router_cannot_open_the_data(server: ServerProcess) -> None:
    assert server.data_dir is not None
    (pid,) = routers(parent(server))
    uid = status(pid)["Uid"].split()[0]
    private = [
        *(server.data_dir.rglob("*")),
        *(server.directory / name for name in ("kubeconfig", "router-secret", "router-token", "tokens.csv")),
    ]
    files = [file for file in private if file.is_file()]
    assert len(files) > 8
    assert opened_by(uid, files) == []


def test_router_process_has_no_file_of_the_server_open(server: ServerProcess) -> None:
    (pid,) = routers(parent(server))
    assert open_files(pid) == []


async def test_router_user_may_read_sandboxes_and_pods_and_nothing_else(server: ServerProcess) -> None:
    client = Client(HttpTransport(load(server.kubeconfig)))

    async def allowed(verb: str, kind: ResourceType, subresource: str = "") -> bool:
        attributes = {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": "default"}
        spec = {"user": ROUTER, "resourceAttributes": {**attributes, "subresource": subresource}}
        review = await client.create(SUBJECT_ACCESS_REVIEW, {**new(SUBJECT_ACCESS_REVIEW, ""), "spec": spec})
        return bool(review["status"]["allowed"])

    for kind in (SANDBOX, POD):
        assert [await allowed(verb, kind) for verb in ("get", "list", "watch")] == [True] * 3
        for verb in ("create", "update", "patch", "delete", "deletecollection"):
            assert not await allowed(verb, kind), f"{verb} {kind.plural}"
    for verb in ("get", "list", "watch", "create"):
        assert not await allowed(verb, SECRET)
        assert not await allowed(verb, CLUSTER_ROLE)
    for subresource in ("exec", "attach", "portforward", "log", "status"):
        assert not any([await allowed(verb, POD, subresource) for verb in ("get", "create", "patch")])
    await client.close()


async def forwarded_status(server: ServerProcess, user: str, namespace: str, authorization: str = "") -> int:
    """Return the status of the response to a request through a port-forward of ``user`` to the pod of the router in
    ``default``. The request names a sandbox that does not exist in ``namespace``: 404 if the user may reach it."""
    connection = replace(load(server.kubeconfig), credentials=Fixed.token(server.tokens[user]))
    async with PortForward(await HttpPodClient(connection).tunnel("default", POD_NAME)) as session:
        forwarded = await session.connect(PORT)
        await forwarded.send(
            f"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: none\r\nX-Sandbox-Namespace: {namespace}\r\n"
            f"Authorization: {authorization}\r\nConnection: close\r\n\r\n".encode()
        )
        response = b""
        while data := await forwarded.receive():
            response += data
    return int(response.split()[1])


async def test_port_forward_reaches_the_sandboxes_to_which_its_user_may_forward_ports(server: ServerProcess) -> None:
    client = Client(HttpTransport(load(server.kubeconfig)))
    forward = {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}
    for user, rule in (("alice", forward), ("bob", {**forward, "resourceNames": [POD_NAME]})):
        await client.create(ROLE, {**new(ROLE, user), "rules": [rule]}, "default")
        subject = {"kind": "User", "apiGroup": ROLE.group, "name": user}
        reference = {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": user}
        binding = {**new(ROLE_BINDING, user), "subjects": [subject], "roleRef": reference}
        await client.create(ROLE_BINDING, binding, "default")
    await client.close()
    token = f"Bearer {(server.directory / 'router-token').read_text()}"
    for user, namespace, authorization, expected in (
        (ADMIN, "default", "", 404),
        (ADMIN, "team", "", 404),
        ("alice", "default", "", 404),
        ("alice", "team", "", 401),
        ("bob", "default", "", 401),
        ("bob", "team", token, 404),
    ):
        found = await forwarded_status(server, user, namespace, authorization)
        assert found == expected, f"{user} in {namespace}"


def status_for_another_user(router: str) -> int:
    """The status of the response to a request without a token for a sandbox that does not exist: 404 if it may be
    reached. Bash connects, because another user may not be able to read the interpreter of the tests."""
    where = urllib.parse.urlsplit(router)
    request = f"GET / HTTP/1.1\\r\\nHost: {where.netloc}\\r\\nX-Sandbox-ID: none\\r\\nConnection: close\\r\\n\\r\\n"
    script = f"exec 3<>/dev/tcp/{where.hostname}/{where.port}; printf '{request}' >&3; cat <&3"
    user = 20_000_000
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    done = subprocess.run([*as_user, "bash", "-c", script], capture_output=True, check=True)
    return int(done.stdout.split()[1])


@pytest.mark.skipif(os.getuid() != 0, reason="connects as another user")
def test_insecure_router_asks_other_users_for_no_token(server: ServerProcess) -> None:
    assert status_for_another_user(server.router) == 401
    with ServerProcess("up", options=("--simulated-nodes", "1", "--router-insecure")) as insecure:
        assert status_for_another_user(insecure.router) == 404


def test_router_does_not_end_by_a_signal_for_the_whole_service(server: ServerProcess) -> None:
    """Service managers and terminals signal all processes; the parent decides when the router stops."""
    (pid,) = routers(parent(server))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert get(f"{server.router}/healthz") == b'{"status":"ok"}'
    assert routers(parent(server)) == [pid]


async def test_killed_router_is_replaced_on_the_same_port(server: ServerProcess) -> None:
    (first,) = routers(parent(server))
    client = Client(HttpTransport(load(server.kubeconfig)))
    gateway = await gateway_url(client)
    os.kill(first, signal.SIGKILL)
    # Clients wait in the socket, which stays open.
    answers = await asyncio.gather(*(asyncio.to_thread(get, f"{server.router}/healthz") for _ in range(10)))
    assert set(answers) == {b'{"status":"ok"}'}
    assert await asyncio.to_thread(get, f"{gateway}/healthz") == b'{"status":"ok"}'
    (second,) = routers(parent(server))
    assert second != first
    log = server.process.tail(1000).splitlines()
    assert len([line for line in log if "the router process ended (signal SIGKILL); restarting it in" in line]) == 1
    await client.delete(GATEWAY, "gateway", "default")
    await client.close()


async def gateway_url(client: Client) -> str:
    """Make a Gateway, and return the URL of its port once the router listens there."""
    with socket.create_server(("127.0.0.77", 0)) as sock:
        port = sock.getsockname()[1]
    listeners = [{"name": "http", "port": port, "protocol": "HTTP"}]
    gateway = new(GATEWAY, "gateway", spec={"gatewayClassName": "sandpool", "listeners": listeners})

    async def create() -> bool:
        try:
            await client.create(GATEWAY, gateway, "default")
        except NotFound:
            return False  # the kinds are being installed
        return True

    async def programmed() -> SharedObject | None:
        found = await client.get(GATEWAY, "gateway", "default")
        condition = condition_of(found, "Programmed")
        return found if condition is not None and condition["status"] == "True" else None

    await until(create)
    found = await until(programmed)
    assert found is not None
    return f"http://{found['status']['addresses'][0]['value']}:{port}"


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def gone(pid: int) -> None:
    async def ended() -> bool:
        return not runs(pid)

    await until(ended)


def test_metrics_of_the_router_are_in_those_of_up(server: ServerProcess) -> None:
    with pytest.raises(urllib.error.HTTPError):
        get(f"{server.router}/nothing")
    said = server.process.tail(1000).splitlines()
    url = next(words[1] for line in said if (words := line.split())[:1] == ["metrics"])
    assert b'sandbox_router_requests_total{code="400",method="GET",sandbox_namespace="-"}' in get(url)


async def test_no_router_outlives_a_killed_parent() -> None:
    async with ServerProcess("up", options=("--no-node", "--metrics-bind-address", "0")) as server:
        (pid,) = routers(parent(server))
        os.kill(parent(server), signal.SIGKILL)
        await gone(pid)
