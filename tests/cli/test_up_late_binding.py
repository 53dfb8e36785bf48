"""``sandpool up``: a claim with variables gets a warm sandbox, and the values are nowhere else."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Self

import pytest
import pytest_asyncio

from sandpool.api.conditions import condition_of, is_ready
from sandpool.api.kinds import BUILT_IN, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import LATE_BINDING, LAUNCH_TYPE
from sandpool.api.resource import Object, SharedObject
from sandpool.bench.server_process import ServerProcess
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.kube.late_binding import BindingRefused, BindRequest, StreamBinder, through_port_forward
from sandpool.kube.pod_client import ExecOptions, HttpPodClient
from sandpool.node.network.netns import NetworkNamespace
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.node_command import SeparateNode
from tests.support.playground import Playground

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]

CONTAINER: Object = {
    "name": "runtime",
    "image": "sandpool.local/python",
    "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
}
_LARGEST = 1 << 24  # bytes of a file that the node writes; larger ones are disks of sandboxes
#: Runs a command through sandboxd, as both SDKs do through the router.
EXECUTE = """
import json, urllib.request
body = json.dumps({"command": "printenv TOKEN"}).encode()
print(json.load(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8888/execute", body)))["stdout"])
"""


class Home:
    def __init__(self, server: ServerProcess, audit_log: Path) -> None:
        self.server = server
        self.audit_log = audit_log

    def connect(self) -> None:
        connection = load(self.server.kubeconfig)
        self.client = Client(HttpTransport(connection))
        self.pods = HttpPodClient(connection)

    async def prepare(self) -> None:
        spec = {"podTemplate": {"spec": {"containers": [CONTAINER], "terminationGracePeriodSeconds": 1}}}
        template = new(
            SANDBOX_TEMPLATE,
            "late",
            metadata={"annotations": {LATE_BINDING: "true"}},
            spec={**spec, "envVarsInjectionPolicy": "Allowed"},
        )
        pool = new(SANDBOX_WARM_POOL, "late", spec={"replicas": 2, "sandboxTemplateRef": {"name": "late"}})
        await self.client.create(SANDBOX_TEMPLATE, template, "default")
        await self.client.create(SANDBOX_WARM_POOL, pool, "default")

        async def filled() -> bool:
            found = await self.client.get(SANDBOX_WARM_POOL, "late", "default")
            return bool((found.get("status") or {}).get("readyReplicas") == 2)

        await until(filled)

    async def claim(self, name: str, values: Mapping[str, str]) -> SharedObject:
        """Create a claim and return its sandbox once it is ready."""
        env = [{"name": key, "value": value} for key, value in values.items()]
        spec = {"warmPoolRef": {"name": "late"}, "env": env}
        await self.client.create(SANDBOX_CLAIM, new(SANDBOX_CLAIM, name, spec=spec), "default")

        async def ready() -> SharedObject | None:
            found = await self.client.get(SANDBOX_CLAIM, name, "default")
            return found if is_ready(found) else None

        claim = await until(ready)
        assert claim is not None
        return await self.client.get(SANDBOX, claim["status"]["sandbox"]["name"], "default")

    async def run(self, sandbox: SharedObject, *command: str) -> str:
        session = await self.pods.execute("default", sandbox["metadata"]["name"], ExecOptions(command))
        output = b"".join([piece.data async for piece in session.output()])
        await session.close()
        return output.decode().strip()


async def test_sandbox_on_a_node_of_another_process_is_bound_through_its_kubelet(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = tmp_path_factory.mktemp("node")
    options = ("--no-node", "--metrics-bind-address", "0", "--router-bind-address", "0", "--log-level", "debug")
    with (
        ServerProcess("up", options=options, data_dir=tmp_path / "api") as server,
        SeparateNode(server.kubeconfig, own, options=("--log-level", "debug")) as node,
    ):
        rig = Home(server, node.process.log)
        rig.connect()
        await rig.prepare()
        token = secrets.token_hex(16)
        box = await rig.claim("mine", {"TOKEN": token})
        assert box["metadata"]["labels"][LAUNCH_TYPE] == "warm"
        assert await rig.run(box, "printenv", "TOKEN") == token
        assert await rig.run(box, "python3", "-c", EXECUTE) == token
        for log in (node.process.log, server.process.log):
            assert (written := log.read_text())
            assert token not in written
        await rig.client.delete(SANDBOX_WARM_POOL, "late", "default")
        await rig.client.delete(SANDBOX_CLAIM, "mine", "default")

        async def no_pods() -> bool:
            return not (await rig.client.list(POD, "default"))["items"]

        await until(no_pods)
        await rig.client.close()


class SpanCollector:
    """Keeps what a process exports by OTLP over HTTP. The encoding has texts as they are."""

    def __init__(self) -> None:
        self.exported = b""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.exported += self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Self:
        self.thread = Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def spans() -> Iterator[SpanCollector]:
    """Receives the spans of ``home``."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
    with SpanCollector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server.server_port}")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds
        yield collector


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory, spans: SpanCollector) -> AsyncIterator[Home]:
    tmp_path = tmp_path_factory.mktemp("home")
    os.chmod(tmp_path, 0o755)
    host, _ = NetworkNamespace.make(tmp_path / "host", lambda: None)
    audit_log = tmp_path / "audit.log"
    options = ("--host-netns", str(host.path), "--metrics-bind-address", "0", "--audit-log", str(audit_log))
    verbose = ("--log-level", "debug", "--enable-tracing", "true")
    try:
        with ServerProcess("up", options=(*options, *verbose), data_dir=tmp_path / "data") as server:
            rig = Home(server, audit_log)
            rig.connect()
            await rig.prepare()
            yield rig
            await rig.client.close()
    finally:
        host.remove()


