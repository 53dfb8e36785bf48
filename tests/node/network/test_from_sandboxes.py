"""What sandboxes of a template reach, seen from inside them: the API, the controllers and the node are all real.

The network beyond the machine is a namespace with a public address and private ones, with a listener on each.
"""

from __future__ import annotations

import ast
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import NAMESPACE, POD, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.errors import AlreadyExists
from sandpool.node.network.netns import NetworkNamespace
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import until
from tests.support.real_node import IMAGE
from tests.support.soak.sandpool_process import SandpoolProcess

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]

OPEN, CLOSED = "open", "closed"
PORT = 8888
PUBLIC = "8.8.8.8"
PRIVATE = ("10.99.0.1", "172.16.0.1", "192.168.7.7")
# Special-purpose ranges that the policy object does not except, and the node does.
SPECIAL = ("100.64.0.1", "192.0.2.1", "198.18.0.1")
METADATA = "169.254.169.254"
DIAL = """
import socket, sys
def dial(host):
    try:
        socket.create_connection((host, {port}), timeout=20).close()
        return "open"
    except OSError as error:
        return "closed" if error.errno == 113 else repr(error)
print({{host: dial(host) for host in {hosts!r}}})
"""
TEMPLATES: dict[str, Object] = {
    "usual": {},
    "custom": {
        "networkPolicy": {
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"who": "friend"}}}], "ports": [{"port": PORT}]}],
            "egress": [{"to": [{"ipBlock": {"cidr": "192.168.7.0/24"}}]}],
        }
    },
}


class Sandboxes:
    """Two of each template, and pods with labels, by name."""

    def __init__(self, process: SandpoolProcess) -> None:
        self.process = process
        self.sandbox: dict[str, str] = {}
        self.address: dict[str, str] = {}

    async def look(self, who: str, *hosts: str, port: int = PORT) -> dict[str, str]:
        """Return what a program in a sandbox reaches."""
        script = DIAL.format(port=port, hosts=hosts)
        answer = await self.process.router.write(self.sandbox[who], "look.py", script.encode())
        assert answer.status == 200, answer.body
        answer = await self.process.router.run(self.sandbox[who], "python3 look.py")
        found: dict[str, str] = ast.literal_eval(orjson.loads(answer.body)["stdout"])
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandboxes]:
    process = SandpoolProcess(tmp_path_factory.mktemp("process"))
    await process.start()
    made = Sandboxes(process)
    try:
        for template, more in TEMPLATES.items():
            probe = {"httpGet": {"port": PORT, "path": "/"}, "periodSeconds": 1}
            container = {"name": "main", "image": IMAGE, "readinessProbe": probe}
            spec = {"podTemplate": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}, **more}
            await process.client.create(SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, template, spec=spec), "default")
            wanted = {"replicas": 2, "sandboxTemplateRef": {"name": template}}
            await process.client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, template, spec=wanted), "default")
            for number in (1, 2):
                await _claim(made, template, f"{template}-{number}")
        yield made
    finally:
        await process.stop()


