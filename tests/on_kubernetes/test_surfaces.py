"""The dashboard, the E2B endpoint, the MCP server and the Python client on a real Kubernetes whose sandboxes run.

Each is a service account with the role that its page of the documentation shows: no request is forbidden, and no
permission is left unused."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import mcp
import pytest
import yaml
from mcp import StdioServerParameters

from sandpool import Client, SandboxLost, SandpoolError
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, SharedObject
from sandpool.bench.child_process import Component
from sandpool.install import names
from sandpool.sdk.blocking import Sandbox
from sandpool.sdk.router_access import TOKEN_VARIABLE, URL_VARIABLE
from sandpool.service.templates import previous_revision
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.cli.test_dashboard import Visitor
from tests.cli.test_up_children_features import use_every_page_and_button, use_every_part
from tests.dashboard.conftest import next_event
from tests.e2b.conftest import Api, Tenant
from tests.mcp.conftest import call, fails, text
from tests.sdk.test_on_a_home import get, run_examples
from tests.support import e2b_scripts as scripts
from tests.support.assets import Assets
from tests.support.cluster_with_node import ClusterWithNode
from tests.support.documented_role import documented_rules
from tests.support.e2b_endpoint import VOLUME_POOL, VOLUME_TEMPLATE, E2bProgram, find_python
from tests.support.permissions import permissions, use_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.isolation, pytest.mark.timeout(300)]

# The users, and the namespaces of their sandboxes.
USERS = DASHBOARD, READER, E2B, MCP, PROGRAM = "dashboard", "reader", "e2b", "mcp", "program"
WITHIN: Final = 60.0
SERVE: Final = "python3 -m http.server 8000"
#: Returns once that listens.
LISTENING: Final = (
    """until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8000))' 2>&-; do :; done"""
)
_UPGRADE: Final = "newer versions of Kubernetes ask for it besides get, which is not in the audit log"
# What is granted and not seen to be used, and why it is granted all the same.
IN_RESERVE: Final = {("pods/exec", "create"): _UPGRADE, ("pods/portforward", "create"): _UPGRADE}
#: Scripts of the published packages; one of each part of the endpoint.
SCRIPTS: Final = (
    scripts.creates_finds_and_kills,
    scripts.runs_commands,
    scripts.runs_commands_in_the_background,
    scripts.moves_files,
    scripts.opens_a_terminal,
    scripts.watches_directories,
    scripts.runs_code,
    scripts.reaches_ports,
    scripts.refuses_what_is_not_served,
)


@pytest.fixture(scope="module")
def cluster(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ClusterWithNode]:
    directory = tmp_path_factory.mktemp("surfaces")
    with ClusterWithNode(kubernetes_assets, directory, USERS) as cluster:
        yield cluster
        use_of(pytestconfig).note(cluster.plane.audit_log)


def sandpool(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "sandpool.cli.main", *map(str, words)]


@contextmanager
def serving(cluster: ClusterWithNode, said: str, *words: str | Path) -> Iterator[Component]:
    """Run a server, which has said this."""
    log = cluster.directory / f"{words[0]}-{secrets.token_hex(4)}.log"
    process = Component(f"sandpool {words[0]}", sandpool(*words), log)
    process.start()
    try:
        process.wait_for(said, WITHIN)
        yield process
    finally:
        process.stop()


def volume_pool() -> list[Object]:
    """A template with a volume at /data, and a pool that makes its sandboxes for their claims."""
    template: Object = yaml.safe_load(VOLUME_TEMPLATE)
    spec = {"replicas": 0, "sandboxTemplateRef": {"name": template["metadata"]["name"]}}
    return [template, new(SANDBOX_WARM_POOL, VOLUME_POOL, spec=spec)]


@dataclass(frozen=True)
class RunningRouter:
    """A router with scoped tokens, which does not run in a pod."""

    url: str
    secret: Path

    def variables(self, namespace: str) -> dict[str, str]:
        """Lead programs to it, with a token for all sandboxes of a namespace."""
        command = sandpool("token", "--all", "--namespace", namespace, "--secret-file", self.secret)
        token = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        return {URL_VARIABLE: self.url, TOKEN_VARIABLE: token}