def files_with(text: str, place: Path) -> list[str]:
    """The files below a place that contain a text. Images, and the mounts and disks of sandboxes are left out."""
    device, found = place.stat().st_dev, list[str]()
    for directory, names, files in os.walk(place):
        names[:] = [name for name in names if name != "images" and os.lstat(f"{directory}/{name}").st_dev == device]
        for path in (Path(directory, file) for file in files):
            with suppress(OSError):
                is_disk = path.stat().st_size > _LARGEST
                if path.is_file() and not path.is_symlink() and not is_disk and text.encode() in path.read_bytes():
                    found.append(str(path))
    return found


def processes_with(text: str) -> Iterator[str]:
    """The processes of the machine with this text in their environment or command line."""
    for file in (*Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("[0-9]*/cmdline")):
        with suppress(OSError):
            if text.encode() in file.read_bytes():
                yield str(file)


async def test_values_reach_a_warm_sandbox_and_nothing_else(home: Home, spans: SpanCollector, tmp_path: Path) -> None:
    token = secrets.token_hex(16)
    box = await home.claim("mine", {"TOKEN": token})
    assert box["metadata"]["labels"][LAUNCH_TYPE] == "warm"
    assert await home.run(box, "printenv", "TOKEN") == token
    assert await home.run(box, "python3", "-c", EXECUTE) == token

    for kind in (*BUILT_IN, SANDBOX, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL):
        if not kind.kind.endswith("Review"):
            assert token not in json.dumps(await home.client.list(kind))
    claim = await home.client.get(SANDBOX_CLAIM, "mine", "default")
    assert token not in json.dumps(claim["status"])
    assert token in json.dumps(claim["spec"].pop("env"))
    assert token not in json.dumps(claim), "nor in its metadata"
    user = Playground(home.server.kubeconfig, tmp_path)
    trace = ("trace", "claim", "--audit-log", str(home.audit_log), "mine")

    async def is_in_the_log() -> bool:
        return (await asyncio.to_thread(user.run, *trace)).returncode == 0

    await until(is_in_the_log)  # the server writes its audit log in the background
    for command in (("why", "mine"), ("ls", "-a"), ("logs", "mine"), trace):
        assert token not in (shown := await asyncio.to_thread(user.works, *command)), command
        assert shown or command[0] == "logs", command  # a program may have logged nothing yet

    async def exported() -> bool:
        return b"ReconcileSandboxClaim" in spans.exported and b"mine" in spans.exported

    await until(exported)
    assert token.encode() not in spans.exported
    assert list(processes_with(token)) == []
    assert home.server.data_dir is not None
    assert files_with(token, home.server.data_dir / "node") == []
    for log in (home.audit_log, home.server.process.log):
        assert (written := log.read_text())
        assert token not in written


async def test_home_that_was_killed_gives_commands_the_values_again(home: Home) -> None:
    token = secrets.token_hex(16)
    box = await home.claim("killed", {"TOKEN": token})
    await home.client.close()
    home.server.restart(crash=True)
    home.connect()

    async def runs_again() -> bool:
        found = condition_of(await home.client.get(POD, box["metadata"]["name"], "default"), "Ready")
        return found is not None and found["status"] == "True"

    await until(runs_again)
    assert await home.run(box, "printenv", "TOKEN") == token
    assert await home.run(box, "python3", "-c", EXECUTE) == token


async def test_user_who_may_forward_ports_cannot_bind_again(home: Home) -> None:
    token = secrets.token_hex(16)
    box = await home.claim("forwarded", {"TOKEN": token})
    pod = await home.client.get(POD, box["metadata"]["name"], "default")
    binder = StreamBinder(through_port_forward(home.pods))
    with pytest.raises(BindingRefused, match="another claim"):
        await binder.bind(BindRequest(pod, "guessed", {"TOKEN": "blue"}))
    assert await home.run(box, "printenv", "TOKEN") == token
