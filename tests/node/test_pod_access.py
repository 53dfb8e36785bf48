"""kubectl with a real sandbox: exec, attach, cp, logs and port-forward."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import struct
import termios
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from benchmarks.data_exec import abandoned, exec_path
from sandpool.api.conditions import condition_of
from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.node.assembly import Node, NodeOptions
from sandpool.node.network.netns import NetworkNamespace
from sandpool.node.pod_access import NodePodAccess, _Output
from sandpool.node.registration import RegistrationOptions
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.kubectl import Kubectl, find_kubectls

KUBECTLS = find_kubectls()
pytestmark = [
    pytest.mark.isolation,
    pytest.mark.skipif(not KUBECTLS, reason="no kubectl: install the Debian package kubectl"),
]
SCRIPT = "echo out; echo err >&2; python3 -m http.server 8080 --bind 127.0.0.1 2>/dev/null & cat; wait"


class Rig:
    def __init__(self, daemon: Daemon, kubectl: Kubectl, directory: Path) -> None:
        self.daemon = daemon
        self.kubectl = kubectl
        self.directory = directory

    async def run(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self.kubectl, *arguments, stdin=stdin)

    async def fails(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.kubectl.fails, *arguments)

    async def typed(self, *arguments: str, keys: str) -> str:
        """Run kubectl on a terminal, type this and return the screen output."""
        command = " ".join(["stty cols 123 rows 45;", *self.kubectl.command(*arguments)])
        process = await asyncio.create_subprocess_exec(
            "script", "-qec", command, "/dev/null", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            output, _ = await process.communicate(keys.encode())
        return output.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    directory = tmp_path_factory.mktemp("pod-access")
    os.chmod(directory, 0o755)
    host, _ = NetworkNamespace.make(directory / "host", lambda: None)
    daemon = Daemon(ServerOptions(directory / "api", port=0))
    await daemon.start()
    options = NodeOptions(
        directory / "node",
        RegistrationOptions("real"),
        instance=f"-{os.getpid()}",
        first_host_user=4_000_000 + os.getpid() % 1000 * 1000,
        host=host.path,
    )
    node = Node(daemon.server.client(name="node"), SystemClock(), Random(), options)
    await node.start()
    daemon.server.pod_access = NodePodAccess(node.agent, node.logs)
    kubectl = Kubectl(list(KUBECTLS.values())[-1], daemon.kubeconfig, directory / "cache")
    client = daemon.server.client()
    spec: Object = {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "main", "image": "sandpool.local/python", "command": ["sh", "-c", SCRIPT], "stdin": True}
        ],
    }
    await client.create(POD, new(POD, "box", spec=spec), "default")
    await client.create(POD, new(POD, "hollow", spec={**spec, "runtimeClassName": "simulated"}), "default")

    async def ready() -> bool:
        found = [condition_of(await client.get(POD, name, "default"), "Ready") for name in ("box", "hollow")]
        return all(condition is not None and condition["status"] == "True" for condition in found)

    await until(ready)
    yield Rig(daemon, kubectl, directory)
    await node.stop(grace=1)
    await daemon.stop(0)
    host.remove()


class BusyClient:
    """A client whose connection is busy: a write ends when ``released`` is set."""

    has_stdin, has_stdout, has_stderr, is_terminal = False, True, True, False

    def __init__(self) -> None:
        self.begun, self.released = asyncio.Event(), asyncio.Event()
        self.written = b""

    async def receive(self) -> bytes:
        return b""

    async def write(self, data: bytes, *, error: bool = False) -> None:
        self.begun.set()
        await self.released.wait()
        self.written += data

    async def next_size(self) -> None:
        return None


@pytest.mark.parametrize("is_busy", [True, False])
async def test_all_output_of_a_command_reaches_its_client_after_its_end(is_busy: bool) -> None:
    """Standard output and standard error share a connection, and one waits for the other."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    client = BusyClient()
    output = _Output(reader, client, error=True)
    forwarding = asyncio.create_task(output.forward())
    if is_busy:
        os.write(writer, b"read before the end\n")
        await client.begun.wait()
    else:
        await asyncio.sleep(0)
    os.write(writer, b"in the pipe at the end\n")
    output.finish()
    client.released.set()
    async with asyncio.timeout(20):
        await forwarding
    assert client.written == is_busy * b"read before the end\n" + b"in the pipe at the end\n"
    os.close(writer)
    os.close(reader)


