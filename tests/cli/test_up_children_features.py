"""What the dashboard and the E2B endpoint of a home do with real sandboxes: they are processes that open no file, with
roles of their own, and nothing that they need may be missing."""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from sandpool.bench.server_process import ServerProcess
from sandpool.node.network.netns import NetworkNamespace
from tests.cli.test_dashboard import Visitor
from tests.cli.test_up_e2b import variables
from tests.e2b.conftest import Api, Tenant
from tests.e2b.test_interpreter import Interpreter

pytestmark = pytest.mark.isolation

# Returns once the server listens.
REACHED = """until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8080))' 2>/dev/null; do :; done"""
SERVE = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080, bind='0.0.0.0')"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("up")
    os.chmod(directory, 0o755)
    host, _ = NetworkNamespace.make(directory / "host", lambda: None)
    options = ("--host-netns", str(host.path), "--e2b", "--e2b-bind-address", "127.0.0.1:0")
    log = directory / "audit.log"
    with ServerProcess("up", options=(*options, "--audit-log", str(log)), data_dir=directory / "data") as running:
        yield running
    host.remove()


def status_of(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return int(answer.status)


async def test_every_page_and_button_of_the_dashboard_works(server: ServerProcess) -> None:
    await use_every_page_and_button(Visitor(server.dashboard), "default")


async def use_every_page_and_button(visitor: Visitor, namespace: str) -> None:
    """Do all that a dashboard offers, in a namespace that has the pool ``python``."""
    made = visitor.post("/api/claims", {"namespace": namespace, "pool": "python", "name": "mine", "minutes": 30})
    sandbox = f"/api/sandboxes/{namespace}/{made['sandbox']}"

    assert visitor.post(f"{sandbox}/run", {"language": "sh", "code": "echo $((6 * 7))"})["stdout"] == "42\n"
    assert visitor.post(f"{sandbox}/run", {"language": "python", "code": "x = 20"})["error"] is None
    assert visitor.post(f"{sandbox}/run", {"language": "python", "code": "x + 1"})["results"][0]["text"] == "21"
    visitor._request("PUT", f"{sandbox}/file?path=hello.txt", "hello")
    entries = visitor.get(f"{sandbox}/directory")["entries"]
    assert "hello.txt" in {each["name"] for each in entries}
    assert visitor.get(f"{sandbox}/preview?path=hello.txt")["text"] == '"hello"'
    assert visitor._request("GET", f"{sandbox}/download?path=hello.txt").read() == b'"hello"'
    activity = visitor.get(f"{sandbox}/activity")
    assert activity["processes"]

    visitor.post(f"{sandbox}/run", {"language": "sh", "code": f"python3 -c {SERVE!r} >/dev/null 2>&1 &"})
    url = visitor.post(f"{sandbox}/ports/8080", {})["url"]
    visitor.post(f"{sandbox}/run", {"language": "sh", "code": REACHED})
    assert status_of(url) == 200

    headers = {"Origin": visitor.base, "Cookie": visitor.cookie, "X-Sandpool-Session": visitor.secret}
    protocols = ("sandpool", f"session.{visitor.secret}")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as session:
        opening = session.ws_connect(f"{visitor.base}{sandbox}/terminal", headers=headers, protocols=protocols)
        async with opening as terminal:
            await terminal.send_str(json.dumps({"columns": 80, "rows": 24}))
            await terminal.send_bytes(b"echo a-$((1 + 1))-b\n")
            shown = b""
            while b"a-2-b" not in shown:
                shown += await terminal.receive_bytes(timeout=60)
        live = session.get(f"{visitor.base}/api/live", headers=headers)
        async with live as events:
            received = b""
            # Usage needs two samples; the rows have come by then.
            while received.count(b"event: usage") < 2:
                received += await events.content.readany()
        assert b'"problems":[]' in received
        assert made["sandbox"].encode() in received
        visitor.post(f"{sandbox}/run", {"language": "sh", "code": "echo logged >/proc/1/fd/1"})
        async with session.get(f"{visitor.base}{sandbox}/logs", headers=headers) as logs:
            assert await logs.content.readline() == b"logged\n"

    assert 'Claim "mine" is ready' in visitor.get(f"/api/why/claim/{namespace}/mine")["sentence"]
    for kind, name in (("sandbox", made["sandbox"]), ("pool", "python"), ("template", "python")):
        assert visitor.get(f"/api/why/{kind}/{namespace}/{name}")["unknown"] == []
    assert visitor.get(f"/api/trace/{namespace}/mine")["available"]

    pool = f"/api/pools/{namespace}/python"
    visitor.post(f"{pool}/scale", {"replicas": 1})
    visitor.post(f"{pool}/rollout", {"cpu": "150m"})
    visitor.post(f"{pool}/undo", {})
    visitor.post(f"{sandbox}/mode", {"suspended": True})
    visitor.post(f"{sandbox}/mode", {"suspended": False})
    visitor._request("DELETE", f"/api/claims/{namespace}/mine", {"uid": _uid(received, f"{namespace}/mine")})


def _uid(events: bytes, claim: str) -> str:
    line = next(line for line in events.splitlines() if line.startswith(b'data: {"all"'))
    rows: dict[str, Any] = json.loads(line.removeprefix(b"data: "))["rows"]["claims"]
    return str(rows[claim]["uid"])


async def test_every_part_of_the_endpoint_works(server: ServerProcess) -> None:
    found = variables(server)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as session:
        await use_every_part(Tenant(Api(session, found["E2B_API_URL"]), found["E2B_API_KEY"]))
    assert "PermissionError" not in server.process.tail(1000)


async def use_every_part(tenant: Tenant) -> None:
    """Do all that an endpoint offers, with a key of a namespace that has the pool ``python``."""
    guest = await tenant.create(envVars={"COLOUR": "blue"}, metadata={"a": "b"})

    command = {"cmd": "/bin/sh", "args": ["-c", "echo $COLOUR"]}
    messages, error = await guest.stream("process.Process/Start", {"process": command})
    assert error is None and "Ymx1ZQo=" in json.dumps(messages), messages  # "blue\n"
    form = aiohttp.FormData()
    form.add_field("file", b"content", filename="hello.txt")
    sent = await guest.api.request("POST", "/files?path=hello.txt", guest.headers, data=form)
    assert sent.status == 200, sent
    assert (await guest.api.request("GET", "/files?path=hello.txt", guest.headers)).body == b"content"
    assert "hello.txt" in str((await guest.call("filesystem.Filesystem/ListDir", path=".")).document)
    watching = await guest.call("filesystem.Filesystem/CreateWatcher", path=".", recursive=False)
    assert watching.status == 200, watching
    interpreter = Interpreter(guest)
    assert await interpreter.text("x = 20; x + 1") == "21"
    assert (await tenant("GET", f"/sandboxes/{guest.id}/metrics")).document[0]["memUsed"] > 0

    serving = {"cmd": "/bin/sh", "args": ["-c", f'python3 -c "{SERVE}" >/dev/null 2>&1 & echo started']}
    await guest.stream("process.Process/Start", {"process": serving})
    await guest.stream("process.Process/Start", {"process": {"cmd": "/bin/sh", "args": ["-c", REACHED]}})
    for _ in range(2):
        answer = await guest.api.request("GET", "/", {"Host": f"8080-{guest.id}.localhost"})
        assert answer.status == 200, answer

    assert (await tenant("POST", f"/sandboxes/{guest.id}/timeout", {"timeout": 600})).status == 204
    assert (await tenant("GET", "/v2/sandboxes")).document[0]["metadata"] == {"a": "b"}
    assert (await tenant("DELETE", f"/sandboxes/{guest.id}")).status == 204
