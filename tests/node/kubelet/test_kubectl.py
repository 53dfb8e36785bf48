"""kubectl and a sandbox of a node that is another process than the API server: ours, and a real kube-apiserver."""

from __future__ import annotations

import base64
import json
import re
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import websocket
import yaml

from sandpool.bench.server_process import ServerProcess
from sandpool.engine.clock import SystemClock
from sandpool.server.serving.pki import Authority
from tests.support.control_plane import ControlPlane, kubelet_flags
from tests.support.kubectl import Kubectl, find_kubectls
from tests.support.node_command import SeparateNode

KUBECTLS = find_kubectls()
pytestmark = [
    pytest.mark.isolation,
    pytest.mark.skipif(not KUBECTLS, reason="no kubectl: install the Debian package kubectl"),
]
# Says who it is, listens where only the pod itself can go, and then repeats what is typed.
SCRIPT = "echo out; echo err >&2; python3 -m http.server 8080 --bind 127.0.0.1 2>/dev/null & cat; wait"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "box"},
    "spec": {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "main", "image": "sandpool.local/python", "command": ["sh", "-c", SCRIPT], "stdin": True},
            {"name": "side", "image": "sandpool.local/python", "command": ["sleep", "infinity"]},
        ],
    },
}


@contextmanager
def embedded(directory: Path) -> Iterator[Path]:
    options = ("--no-node", "--metrics-bind-address", "0", "--router-bind-address", "0")
    with ServerProcess("up", options=options, data_dir=directory / "api") as server:
        yield server.kubeconfig


@contextmanager
def kubernetes(directory: Path) -> Iterator[Path]:
    flags = kubelet_flags(Authority(directory / "pki", SystemClock()))
    with ControlPlane(fsync=False, apiserver_flags=flags) as plane:
        yield plane.kubeconfig


HOMES = [pytest.param(embedded, id="embedded"), pytest.param(kubernetes, id="kubernetes", marks=pytest.mark.kubernetes)]


@pytest.fixture(scope="module", params=HOMES)
def kubeconfig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("apart")
    own = tmp_path_factory.mktemp("node")
    with request.param(directory) as kubeconfig, SeparateNode(kubeconfig, own):
        kubectl = Kubectl(list(KUBECTLS.values())[-1], kubeconfig, directory / "cache")
        # Kubernetes taints every new node; the controller that removes the taint does not run here.
        kubectl("patch", "node", "apart", "--type=merge", "-p", '{"spec":{"taints":null}}')
        kubectl("apply", "-f", "-", stdin=json.dumps(POD))
        kubectl("wait", "--for=condition=Ready", "pod/box", "--timeout=60s")
        yield kubeconfig
        kubectl("delete", "pod", "box")


@pytest.fixture(params=list(KUBECTLS))
def kubectl(request: pytest.FixtureRequest, kubeconfig: Path, tmp_path: Path) -> Kubectl:
    """Older versions of kubectl use SPDY, newer ones WebSockets."""
    return Kubectl(KUBECTLS[request.param], kubeconfig, tmp_path / "cache")