@pytest.mark.asyncio(loop_scope="module")
class TestDoor:
    async def test_exec_runs_inside_the_container(self, rig: Rig) -> None:
        assert await rig.run("exec", "box", "--", "sh", "-c", "hostname; id -u; echo $$") != ""
        assert (await rig.run("exec", "box", "--", "hostname")) == "box\n"

    async def test_exec_in_a_simulated_container_is_an_error(self, rig: Rig) -> None:
        assert "nothing runs in a simulated container" in await rig.fails("exec", "hollow", "--", "hostname")
        assert "nothing runs in a simulated container" in await rig.typed("exec", "-it", "hollow", "--", "sh", keys="")
        assert await rig.run("logs", "hollow") == ""

    async def test_exec_returns_the_exit_code(self, rig: Rig) -> None:
        assert "exit code 42" in await rig.fails("exec", "box", "--", "sh", "-c", "exit 42")
        assert "exit code 127" in await rig.fails("exec", "box", "--", "no-such-program")
        assert "exit code 126" in await rig.fails("exec", "box", "--", "/etc/passwd")
        assert "exit code 137" in await rig.fails("exec", "box", "--", "sh", "-c", "kill -9 $$")

    async def test_exec_forwards_stdin_and_stdout(self, rig: Rig) -> None:
        text = "0123456789\n" * 50_000
        assert await rig.run("exec", "-i", "box", "--", "cat", stdin=text) == text
        assert await rig.run("exec", "-i", "box", "--", "wc", "-c", stdin="abc") == "3\n"

    async def test_exec_separates_stderr(self, rig: Rig) -> None:
        assert await rig.run("exec", "box", "--", "sh", "-c", "echo out; echo err >&2") == "out\n"

    async def test_exec_has_a_terminal(self, rig: Rig) -> None:
        # kubectl sends input and terminal size concurrently: either may arrive first.
        sized = "until [ \"$(stty size)\" = '45 123' ]; do sleep 0.1; done"
        seen = await rig.typed(
            "exec", "-it", "box", "--", "sh", keys=f"{sized}; test -t 0 && echo a' terminal'; exit 7\n"
        )
        assert "a terminal\r\n" in seen
        assert "exit code 7" in seen

    async def test_exec_with_a_terminal_sets_term(self, rig: Rig) -> None:
        assert "xterm\r\n" in await rig.typed("exec", "-it", "box", "--", "sh", keys="echo $TERM; exit\n")
        assert await rig.run("exec", "box", "--", "sh", "-c", "echo $TERM") == "\n"

    async def test_home_is_writable(self, rig: Rig) -> None:
        script = "cd && pwd && touch file && echo written"
        assert await rig.run("exec", "box", "--", "sh", "-c", script) == "/home/sandbox\nwritten\n"

    async def test_terminal_is_resized(self, rig: Rig) -> None:
        script = "echo ready; while [ \"$(stty size)\" != '33 77' ]; do sleep 0.05; done; stty size"
        master, slave = os.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))
        process = await asyncio.create_subprocess_exec(
            *rig.kubectl.command("exec", "-it", "box", "--", "sh", "-c", script),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        try:
            assert "ready" in await _shown(master, "ready")
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
            process.send_signal(signal.SIGWINCH)  # who has no controlling terminal is not told by the kernel
            assert "33 77" in await _shown(master, "33 77")
            assert await asyncio.wait_for(process.wait(), 60) == 0
        finally:
            if process.returncode is None:
                process.kill()
            os.close(master)

    async def test_cp_copies_both_ways(self, rig: Rig) -> None:
        content = os.urandom(300_000)
        (rig.directory / "there").write_bytes(content)
        await rig.run("cp", str(rig.directory / "there"), "box:/tmp/here")
        await rig.run("cp", "box:/tmp/here", str(rig.directory / "back"))
        assert (rig.directory / "back").read_bytes() == content

    async def test_cp_copies_directories_with_odd_names(self, rig: Rig) -> None:
        tree = rig.directory / "tree"
        (tree / "a b/größe/日本").mkdir(parents=True)
        (tree / "empty").mkdir()
        names = ("-rf", "new\nline", 'it\'s "quoted"', "$(touch x)", " leading", "a b/größe/日本/*", "x" * 200)
        for name in names:
            (tree / name).write_text(name)
        await rig.run("cp", str(tree), "box:/tmp/tree")
        await rig.run("cp", "box:/tmp/tree", str(rig.directory / "tree-back"))
        back = rig.directory / "tree-back"
        assert {name: (back / name).read_text() for name in names} == {name: name for name in names}
        assert (back / "empty").is_dir()
        assert len(list(back.rglob("*"))) == len(list(tree.rglob("*")))

    async def test_command_ends_with_its_client(self, rig: Rig) -> None:
        process = rig.kubectl.start("exec", "box", "--", "sh", "-c", "echo begun; exec sleep 4711")
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "begun\n"
        process.kill()
        await asyncio.to_thread(process.communicate)

        async def gone() -> bool:
            running = await rig.run("exec", "box", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            return "sleep 4711" not in running

        await until(gone)

    async def test_command_ends_whenever_its_client_disconnects(self, rig: Rig) -> None:
        path = exec_path("box", "sleep", "4712")
        for turns in range(100):
            await abandoned(rig.daemon.kubeconfig, path, turns)

        async def gone() -> bool:
            running = await rig.run("exec", "box", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            return "sleep 4712" not in running

        await until(gone)

    async def test_exec_in_an_ended_container_is_an_error(self, rig: Rig) -> None:
        """In a pod with one ended and one running container."""
        main = {"image": "sandpool.local/python"}
        ended = {**main, "name": "ended", "command": ["true"]}
        lasting = {**main, "name": "lasting", "command": ["sleep", "1000"]}
        spec = {"containers": [ended, lasting], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        await rig.daemon.server.client().create(POD, new(POD, "half", spec=spec), "default")

        async def half_ended() -> bool:
            status = (await rig.daemon.server.client().get(POD, "half", "default")).get("status") or {}
            states = {each["name"]: set(each["state"]) for each in status.get("containerStatuses") or ()}
            return states == {"ended": {"terminated"}, "lasting": {"running"}}

        await until(half_ended, within=60)
        why = 'container "ended" in pod "half" is not running'
        assert why in await rig.fails("exec", "half", "-c", "ended", "--", "true")
        assert why in await rig.fails("attach", "half", "-c", "ended")
        assert await rig.run("exec", "half", "-c", "lasting", "--", "echo", "here") == "here\n"

    async def test_background_children_do_not_delay_the_end(self, rig: Rig) -> None:
        assert await rig.run("exec", "box", "--", "sh", "-c", "sleep 1000 & echo done") == "done\n"

    async def test_logs_are_read_with_timestamps_and_tail(self, rig: Rig) -> None:
        assert set((await rig.run("logs", "box")).split()) >= {"out", "err"}
        stamped = (await rig.run("logs", "box", "--timestamps", "--tail=1")).split()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", stamped[0])
        assert "previous terminated container" in await rig.fails("logs", "box", "--previous")

    async def test_logs_are_limited_by_time(self, rig: Rig) -> None:
        assert "out" in (await rig.run("logs", "box", "--since=1h")).split()
        later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert await rig.run("logs", "box", f"--since-time={later}") == ""

    async def test_logs_of_the_previous_run_are_read(self, rig: Rig) -> None:
        script = "if [ -e /data/x ]; then echo second; exec sleep 1000; else touch /data/x; echo first; exit 3; fi"
        main = {
            "name": "main",
            "image": "sandpool.local/python",
            "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        spec = {"containers": [main], "volumes": [{"name": "data", "emptyDir": {}}], "terminationGracePeriodSeconds": 1}
        await rig.daemon.server.client().create(POD, new(POD, "again", spec=spec), "default")

        async def begun_again() -> bool:
            status = (await rig.daemon.server.client().get(POD, "again", "default")).get("status") or {}
            return any(each["restartCount"] and each["ready"] for each in status.get("containerStatuses") or ())

        await until(begun_again, within=60)
        assert await rig.run("logs", "again", "--previous") == "first\n"
        assert await rig.run("logs", "again") == "second\n"

    async def test_logs_are_followed(self, rig: Rig) -> None:
        script = "n=0; while true; do n=$((n+1)); echo tick $n; sleep 0.1; done"
        main = {"name": "main", "image": "sandpool.local/python", "command": ["sh", "-c", script]}
        spec = {"containers": [main], "terminationGracePeriodSeconds": 0}
        await rig.daemon.server.client().create(POD, new(POD, "ticks", spec=spec), "default")

        async def start_time() -> bool:
            found = await rig.daemon.server.client().get(POD, "ticks", "default")
            condition = condition_of(found, "Ready")
            return condition is not None and condition["status"] == "True"

        await until(start_time, within=60)
        process = rig.kubectl.start("logs", "-f", "ticks", "--tail=1")
        try:
            assert process.stdout is not None
            lines = [await asyncio.to_thread(process.stdout.readline) for _ in range(10)]
            numbers = [int(line.split()[1]) for line in lines]
            assert numbers == list(range(numbers[0], numbers[0] + 10))
        finally:
            process.kill()
            await asyncio.to_thread(process.communicate)
            await rig.daemon.server.client().delete(POD, "ticks", "default", grace_period_seconds=0)

    async def test_attach_forwards_stdin_and_stdout(self, rig: Rig) -> None:
        process = await asyncio.create_subprocess_exec(
            *rig.kubectl.command("attach", "-i", "box"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                process.stdin.write(b"typed from outside\n")
                await process.stdout.readuntil(b"typed from outside\n")
            assert "typed from outside" in await rig.run("logs", "box")
        finally:
            process.kill()
            await process.communicate()

    async def test_attached_client_that_does_not_read_is_disconnected(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sandpool.node.pod_access.MOST_BEHIND", 1 << 20)
        main = {"name": "main", "image": "sandpool.local/python", "stdin": True}
        script = "read line; echo begun; sleep 1; exec yes 0123456789012345678901234567890123456789"
        spec = {"containers": [{**main, "command": ["sh", "-c", script]}], "terminationGracePeriodSeconds": 0}
        await rig.daemon.server.client().create(POD, new(POD, "loud", spec=spec), "default")
        await rig.run("wait", "pod/loud", "--for=condition=Ready", "--timeout=60s")
        process = await asyncio.create_subprocess_exec(
            *rig.kubectl.command("attach", "-i", "loud"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                process.stdin.write(b"\n")
                await process.stdout.readuntil(b"begun\n")
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(5)  # it may write 8 MiB at once, and buffers hold some of it
                process.send_signal(signal.SIGCONT)
                _, said = await process.communicate()
            assert b"reads too slowly" in said
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
            await rig.daemon.server.client().delete(POD, "loud", "default", grace_period_seconds=0)

    async def test_kubectl_run_with_piped_stdin_ends(self, rig: Rig) -> None:
        run = ("run", "piped", "-i", "--rm", "--image=sandpool.local/python", "--restart=Never", "--quiet")
        said = await rig.run(*run, "--", "sh", "-c", "wc -c; echo done", stdin="0123456789\n" * 50_000)
        assert said.split() == ["550000", "done"]

    async def test_stdin_once_ends_with_the_first_client(self, rig: Rig) -> None:
        script = "cat; echo at its end; exec sleep 1000"
        main = {"name": "main", "image": "sandpool.local/python", "command": ["sh", "-c", script]}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [{**main, "stdin": True, "stdinOnce": True}]}
        await rig.daemon.server.client().create(POD, new(POD, "once", spec=spec), "default")
        await rig.run("wait", "pod/once", "--for=condition=Ready", "--timeout=60s")
        process = await asyncio.create_subprocess_exec(
            *rig.kubectl.command("attach", "-i", "once"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(60):
                process.stdin.write(b"typed\n")
                await process.stdout.readuntil(b"typed\n")
                process.kill()
                await process.communicate()

                async def ended() -> bool:
                    return await rig.run("logs", "once") == "typed\nat its end\n"

                await until(ended)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
            await rig.run("delete", "pod", "once", "--now")

    async def test_port_forward_serves_fifty_connections_to_two_ports(self, rig: Rig) -> None:
        echo = (
            "import socketserver, sys\n"
            "class Echo(socketserver.StreamRequestHandler):\n"
            "    def handle(self):\n"
            "        data = self.rfile.read()\n"
            "        self.wfile.write(sys.argv[1].encode() + data)\n"
            "class Server(socketserver.ThreadingTCPServer):\n"
            "    request_queue_size = 64\n"
            "server = Server(('127.0.0.1', int(sys.argv[1])), Echo)\n"
            "print('ready', flush=True)\n"
            "server.serve_forever()"
        )
        ports = ("7001", "7002")
        servers = [rig.kubectl.start("exec", "box", "--", "python3", "-c", echo, port) for port in ports]
        for server in servers:  # kubectl gives up everything when one port does not answer
            assert server.stdout is not None
            assert await asyncio.to_thread(server.stdout.readline) == "ready\n"
        process = rig.kubectl.start("port-forward", "pod/box", *(f":{port}" for port in ports))
        assert process.stdout is not None
        try:
            local: dict[str, int] = {}
            while len(local) < len(ports):
                match = re.search(r"127\.0\.0\.1:(\d+) -> (\d+)", await asyncio.to_thread(process.stdout.readline))
                if match is not None:
                    local[match[2]] = int(match[1])

            async def talk(number: int) -> None:
                port, message = ports[number % 2], f" {number}".encode() * 2000
                reader, writer = await asyncio.open_connection("127.0.0.1", local[port])
                writer.write(message)
                writer.write_eof()
                async with asyncio.timeout(60):
                    assert await reader.read() == port.encode() + message
                writer.close()

            await asyncio.gather(*map(talk, range(50)))
        finally:
            for each in (process, *servers):
                each.kill()
                await asyncio.to_thread(each.communicate)

    async def test_port_forward_ends_with_its_pod(self, rig: Rig) -> None:
        """Later connections fail at once instead of waiting."""
        client = rig.daemon.server.client()
        container = {"name": "main", "image": "sandpool.local/python"}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
        await client.create(POD, new(POD, "brief", spec=spec), "default")
        await rig.run("wait", "pod/brief", "--for=condition=Ready", "--timeout=60s")
        tunnel = rig.kubectl.start("port-forward", "pod/brief", ":8888")
        others = {
            "exec": rig.kubectl.start("exec", "brief", "--", "sh", "-c", "echo begun; sleep 4711"),
            "logs": rig.kubectl.start("logs", "-f", "brief"),
            "attach": rig.kubectl.start("attach", "brief"),
        }
        try:
            assert tunnel.stdout is not None and others["exec"].stdout is not None
            match = re.search(r"127\.0\.0\.1:(\d+)", await asyncio.to_thread(tunnel.stdout.readline))
            assert match is not None
            assert await asyncio.to_thread(others["exec"].stdout.readline) == "begun\n"

            async def answer() -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", int(match[1]))
                writer.write(b"GET / HTTP/1.1\r\nHost: box\r\n\r\n")
                found = await reader.readline()
                held.append((reader, writer))
                return found

            held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
            assert b"200 OK" in await until(answer)
            await rig.run("delete", "pod", "brief")
            async with asyncio.timeout(60):
                await held[-1][0].read()  # to its end
                said = {name: (await asyncio.to_thread(each.communicate))[0] for name, each in others.items()}
                assert b"200 OK" not in await answer()
                assert 'pod \\"brief\\" does not run on node' in (await asyncio.to_thread(tunnel.communicate))[0]
            assert "exit code 137" in said["exec"]
            assert [each.returncode for each in others.values()] == [137, 0, 0]
            assert "not found" in await rig.fails("exec", "brief", "--", "true")
            for _, writer in held:
                writer.close()
        finally:
            for each in (tunnel, *others.values()):
                each.kill()
                await asyncio.to_thread(each.wait)
                assert each.stdout is not None
                each.stdout.close()

    async def test_port_forward_to_a_loopback_port(self, rig: Rig) -> None:
        process = rig.kubectl.start("port-forward", "pod/box", ":8080")
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            match = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert match is not None, line

            async def page() -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", int(match[1]))
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                answer = await reader.read()
                writer.close()
                return answer

            assert b"200 OK" in await until(page)
        finally:
            process.kill()
            await asyncio.to_thread(process.communicate)


async def _shown(terminal: int, text: str) -> str:
    """Read terminal output up to this text."""
    seen = ""
    async with asyncio.timeout(60):
        while text not in seen:
            seen += (await asyncio.to_thread(os.read, terminal, 4096)).decode(errors="replace")
    return seen