async def _claim(made: Sandboxes, pool: str, name: str) -> None:
    client = made.process.client
    await client.create(SANDBOX_CLAIM, new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": pool}}), "default")

    async def served() -> SharedObject | None:
        found = await client.get(SANDBOX_CLAIM, name, "default")
        return found if is_ready(found) else None

    found = await until(served, within=60)
    assert found is not None
    made.sandbox[name] = found["status"]["sandbox"]["name"]
    made.address[name] = found["status"]["sandbox"]["podIPs"][0]


@pytest.fixture(scope="module")
def world(sandboxes: Sandboxes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The network beyond the machine, with a listener on every address."""
    addresses = (PUBLIC, METADATA, *PRIVATE, *SPECIAL)
    host, world = sandboxes.process.host, Path(tmp_path_factory.mktemp("world")) / "world"
    beyond, _ = NetworkNamespace.make(world, lambda: None)
    with ExitStack() as stack:
        stack.callback(beyond.remove)
        _connect(host, beyond, addresses)
        for address in addresses:
            stack.enter_context(beyond.call(lambda address=address: socket.create_server((address, PORT))))  # type: ignore[misc]
        stack.enter_context(host.call(lambda: socket.create_server(("0.0.0.0", PORT))))
        yield


def _connect(host: NetworkNamespace, beyond: NetworkNamespace, addresses: tuple[str, ...]) -> None:
    def ip(*words: str) -> None:
        path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        subprocess.run(["ip", *words], check=True, env=path)

    # The namespace has no name that ``ip`` knows; a descriptor of it has.
    handle = os.open(beyond.path, os.O_RDONLY)
    try:
        path = f"/proc/{os.getpid()}/fd/{handle}"
        host.call(lambda: ip("link", "add", "world", "type", "veth", "peer", "name", "host", "netns", path))
        host.call(lambda: ip("addr", "add", "203.0.113.1/30", "dev", "world"))
        host.call(lambda: ip("link", "set", "world", "up"))
        host.call(lambda: ip("route", "add", "default", "via", "203.0.113.2"))
        beyond.call(lambda: ip("link", "set", "lo", "up"))
        beyond.call(lambda: ip("addr", "add", "203.0.113.2/30", "dev", "host"))
        beyond.call(lambda: ip("link", "set", "host", "up"))
        beyond.call(lambda: ip("route", "add", "default", "via", "203.0.113.1"))
        for address in addresses:
            beyond.call(lambda address=address: ip("addr", "add", f"{address}/32", "dev", "lo"))  # type: ignore[misc]
    finally:
        os.close(handle)


async def test_all_targets_are_reachable_without_a_policy(sandboxes: Sandboxes, world: None) -> None:
    """Otherwise the other tests would prove nothing."""
    for address in (PUBLIC, *PRIVATE, *SPECIAL):
        sandboxes.process.host.call(lambda address=address: socket.create_connection((address, PORT), 20).close())  # type: ignore[misc]


async def test_default_policy_reaches_the_internet_and_no_private_address(sandboxes: Sandboxes, world: None) -> None:
    others = [sandboxes.address[name] for name in ("usual-2", "custom-1")]
    machine = (await _host_address(sandboxes), "10.231.0.1")
    closed = (METADATA, *PRIVATE, *SPECIAL, *others, *machine)
    found = await sandboxes.look("usual-1", PUBLIC, *closed)
    assert found == {PUBLIC: OPEN, **dict.fromkeys(closed, CLOSED)}


async def test_custom_policy_reaches_exactly_its_rules(sandboxes: Sandboxes, world: None) -> None:
    others = [sandboxes.address[name] for name in ("usual-1", "custom-2")]
    machine = (await _host_address(sandboxes), "10.231.0.1")
    found = await sandboxes.look(
        "custom-1", "192.168.7.7", "172.16.0.1", "10.99.0.1", PUBLIC, METADATA, *others, *machine
    )
    allowed = "192.168.7.7"
    assert found == {allowed: OPEN, **dict.fromkeys(found.keys() - {allowed}, CLOSED)}


@pytest.mark.parametrize(
    ("namespace", "labels", "usual", "custom"),
    [
        ("default", {}, CLOSED, CLOSED),
        ("default", {"who": "friend"}, CLOSED, OPEN),
        ("default", {"app": "sandbox-router"}, CLOSED, CLOSED),  # of another namespace than the router's
        ("agent-sandbox-system", {"app": "sandbox-router"}, OPEN, CLOSED),
        ("agent-sandbox-system", {"who": "friend"}, CLOSED, CLOSED),
    ],
)
async def test_ingress_follows_the_policy(
    sandboxes: Sandboxes, namespace: str, labels: dict[str, str], usual: str, custom: str
) -> None:
    addresses = sandboxes.address["usual-1"], sandboxes.address["custom-1"]
    assert await _visit(sandboxes, namespace, labels, addresses) == {addresses[0]: usual, addresses[1]: custom}


async def test_only_the_port_of_the_policy_is_reachable(sandboxes: Sandboxes) -> None:
    address = sandboxes.address["custom-1"]
    assert await _visit(sandboxes, "default", {"who": "friend"}, (address,), port=PORT + 1) == {address: CLOSED}


async def _visit(
    sandboxes: Sandboxes, namespace: str, labels: dict[str, str], addresses: tuple[str, ...], port: int = PORT
) -> dict[str, str]:
    """Return what a pod with these labels reaches, from its termination message."""
    client = sandboxes.process.client
    with suppress(AlreadyExists):
        await client.create(NAMESPACE, new(NAMESPACE, namespace))
    script = DIAL.format(port=port, hosts=addresses)
    command = ["sh", "-c", 'python3 -c "$SCRIPT" > /dev/termination-log']
    main = {"name": "main", "image": IMAGE, "command": command, "env": [{"name": "SCRIPT", "value": script}]}
    spec = {"restartPolicy": "Never", "containers": [main]}
    made = await client.create(
        POD, pod(None, metadata={"generateName": "visitor-", "labels": labels}, spec=spec), namespace
    )
    name = made["metadata"]["name"]

    async def ended() -> str:
        status = (await client.get(POD, name, namespace)).get("status") or {}
        states = [each["state"].get("terminated") for each in status.get("containerStatuses") or ()]
        return str(states[0]["message"]) if states and states[0] else ""

    said = await until(ended, within=60)
    await client.delete(POD, name, namespace, grace_period_seconds=0)
    found: dict[str, str] = ast.literal_eval(said)
    return found


async def _host_address(sandboxes: Sandboxes) -> str:
    found = await sandboxes.process.client.get(POD, sandboxes.sandbox["usual-1"], "default")
    address: str = found["status"]["hostIP"]
    return address