@contextmanager
def running(kubectl: Kubectl, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A kubectl process that runs until the end of the block."""
    process = kubectl.start(*arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if wanted(line):
            return line
    raise AssertionError("kubectl has ended")


def test_exec_returns_output_and_exit_code(kubectl: Kubectl) -> None:
    assert kubectl("exec", "box", "--", "hostname") == "box\n"
    assert kubectl("exec", "box", "-c", "side", "--", "sh", "-c", "echo out; echo err >&2") == "out\n"
    assert "exit code 42" in kubectl.fails("exec", "box", "--", "sh", "-c", "exit 42")
    assert "exit code 127" in kubectl.fails("exec", "box", "--", "no-such-program")


def test_exec_arguments_are_unchanged(kubectl: Kubectl) -> None:
    words = ("a b", "&c=d", "%41+", "é", "", "x;y")
    assert kubectl("exec", "box", "--", "printf", "[%s]", *words) == "".join(f"[{word}]" for word in words)


def test_exec_forwards_stdin(kubectl: Kubectl) -> None:
    text = "0123456789\n" * 50_000
    assert kubectl("exec", "-i", "box", "--", "cat", stdin=text) == text
    assert kubectl("exec", "-i", "box", "--", "wc", "-c", stdin="abc") == "3\n"


def test_exec_has_a_terminal(kubectl: Kubectl) -> None:
    command = " ".join(["stty cols 123 rows 45;", *kubectl.command("exec", "-it", "box", "--", "sh")])
    # kubectl sends input and terminal size concurrently: either may arrive first.
    keys = b"until stty size | grep -x '45 123'; do sleep 0.1; done; test -t 0 && echo terminal; exit 7\n"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], input=keys, stdout=subprocess.PIPE, timeout=60, check=False
    )
    seen = done.stdout.decode()
    assert "45 123\r\n" in seen
    assert "\nterminal\r\n" in seen
    assert "exit code 7" in seen


def test_kubectl_cp_copies_both_ways(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(bytes(range(256)) * 4000)
    kubectl("cp", str(tmp_path / "there"), "box:/tmp/there")
    kubectl("cp", "box:/tmp/there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()


def test_kubectl_logs_reads_and_tails(kubectl: Kubectl) -> None:
    assert {"out", "err"} <= set(kubectl("logs", "box", "-c", "main").splitlines())
    assert len(kubectl("logs", "box", "-c", "main", "--tail=1").splitlines()) == 1
    assert re.match(r"\d{4}-\d\d-\d\dT\S+ ", kubectl("logs", "box", "-c", "main", "--timestamps", "--tail=1"))
    assert kubectl("logs", "box", "-c", "main", "--limit-bytes=3") in ("out", "err")
    assert "previous terminated container" in kubectl.fails("logs", "box", "-c", "main", "--previous")


def test_attach_while_another_client_follows_the_log(kubectl: Kubectl) -> None:
    with running(kubectl, "logs", "-f", "box", "-c", "main") as following:
        read_until(following, lambda line: line in ("out\n", "err\n"))
        command = kubectl.command("attach", "-i", "box", "-c", "main")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attached:
            try:
                assert attached.stdin is not None
                attached.stdin.write("typed\n")
                attached.stdin.flush()
                assert read_until(attached, lambda line: "typed" in line)
                assert read_until(following, lambda line: "typed" in line)
            finally:
                attached.kill()


def test_port_forward_reaches_the_ports(kubectl: Kubectl) -> None:
    with running(kubectl, "port-forward", "pod/box", ":8080", ":9999") as forwarding:
        ports: dict[str, int] = {}
        while len(ports) < 2:
            line = read_until(forwarding, lambda line: "127.0.0.1" in line)
            match = re.search(r"127\.0\.0\.1:(\d+) -> (\d+)", line)
            assert match is not None
            ports[match[2]] = int(match[1])
        for _ in range(5):
            assert b"200 OK" in said_by(ports["8080"])
        with suppress(ConnectionError):
            assert said_by(ports["9999"]) == b""


def said_by(port: int) -> bytes:
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while data := sock.recv(65536):
            answer += data
    return answer


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_websocket_protocols_of_other_clients_are_served(kubeconfig: Path, version: str) -> None:
    """kube-apiserver translates the newer protocol for the node and forwards the older one unchanged."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
    url = cluster["server"].replace("https:", "wss:") + "/api/v1/namespaces/default/pods/box/exec"
    trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    connection = websocket.create_connection(
        f"{url}?container=main&stdout=true&stderr=true&command=sh&command=-c&command=hostname%3B+exit+7",
        subprotocols=[f"{version}.channel.k8s.io"],
        header=[f"Authorization: Bearer {token}"],
        sslopt={"context": trust},
        timeout=60,
    )
    said: dict[int, bytes] = {}
    while (message := connection.recv()) and isinstance(message, bytes):
        said[message[0]] = said.get(message[0], b"") + message[1:]
    connection.shutdown()  # type: ignore[no-untyped-call]
    assert said[1] == b"box\n"
    assert json.loads(said[3])["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]


def test_errors_are_reported(kubectl: Kubectl) -> None:
    assert "container other is not valid for pod box" in kubectl.fails("exec", "box", "-c", "other", "--", "true")
    assert "container other is not valid for pod box" in kubectl.fails("logs", "box", "-c", "other")
    assert "not found" in kubectl.fails("exec", "missing", "--", "true")


def test_command_ends_with_its_client(kubectl: Kubectl) -> None:
    with running(kubectl, "exec", "box", "--", "sh", "-c", "echo begun; exec sleep 98765") as process:
        read_until(process, lambda line: line == "begun\n")
    # The search must not match its own command line.
    gone = "for i in $(seq 200); do grep -aqs '9876[5]' /proc/[0-9]*/cmdline || exit 0; sleep 0.1; done; exit 1"
    kubectl("exec", "box", "--", "sh", "-c", gone)
