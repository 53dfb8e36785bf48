"""The dashboard and the E2B endpoint of ``sandpool up`` as processes: what they are, and what they may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.api.kinds import (
    CLUSTER_ROLE,
    NODE,
    POD,
    ROLE_BINDING,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SECRET,
    SERVICE_ACCOUNT,
    SUBJECT_ACCESS_REVIEW,
)
from sandpool.api.resource import ResourceType
from sandpool.bench.server_process import ServerProcess
from sandpool.e2b.keys import KEY_NAMESPACE
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.testing.objects import new
from tests.cli.test_dashboard import Visitor
from tests.cli.test_up import NODE as NODES
from tests.cli.test_up_e2b import listed, variables
from tests.support.children import check_confined, children_of, open_files, opened_by, status

MODULES = ("sandpool.dashboard", "sandpool.e2b")
ROUTER = "sandpool.router"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A home whose dashboard and endpoint run, because they have had a client."""
    data = tmp_path_factory.mktemp("up") / "data"
    log = data.with_name("audit.log")
    options = (*NODES, "--e2b", "--e2b-bind-address", "127.0.0.1:0", "--audit-log", str(log))
    with ServerProcess("up", options=options, data_dir=data) as running:
        Visitor(running.dashboard)
        listed(variables(running))
        yield running


def pid_of(server: ServerProcess, module: str) -> int:
    (pid,) = children_of(server.process.pid, module).values()
    return pid


@pytest.mark.parametrize("module", MODULES)
def test_process_has_no_privileges(server: ServerProcess, module: str) -> None:
    check_confined(pid_of(server, module))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can have children of other users")
def test_each_process_has_a_user_of_its_own(server: ServerProcess) -> None:
    pids = [server.process.pid, *(pid_of(server, module) for module in (ROUTER, *MODULES))]
    assert len({status(pid)["Uid"] for pid in pids}) == len(pids)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes the user of the process")
@pytest.mark.parametrize("module", MODULES)
def test_user_of_the_process_cannot_open_the_data(server: ServerProcess, module: str) -> None:
    assert server.data_dir is not None
    names = ("kubeconfig", "router-secret", "router-token", "tokens.csv", "dashboard-token", "e2b-key")
    private = [*server.data_dir.rglob("*"), *(server.directory / name for name in names)]
    files = [file for file in (*private, server.data_dir.with_name("audit.log")) if file.is_file()]
    assert len(files) > 10
    assert opened_by(status(pid_of(server, module))["Uid"].split()[0], files) == []


@pytest.mark.parametrize("module", MODULES)
def test_process_has_no_file_of_the_server_open(server: ServerProcess, module: str) -> None:
    assert open_files(pid_of(server, module)) == []


@pytest.mark.parametrize("user", ["sandpool-dashboard", "sandpool-e2b"])
async def test_user_may_serve_its_clients_and_nothing_else(server: ServerProcess, user: str) -> None:
    client = Client(HttpTransport(load(server.kubeconfig)))

    async def allowed(verb: str, kind: ResourceType, subresource: str = "", namespace: str = "default") -> bool:
        attributes = {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": namespace}
        spec = {"user": user, "resourceAttributes": {**attributes, "subresource": subresource}}
        review = await client.create(SUBJECT_ACCESS_REVIEW, {**new(SUBJECT_ACCESS_REVIEW, ""), "spec": spec})
        return bool(review["status"]["allowed"])

    is_dashboard = user == "sandpool-dashboard"
    for verb in ("list", "watch", "create", "delete"):
        assert await allowed(verb, SANDBOX_CLAIM)
    assert await allowed("create", POD, "exec")
    assert await allowed("patch", SANDBOX_TEMPLATE) == is_dashboard
    for verb in ("create", "update", "patch", "delete"):
        assert not await allowed(verb, POD) and not await allowed(verb, NODE)
    assert not await allowed("create", SANDBOX)
    for kind in (CLUSTER_ROLE, ROLE_BINDING, SERVICE_ACCOUNT):
        for verb in ("get", "list", "create", "patch", "bind", "escalate"):
            assert not await allowed(verb, kind)
    assert not await allowed("create", SERVICE_ACCOUNT, "token")
    for verb in ("list", "watch", "patch", "delete"):
        assert not await allowed(verb, SECRET)
    assert not await allowed("delete", SECRET, namespace=KEY_NAMESPACE)
    for verb in ("get", "create"):
        assert await allowed(verb, SECRET) != is_dashboard
    assert await allowed("list", SECRET, namespace=KEY_NAMESPACE) != is_dashboard
    await client.close()


async def test_read_only_dashboard_may_change_nothing(tmp_path: Path) -> None:
    with ServerProcess("up", options=(*NODES, "--dashboard-read-only")) as server:
        client = Client(HttpTransport(load(server.kubeconfig)))
        role = await client.get(CLUSTER_ROLE, "sandpool-dashboard")
        verbs = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
        assert {pair for pair in verbs if pair[1] not in ("get", "list", "watch")} == {("pods/exec", "create")}
        await client.close()


async def test_home_with_the_name_of_its_address_serves_both() -> None:
    """The processes cannot resolve a name, and the certificate has to be that of the name."""
    options = (*NODES, "--host", "localhost", "--metrics-bind-address", "localhost:0")
    with ServerProcess("up", options=(*options, "--e2b", "--e2b-bind-address", "127.0.0.1:0")) as server:
        assert listed(variables(server)) == []
        assert 'Pool "python"' in Visitor(server.dashboard).get("/api/why/pool/default/python")["sentence"]
