"""``sandpool mcp`` as a host starts it, with real sandboxes."""

from __future__ import annotations

import asyncio
import base64
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from sandpool.cli.main import main
from sandpool.cli.mcp import _listening, _token
from tests.mcp.conftest import call, text
from tests.support.playground import WITHIN, Playground

# Starts a web server, and waits until it answers.
_SERVE = """cd site && python3 -m http.server 8000 >/dev/null 2>&1 &
until python3 -c 'import socket; socket.create_connection(("localhost", 8000))' 2>/dev/null; do :; done"""


@asynccontextmanager
async def at_stdio(home: Playground, *options: str) -> AsyncIterator[Client]:
    words = home.command("mcp", *options)
    server = StdioServerParameters(command=words[0], args=words[1:], env=home.environ)
    async with asyncio.timeout(WITHIN), Client(server) as client:
        yield client


@pytest.mark.isolation
async def test_a_session_at_stdio_works_in_a_real_sandbox_that_ends_with_it(home: Playground) -> None:
    async with at_stdio(home, "--pool", "python") as model:
        await call(model, "upload_file", path="a.csv", content="1,2\n3,4\n")
        code = "import csv; sum(int(cell) for row in csv.reader(open('a.csv')) for cell in row)"
        assert text(await model.call_tool("run_code", {"code": code})) == "10"
        done = await call(model, "execute_command", command="id -u; cat /proc/sys/kernel/hostname")
        (name,) = (await call(model, "list_sandboxes"))["sandbox_claim_names"]
        assert done["stdout"].splitlines()[0] == "1000"
        assert home.claims() == [f"claim/{name}"]
    assert home.claims() == []


@pytest.mark.isolation
async def test_a_web_server_in_the_sandbox_has_a_url(home: Playground) -> None:
    user = home.over_the_socket().through_the_api()  # without KUBECONFIG: the router of the home is known
    async with at_stdio(user) as model:
        await call(model, "upload_file", path="site/index.html", content="hello")
        await call(model, "execute_command", command=_SERVE)
        opened = await call(model, "open_port", port=8000, expires_seconds=60)
        where = urlsplit(opened["url"])
        async with httpx2.AsyncClient() as http:
            # Names below localhost, which browsers resolve by themselves, are unknown to some C libraries.
            local = where._replace(netloc=f"127.0.0.1:{where.port}").geturl()
            answer = await http.get(local, headers={"Host": where.netloc}, follow_redirects=False)
            while answer.has_redirect_location:
                cookies = "; ".join(f"{name}={value}" for name, value in answer.cookies.items())
                local = urljoin(local, answer.headers["location"])
                answer = await http.get(local, headers={"Host": where.netloc, "Cookie": cookies})
        assert answer.text == "hello"


@pytest.mark.isolation
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_over_http_has_a_token_and_releases_everything_at_its_end(
    home: Playground, tmp_path: Path, number: signal.Signals
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-for-the-test\n")
    command = home.command("mcp", "--http", "0", "--token-file", str(token))
    with subprocess.Popen(command, env=home.environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        found = re.search(rb"http://127\.0\.0\.1:\d+/mcp", process.stderr.readline())
        assert found is not None
        asyncio.run(_use(found[0].decode(), token.read_text().strip(), home))
        process.send_signal(number)
        process.wait(WITHIN)
        assert process.stderr.read() == b""
    assert home.claims() == []


async def _use(url: str, token: str, home: Playground) -> None:
    """Leave a sandbox behind, as a client does that is killed."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=WITHIN) as http,
        Client(streamable_http_client(url, http_client=http, terminate_on_close=False), mode="legacy") as model,
    ):
        picture = "class P:\n    def _repr_png_(self): return b'PNG'\nP()"
        (block,) = (await model.call_tool("run_code", {"code": picture})).content
        assert base64.b64decode(getattr(block, "data", "")) == b"PNG"
    assert len(home.claims()) == 1


@pytest.mark.isolation
def test_a_host_that_ends_the_server_with_a_signal_leaves_no_sandbox(home: Playground) -> None:
    requests = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
        b'"clientInfo":{"name":"x","version":"1"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"file_exists","arguments":{"path":"x"}}}\n'
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(home.command("mcp"), env=home.environ, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(requests)
        process.stdin.flush()
        assert b'"id":1' in process.stdout.readline()
        assert b'"exists":false' in process.stdout.readline().replace(b" ", b"")
        assert len(home.claims()) == 1
        process.terminate()
        process.wait(WITHIN)
    assert home.claims() == []


def test_without_the_sdk_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    result = CliRunner().invoke(main, ["mcp"])
    assert (result.exit_code, "pip install 'sandpool[mcp]'" in result.output) == (1, True)


@pytest.mark.parametrize("address", ["x", "127.0.0.1:", "1.2.3.4:99999"])
def test_an_address_that_is_none_is_told(address: str) -> None:
    result = CliRunner().invoke(main, ["mcp", "--http", address])
    assert (result.exit_code, "use PORT or HOST:PORT" in result.output) == (1, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]"])
def test_other_addresses_than_loopback_are_refused_without_tls(tmp_path: Path, host: str) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-for-the-test\n")
    result = CliRunner().invoke(main, ["mcp", "--http", f"{host}:0", "--token-file", str(token)])
    told = (
        f"--http {host}:0 is reachable from other machines: put a proxy with TLS in front, and add --behind-tls-proxy"
    )
    assert (result.exit_code, told in result.output) == (1, True)


def test_other_addresses_are_served_behind_a_proxy_with_tls() -> None:
    with _listening("0.0.0.0:0", behind_tls_proxy=True) as listening:
        assert listening.getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("token", [None, "short", "with a space in the middle", "no-ascii-tökens-please"])
def test_a_weak_token_is_refused(tmp_path: Path, token: str | None) -> None:
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token)
    result = CliRunner().invoke(main, ["mcp", "--http", "0", "--token-file", str(file)])
    told = "cannot read the token" if token is None else "at least 16"
    assert (result.exit_code, told in result.output) == (1, True)


def test_a_token_is_made_once_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    token, file = _token(None)
    assert (len(token) >= 43, file.stat().st_mode & 0o777) == (True, 0o600)
    assert _token(None) == (token, file)