@pytest.fixture(scope="module")
def router(cluster: ClusterWithNode) -> Iterator[RunningRouter]:
    secret = cluster.directory / "router-secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    addresses = [f"--{each}-bind-address=127.0.0.1:0" for each in ("http", "metrics", "health-probe")]
    kubeconfig = cluster.kubeconfig_of(names.ROUTER_ACCOUNT)
    access = ["--authz-mode=scoped-token", f"--authz-scoped-token-secret-file={secret}"]
    options = [f"--kubeconfig={kubeconfig}", *addresses, *access]
    with serving(cluster, "routing to the sandboxes", "router", *options) as process:
        port = re.findall(r" on port (\d+)", process.tail())[-1]
        yield RunningRouter(f"http://127.0.0.1:{port}", secret)


async def check_role(
    cluster: ClusterWithNode, user: str, page: str, more_in_reserve: dict[tuple[str, str], str] | None = None
) -> None:
    """Compare what a user did with the role on a page of the documentation."""
    granted, in_reserve = permissions(documented_rules(page)), {**IN_RESERVE, **(more_in_reserve or {})}

    async def used() -> bool:
        return granted - cluster.use_of(user).used <= in_reserve.keys()

    with suppress(TimeoutError):
        await until(used)  # a watch is in the audit log when the API has noticed its end
    use = cluster.use_of(user)
    assert use.forbidden == set()
    assert granted - use.used <= in_reserve.keys(), "granted and never used"
    assert in_reserve.keys() <= granted, "the list of what is in reserve is out of date"


@contextmanager
def serving_dashboard(cluster: ClusterWithNode, kubeconfig: Path, *options: str | Path) -> Iterator[Component]:
    where = ("--kubeconfig", kubeconfig, "--bind-address", "127.0.0.1:0")
    with serving(cluster, "token for further logins", "dashboard", *where, *options) as process:
        yield process


@pytest.fixture
def dashboard(cluster: ClusterWithNode) -> Iterator[Component]:
    kubeconfig = cluster.admit(DASHBOARD, documented_rules("dashboard.md"), everywhere=True)
    with serving_dashboard(cluster, kubeconfig, "--audit-log", cluster.plane.audit_log) as process:
        yield process


@pytest.fixture
def read_only_dashboard(cluster: ClusterWithNode) -> Iterator[Component]:
    """A dashboard of one namespace, with rights in that namespace alone."""
    kubeconfig = cluster.admit(READER, documented_rules("dashboard.md", until="# changes"))
    with serving_dashboard(cluster, kubeconfig, "--namespace", READER, "--read-only") as process:
        yield process


async def test_dashboard_needs_exactly_the_documented_role(cluster: ClusterWithNode, dashboard: Component) -> None:
    await use_every_page_and_button(Visitor(dashboard.log.read_text().split()[0]), DASHBOARD)
    async with cluster.client() as client:
        pool = await client.get(SANDBOX_WARM_POOL, "python", DASHBOARD)
        template = await client.get(SANDBOX_TEMPLATE, "python", DASHBOARD)
    assert pool["spec"]["replicas"] == 1
    assert limits(template["spec"])["cpu"] == "2", "the rollout was undone"
    assert limits(previous_revision(template) or {})["cpu"] == "150m"
    assert await claims(cluster, DASHBOARD) == []
    assert dashboard.end() == 0
    await check_role(cluster, DASHBOARD, "dashboard.md")


