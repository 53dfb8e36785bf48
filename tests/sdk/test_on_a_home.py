"""The client, blocking, against a local home with real sandboxes: the examples of its documentation, and more."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import sandpool
from sandpool import Client, SandboxLost
from sandpool.api.kinds import POD
from sandpool.kube import kubeconfig
from sandpool.sdk.blocking import Sandbox, Shell
from sandpool.sdk.errors import SandpoolError
from sandpool.service.service import Service
from tests.support.playground import Playground, playground

pytestmark = pytest.mark.isolation

ROOT = Path(sandpool.__file__).parent.parent.parent
# Smaller amounts than a reader would use.
_SMALLER = (("range(1000), parallelism=100", "range(6), parallelism=2"),)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    with playground(tmp_path_factory.mktemp("sdk")) as running:
        yield running


@pytest.fixture
def client(home: Playground, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the user of the home, who has nothing but KUBECONFIG."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home.directory))
    monkeypatch.setenv("KUBECONFIG", str(home.kubeconfig))
    with Client() as client:
        yield client


@pytest.fixture
def sb(client: Client) -> Iterator[Sandbox]:
    with client.sandbox() as sandbox:
        yield sandbox


def examples(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def run_program(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_lines_of_the_readme_run(client: Client) -> None:
    assert run_program(examples("README.md")[0]) == "42\n\n3.141592653589793\n"


def test_examples_of_the_documentation_run(client: Client, sb: Sandbox, tmp_path: Path) -> None:
    run_examples(client, sb, tmp_path)


def run_examples(client: Client, sb: Sandbox, directory: Path) -> None:
    """Run the examples of the documentation of the client. Whole programs find the API by themselves."""
    sb.files.write("job.py", "print('done')")
    found = examples("docs/python.md")
    assert len(found) > 8
    for number, example in enumerate(found):
        code = example
        for given, smaller in _SMALLER:
            code = code.replace(given, smaller)
        file = directory / f"example{number}.py"  # ``map`` reads the source of its function there
        file.write_text(code)
        if "Client(" in code:  # a whole program
            run_program(code)
        else:
            names: dict[str, Any] = {"client": client, "sb": sb}
            exec(compile(code, file, "exec"), names)


def shows(shell: Shell, command: str, wanted: str) -> None:
    """Repeat a command until its output has a text: sizes arrive beside the input."""
    seen = ""
    while wanted not in seen:
        shell.send(f"{command}; echo end$((0))\n")
        seen = ""
        while "end0" not in seen:
            seen += shell.read(timeout=20).decode()


def test_terminal_is_real(sb: Sandbox) -> None:
    with sb.shell("sh", columns=101, rows=37, env={"PS1": "> "}) as shell:
        shows(shell, "stty size", "37 101")
        shows(shell, "echo $TERM", "xterm-256color")
        shows(shell, "tty", "/dev/pts/")
        shell.resize(90, 20)
        shows(shell, "stty size", "20 90")
        shell.send("exit 7\n")
        assert shell.wait() == 7


def test_running_command_is_killed_in_the_sandbox(sb: Sandbox) -> None:
    running = sb.run("echo $$; exec sleep 1000", stream=True)
    piece = running.read(timeout=20)
    assert piece is not None
    pid = piece.text.strip()
    assert sb.run(["test", "-d", f"/proc/{pid}"]).ok
    running.kill()
    assert running.wait().exit_code == -1
    while sb.run(["test", "-d", f"/proc/{pid}"]).ok:
        continue


def test_large_content_is_streamed_both_ways(sb: Sandbox) -> None:
    pieces = [bytes([number]) * (1 << 20) for number in range(8)]
    sb.files.write("big", iter(pieces))
    assert sb.files.stat("big").size == 8 << 20
    assert b"".join(sb.files.stream("big")) == b"".join(pieces)


def claimed(home: Playground) -> list[str]:
    return [name.removeprefix("claim/") for name in home.claims()]


def get(url: str) -> tuple[int, bytes]:
    """Fetch a URL whose host name ``*.localhost`` not every resolver knows."""
    parts = urlsplit(url)
    request = urllib.request.Request(f"http://127.0.0.1:{parts.port}{parts.path}?{parts.query}")
    request.add_header("Host", parts.netloc)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_signed_url_reaches_its_port_and_no_other(client: Client, sb: Sandbox) -> None:
    sb.files.write("page/index.html", "<h1>hello</h1>")
    sb.start("cd page && exec python3 -m http.server 8000", id="web")
    url = sb.url(8000, expires=600)
    assert get(url) == (200, b"<h1>hello</h1>")
    label = urlsplit(url).netloc
    with client.sandbox() as other:
        wrong = urlsplit(other.url(8000, expires=600)).netloc
        assert get(url.replace(label, wrong))[0] == 401
    assert get(url.partition("?")[0])[0] == 401
    assert get(sb.url(8000, expires=-1))[0] == 401


def test_url_of_a_port_without_a_server_says_what_to_do(sb: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    url = sb.url(8765)
    for _ in range(2):  # as a program does that waits for its server
        status, said = get(url)
        assert status == 502
        assert b"forwarding port 8765: nothing listens on it. A server in " in said
        assert b" has to listen on port 8765 of 0.0.0.0\n" in said
    assert [record.name for record in caplog.records] == ["sandpool.sdk"]
    assert f"{caplog.messages[0]}\n".encode() == said


def test_suspended_sandbox_keeps_its_claim_and_its_variables(client: Client) -> None:
    client.template("bound", image="sandpool.local/python", late_binding=True)
    client.pool("bound", template="bound", size=1).wait_ready(1, timeout=60)
    with client.sandbox("bound", env={"TOKEN": "yellow"}) as sandbox:
        assert sandbox.launch == "warm"
        for _ in range(3):
            sandbox.start("sleep 1000", id="gone")
            sandbox.suspend()
            with pytest.raises(SandpoolError, match="is suspended"):
                sandbox.run("true")
            sandbox.resume()
            assert sandbox.run("echo $TOKEN").stdout == "yellow\n"
            with sandbox.code.session() as session:
                assert session.run("import os; print(os.environ['TOKEN'])").stdout == "yellow\n"
            assert sandbox.processes() == []
    client.pool("bound").delete()
    client.template("bound").delete()


def test_sandbox_that_ran_out_of_memory_is_lost(client: Client) -> None:
    client.template("small", image="sandpool.local/python", memory="96Mi")
    client.pool("small", template="small", size=1).wait_ready(1, timeout=60)
    with client.sandbox("small") as sandbox:
        with pytest.raises(SandboxLost, match="ran out of memory") as caught:
            sandbox.run(["python3", "-c", "hog = [bytearray(16 << 20) for _ in range(64)]"])
        assert (caught.value.reason, caught.value.retryable) == ("OOMKilled", True)
    client.pool("small").delete()
    client.template("small").delete()


def test_sandbox_whose_pod_was_evicted_is_lost(client: Client, home: Playground, sb: Sandbox) -> None:
    running = sb.run("echo begun; sleep 1000", stream=True)
    assert running.read(timeout=20) is not None
    evict(home, sb.name)
    with pytest.raises(SandboxLost) as caught:
        running.wait()
    assert (caught.value.reason, caught.value.retryable) == ("PodReplaced", True)


def evict(home: Playground, claim: str) -> None:
    """Evict the pod of a claim, as a drain of its node does."""

    async def evict() -> None:
        async with Service.connect(kubeconfig.load(home.kubeconfig)) as service:
            sandbox = await service.sandboxes.find(claim)
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": sandbox.pod}}
            await service.client.create(POD, eviction, sandbox.namespace, name=sandbox.pod, subresource="eviction")

    asyncio.run(evict())


def test_client_ends_its_sandboxes_and_leaves_kept_ones(client: Client, home: Playground) -> None:
    with Client() as other:
        held = other.sandbox()
        other.sandbox(keep=True, name="kept-by-a-client")
        assert held.name in claimed(home)
    assert held.name not in claimed(home)
    again = client.connect("kept-by-a-client")
    assert again.run("echo still here").stdout == "still here\n"
    again.release()
    assert "kept-by-a-client" not in claimed(home)