def limits(spec: SharedObject) -> SharedObject:
    """The limits in the spec of a template."""
    found: SharedObject = spec["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]
    return found


async def test_read_only_dashboard_of_a_namespace_needs_the_first_rules_of_the_role(
    cluster: ClusterWithNode, read_only_dashboard: Component
) -> None:
    """Nodes are in no namespace: the pages say that they may not be read, and show the rest."""
    visitor = Visitor(read_only_dashboard.log.read_text().split()[0])
    headers = {"Origin": visitor.base, "Cookie": visitor.cookie, "X-Sandpool-Session": visitor.secret}
    async with aiohttp.ClientSession() as session, session.get(f"{visitor.base}/api/live", headers=headers) as live:
        told, usage = await next_event(live, "rows"), await next_event(live, "usage")
    assert list(told["unseen"]) == ["nodes"]
    assert ["forbidden" in each for each in usage["problems"]] == [True]
    assert list(told["rows"]["pools"]) == [f"{READER}/python"]
    sandbox = next(iter(told["rows"]["sandboxes"])).partition("/")[2]
    assert visitor.get(f"/api/sandboxes/{READER}/{sandbox}/activity")["processes"]
    assert visitor.get(f"/api/why/pool/{READER}/python")["unknown"] == []
    with pytest.raises(urllib.error.HTTPError, match="403"):
        visitor.post(f"/api/pools/{READER}/python/scale", {"replicas": 1})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        visitor.get(f"/api/why/pool/{DASHBOARD}/python")
    assert read_only_dashboard.end() == 0
    assert cluster.use_of(READER).forbidden == {"list nodes", "get nodes/proxy"}


@pytest.fixture
def e2b_kubeconfig(cluster: ClusterWithNode) -> Path:
    kubeconfig = cluster.admit(E2B, documented_rules("e2b.md"), everywhere=True)
    cluster.create(E2B, *volume_pool())
    return kubeconfig


@pytest.fixture
def keys(cluster: ClusterWithNode, e2b_kubeconfig: Path) -> tuple[str, str]:
    """The API keys of two tenants in one namespace. Making the first one makes the namespace of the keys."""
    command = sandpool("e2b", "key", "create", "--kubeconfig", cluster.plane.kubeconfig, "--namespace", E2B)
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    return first.strip(), second.strip()


async def test_e2b_endpoint_needs_exactly_the_documented_role(
    cluster: ClusterWithNode, e2b_kubeconfig: Path, keys: tuple[str, str], tmp_path: Path
) -> None:
    options = ("--kubeconfig", e2b_kubeconfig, "--bind-address", "127.0.0.1:0")
    with serving(cluster, "E2B_SANDBOX_URL=", "e2b", "serve", *options) as endpoint:
        (url,) = re.findall(r"E2B_API_URL=(\S+)", endpoint.log.read_text())
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as session:
            await use_every_part(Tenant(Api(session, url), keys[0]))
        if find_python() is not None:
            use_published_packages(url, keys, tmp_path)
        assert endpoint.end() == 0
    await check_role(cluster, E2B, "e2b.md")


def use_published_packages(url: str, keys: tuple[str, str], directory: Path) -> None:
    program, other = (E2bProgram(url, key, directory) for key in keys)
    try:
        for script in SCRIPTS:
            program(script)
        program(scripts.pauses_and_resumes, VOLUME_POOL)
        sandbox = program(scripts.creates)
        other(scripts.sees_none_of, sandbox)
        program(scripts.kills, sandbox)
    finally:
        program.stop()
        other.stop()


@pytest.fixture
def mcp_kubeconfig(cluster: ClusterWithNode) -> Path:
    return cluster.admit(MCP, documented_rules("python.md"))


async def test_mcp_server_works_with_the_documented_role(
    cluster: ClusterWithNode, mcp_kubeconfig: Path, router: RunningRouter
) -> None:
    words = sandpool("mcp", "--kubeconfig", mcp_kubeconfig)
    environ = {**os.environ, **router.variables(MCP)}
    server = StdioServerParameters(command=words[0], args=words[1:], env=environ)
    async with mcp.Client(server) as model:
        await call(model, "upload_file", path="a.csv", content="1,2\n3,4\n")
        assert (await call(model, "download_file", path="a.csv"))["content"] == "1,2\n3,4\n"
        assert (await call(model, "file_exists", path="a.csv"))["exists"]
        assert [each["name"] for each in (await call(model, "list_files", path="."))["entries"]] == ["a.csv"]
        code = "import csv; sum(int(cell) for row in csv.reader(open('a.csv')) for cell in row)"
        assert text(await model.call_tool("run_code", {"code": code})) == "10"
        done = await call(model, "execute_command", command="echo out; echo err >&2; exit 3")
        assert (done["stdout"], done["stderr"], done["exit_code"]) == ("out\n", "err\n", 3)
        await call(model, "execute_command", command=f"{SERVE} >/dev/null 2>&1 & {LISTENING}")
        opened = await call(model, "open_port", port=8000)
        assert (await asyncio.to_thread(get, opened["url"]))[0] == 200
        (first,) = (await call(model, "list_sandboxes"))["sandbox_claim_names"]
        assert "there is no pool" in await fails(model, "create_sandbox", warmpool="pythn")
        second = (await call(model, "create_sandbox", warmpool="python"))["sandbox_claim_name"]
        assert await claims(cluster, MCP) == sorted((first, second))
        await call(model, "delete_sandbox", sandbox_claim_name=second)
        assert await claims(cluster, MCP) == [first]
    assert await claims(cluster, MCP) == []
    assert cluster.use_of(MCP).forbidden == set()


async def claims(cluster: ClusterWithNode, namespace: str) -> list[str]:
    async with cluster.client() as client:
        return sorted(each["metadata"]["name"] for each in (await client.list(SANDBOX_CLAIM, namespace))["items"])


@pytest.fixture
def client(cluster: ClusterWithNode, router: RunningRouter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    kubeconfig = cluster.admit(PROGRAM, documented_rules("python.md"))
    cluster.create(PROGRAM, *volume_pool())
    for name, value in {"KUBECONFIG": str(kubeconfig), **router.variables(PROGRAM)}.items():
        monkeypatch.setenv(name, value)
    with Client() as client:
        yield client


def test_python_client_needs_exactly_the_documented_role(
    cluster: ClusterWithNode, client: Client, tmp_path: Path
) -> None:
    with client.sandbox() as sb:
        assert sb.launch == "warm"
        run_examples(client, sb, tmp_path)
        reach_a_port(sb)
    give_variables_to_a_warm_sandbox(client)
    keep_a_volume_while_suspended(client)
    share_by_key(client)
    with pytest.raises(SandpoolError, match=r"Did you mean python\?"):
        client.sandbox("pythn")
    with pytest.raises(SandpoolError, match=r"Did you mean python\?"):
        client.template("pythn")
    be_told_of_a_loss(client)
    leave_nothing_when_killed(cluster)
    client.close()
    in_reserve = {
        ("sandboxclaims", "list"): "a watch that the API cannot continue begins with a list",
        ("sandboxes", "list"): "names those that exist if one was deleted meanwhile",
    }
    asyncio.run(check_role(cluster, PROGRAM, "python.md", in_reserve))


def reach_a_port(sb: Sandbox) -> None:
    sb.files.write("page/index.html", "hello")
    sb.start(f"cd page && exec {SERVE}", id="page")
    sb.run(LISTENING, timeout=WITHIN).check()
    with urllib.request.urlopen(sb.url(8000), timeout=WITHIN) as answer:
        assert answer.read() == b"hello"
    signed = sb.url(8000, expires=600)
    assert get(signed) == (200, b"hello")
    assert get(signed.partition("?")[0])[0] == 401


def give_variables_to_a_warm_sandbox(client: Client) -> None:
    client.template("late", image="sandpool.local/python", port=8888, late_binding=True, env_policy="Allowed")
    pool = client.pool("late", template="late", size=1)
    pool.wait_ready()
    with client.sandbox("late", env={"TASK": "größe"}) as sb:
        assert sb.launch == "warm"
        assert sb.run("echo $TASK").stdout == "größe\n"
        assert sb.code.run("import os; os.environ['TASK']").text == "'größe'"
    pool.delete()
    client.template("late").delete()


def keep_a_volume_while_suspended(client: Client) -> None:
    with client.sandbox(VOLUME_POOL) as sb:
        assert sb.launch == "cold"
        sb.files.write("/data/kept", "of the volume")
        sb.files.write("lost", "of the sandbox")
        sb.suspend()
        sb.resume()
        assert sb.files.read_text("/data/kept") == "of the volume"
        assert not sb.files.exists("lost")


def share_by_key(client: Client) -> None:
    with client.sandbox(key="job 7") as first:
        with Client() as other, other.sandbox(key="job 7") as second:
            assert second.name == first.name
        assert first.run("echo still here").stdout == "still here\n"
        first.extend(600)
    client.sandbox(keep=True, name="mine")
    kept = client.connect("mine")
    assert kept.run("echo kept").stdout == "kept\n"
    kept.release()


def be_told_of_a_loss(client: Client) -> None:
    """A claim that another program releases."""
    lost = client.sandbox()
    client.connect(lost.name).release()
    with pytest.raises(SandboxLost, match="its claim was deleted"):
        while True:  # the garbage collector of the cluster deletes the sandbox
            lost.run("true")


def leave_nothing_when_killed(cluster: ClusterWithNode) -> None:
    """A program that is killed holds a sandbox with a lease of a few seconds."""
    program = "client = Client(lease=3); sandbox = client.sandbox(); print(sandbox.name, flush=True); input()"
    command = [sys.executable, "-c", f"from sandpool import Client; {program}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert asyncio.run(claims(cluster, PROGRAM)) == [name]
        process.kill()

    async def gone() -> bool:
        return await claims(cluster, PROGRAM) == []

    asyncio.run(until(gone))
