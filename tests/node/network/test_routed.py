"""Looks from inside real network namespaces. "The node" is one of them too: nothing of the machine's own network is
used."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dnslib import DNSRecord

from sandpool.api.resource import Key, Object
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import SystemClock
from sandpool.node.network import links
from sandpool.node.network.netns import NetworkNamespace
from sandpool.node.network.routed import NetworkUnavailable, RoutedNetwork, RoutedNetworkOptions
from sandpool.testing.waiting import until

pytestmark = pytest.mark.isolation

REFUSED = "refused by the firewall"
OPEN = "connected"
PORT = 8080


class NetworkRig:
    """A node with a network, its policies, and the pods that are attached to it."""

    def __init__(self, directory: Path, host: NetworkNamespace) -> None:
        self.directory = directory
        self.host = host
        self.policies: Cache[Object] = Cache(lambda obj: obj, name="policies")
        self.namespaces: Cache[Object] = Cache(lambda obj: obj, name="namespaces")
        self.network = self.new_network()
        self.listening: list[socket.socket] = []
        self.addresses: dict[str, str] = {}
        for name in ("default", "other"):
            self.namespaces.record_write(named("Namespace", name, "", labels={"kubernetes.io/metadata.name": name}))

    def new_network(self) -> RoutedNetwork:
        options = RoutedNetworkOptions(
            self.directory, host=self.host.path, instance="test", resolve=lambda name: ["192.0.2.9"], uid=os.geteuid()
        )
        return RoutedNetwork(options, self.policies, self.namespaces, SystemClock())

    async def pod(self, name: str, **labels: str) -> NetworkNamespace:
        """Attach a pod that listens."""
        attachment = await self.network.attach(pod(name, **labels))
        assert attachment.netns is not None
        self.addresses[name] = attachment.addresses[0]
        namespace = NetworkNamespace(attachment.netns)
        listening = namespace.call(lambda: socket.create_server((attachment.addresses[0], PORT)))
        self.listening.append(listening)
        return namespace

    def address(self, name: str) -> str:
        return self.addresses[name]

    def dial(self, source: NetworkNamespace, target: str, port: int = PORT) -> str:
        return source.call(lambda: dial(target, port))

    async def policy(self, name: str, spec: Object) -> None:
        self.policies.record_write({**named("NetworkPolicy", name, "default"), "spec": spec})
        await self.network.enforcer.enforce()


def named(kind: str, name: str, namespace: str, **metadata: object) -> Object:
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", **metadata},
    }


def pod(name: str, **labels: str) -> Object:
    return {**named("Pod", name, "default", labels=labels), "spec": {"containers": [{"name": "main"}]}}


def dial(target: str, port: int) -> str:
    try:
        with socket.create_connection((target, port), timeout=20):
            return OPEN
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return {113: REFUSED, 111: "connection refused", 101: "no route"}[error.errno or 0]


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ip`` and ``nft`` are where an ordinary user does not look."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[NetworkNamespace]:
    namespace, _ = NetworkNamespace.make(
        tmp_path / "host", lambda: subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    )
    yield namespace
    namespace.remove()


@pytest_asyncio.fixture
async def rig(tmp_path: Path, host: NetworkNamespace) -> AsyncIterator[NetworkRig]:
    rig = NetworkRig(tmp_path / "network", host)
    await rig.network.start()
    yield rig
    for listening in rig.listening:
        listening.close()
    await rig.network.stop()


async def test_pods_have_their_own_addresses_and_reach_each_other(rig: NetworkRig) -> None:
    one, two = await rig.pod("one"), await rig.pod("two")
    assert rig.address("one") != rig.address("two")
    assert rig.dial(one, rig.address("two")) == OPEN
    assert rig.dial(two, rig.address("one")) == OPEN


async def test_node_reaches_pods_and_pods_do_not_reach_the_node(rig: NetworkRig) -> None:
    one = await rig.pod("one")
    assert rig.dial(rig.host, rig.address("one")) == OPEN
    with closing(rig.host.call(lambda: socket.create_server(("0.0.0.0", PORT)))):
        for address in (rig.network.plan.node, rig.network.plan.inner, rig.network.plan.gateway):
            assert rig.dial(one, str(address)) == REFUSED


async def test_other_users_of_the_node_do_not_reach_pods(rig: NetworkRig) -> None:
    await rig.pod("one")
    script = f"import socket; socket.create_connection(({rig.address('one')!r}, {PORT}), timeout=20)"
    outcome = rig.host.call(
        lambda: subprocess.run(
            ["/usr/bin/python3", "-c", script], user=12345, capture_output=True, text=True, check=False
        )
    )
    assert re.search("No route to host|Connection refused|prohibited", outcome.stderr), outcome


async def test_closed_pod_is_reached_only_by_the_node(rig: NetworkRig) -> None:
    one, _ = await rig.pod("one"), await rig.pod("two", app="closed")
    await rig.policy("closed", {"podSelector": {"matchLabels": {"app": "closed"}}, "policyTypes": ["Ingress"]})
    assert rig.dial(one, rig.address("two")) == REFUSED
    assert rig.dial(rig.host, rig.address("two")) == OPEN


async def test_policy_opens_exactly_its_rules(rig: NetworkRig) -> None:
    friend, stranger = await rig.pod("friend", app="friend"), await rig.pod("stranger")
    await rig.pod("target", app="target")
    rule = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": PORT}]}
    await rig.policy("some", {"podSelector": {"matchLabels": {"app": "target"}}, "ingress": [rule]})
    target = rig.address("target")
    assert rig.dial(friend, target) == OPEN
    assert rig.dial(friend, target, PORT + 1) == REFUSED
    assert rig.dial(stranger, target) == REFUSED
    rig.policies.record_deletion(Key("default", "some"), "some")
    await rig.network.enforcer.enforce()
    assert rig.dial(stranger, target) == OPEN


async def test_default_policy_of_templates_reaches_no_private_address(rig: NetworkRig) -> None:
    one, _ = await rig.pod("one", app="box"), await rig.pod("two")
    private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]
    internet = [{"ipBlock": {"cidr": "0.0.0.0/0", "except": private}}, {"ipBlock": {"cidr": "::/0"}}]
    router = {
        "namespaceSelector": {"matchLabels": {"x": "y"}},
        "podSelector": {"matchLabels": {"app": "sandbox-router"}},
    }
    await rig.policy(
        "box",
        {
            "podSelector": {"matchLabels": {"app": "box"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [router]}],
            "egress": [{"to": internet}],
        },
    )
    world, _ = NetworkNamespace.make(rig.directory.parent / "world", lambda: None)
    try:
        connect_world(rig, world)
        with closing(world.call(lambda: socket.create_server(("8.8.8.1", PORT)))):
            assert rig.dial(one, "8.8.8.1") == OPEN
        for private_address in (
            rig.address("two"),
            "192.168.7.7",
            "172.16.0.1",
            "169.254.169.254",
            "10.9.9.9",
            "100.64.0.1",
        ):
            assert rig.dial(one, private_address) == REFUSED
    finally:
        world.remove()


async def test_link_local_addresses_are_closed_whatever_a_policy_allows(rig: NetworkRig) -> None:
    one = await rig.pod("one")
    assert rig.dial(one, "169.254.169.254", 80) == REFUSED


async def test_pod_cannot_spoof_the_address_of_another(rig: NetworkRig) -> None:
    one, two = await rig.pod("one"), await rig.pod("two")
    victim = two.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    three = await rig.pod("three")
    with closing(victim), closing(two.call(lambda: udp(rig.address("two")))) as receiver:
        receiver.settimeout(20)

        def forge() -> None:
            # Root in a sandbox could do no more than this.
            subprocess.run(["ip", "addr", "add", f"{rig.address('three')}/32", "dev", "eth0"], check=True)
            with closing(udp(rig.address("three"))) as forger:
                forger.sendto(b"forged", (rig.address("two"), PORT))

        one.call(forge)
        with closing(three.call(lambda: udp(rig.address("three")))) as honest:
            honest.sendto(b"honest", (rig.address("two"), PORT))
        assert (await asyncio.to_thread(receiver.recv, 100)) == b"honest"


async def test_changed_label_changes_the_policy_of_a_pod(rig: NetworkRig) -> None:
    one, _ = await rig.pod("one"), await rig.pod("two")
    await rig.policy("closed", {"podSelector": {"matchLabels": {"app": "closed"}}, "policyTypes": ["Ingress"]})
    assert rig.dial(one, rig.address("two")) == OPEN
    rig.network.enforcer.relabel("two", {"app": "closed"})
    await rig.network.enforcer.enforce()
    assert rig.dial(one, rig.address("two")) == REFUSED


async def test_dns_queries_are_answered_at_the_gateway(rig: NetworkRig) -> None:
    one = await rig.pod("one")
    question = DNSRecord.question("box.default.svc.cluster.local")
    (gateway,) = rig.network.nameservers
    reply = await asyncio.to_thread(lambda: one.call(lambda: question.send(gateway, 53, timeout=20)))
    assert [str(answer.rdata) for answer in DNSRecord.parse(reply).rr] == ["192.0.2.9"]


async def test_connection_to_a_deleted_pod_is_refused_at_once(rig: NetworkRig) -> None:
    one, _ = await rig.pod("one"), await rig.pod("two")
    address = rig.address("two")
    await rig.network.detach("two")
    assert rig.dial(one, address) == REFUSED
    assert rig.dial(rig.host, address) == REFUSED


async def test_next_process_finds_the_pods_and_their_policies(rig: NetworkRig) -> None:
    one, two = await rig.pod("one"), await rig.pod("two", app="closed")
    await rig.policy("closed", {"podSelector": {"matchLabels": {"app": "closed"}}, "policyTypes": ["Ingress"]})
    before = await rig.network.attach(pod("two", app="closed"))
    await rig.network.stop(keep=True)
    rig.network = rig.new_network()
    await rig.network.start()
    assert await rig.network.attached() == {"one", "two"}
    assert await rig.network.attach(pod("two", app="closed")) == before
    await rig.network.attach(pod("one"))
    assert rig.dial(two, rig.address("one")) == OPEN
    assert rig.dial(one, rig.address("two")) == REFUSED


async def test_concurrent_attachments_leave_nothing_behind(tmp_path: Path, host: NetworkNamespace) -> None:
    before = traces(host, tmp_path)
    rig = NetworkRig(tmp_path / "network", host)
    await rig.network.start()
    attachments = await asyncio.gather(*(rig.network.attach(pod(f"pod-{n}")) for n in range(40)))
    assert len({attachment.addresses for attachment in attachments}) == 40
    await asyncio.gather(*(rig.network.detach(f"pod-{n}") for n in range(0, 40, 2)))
    await rig.network.stop()
    assert traces(host, tmp_path) == before
    assert not rig.directory.exists()


async def test_cancelled_attachment_leaves_nothing_behind(rig: NetworkRig, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, forget, steps = asyncio.Event(), threading.Event(), rig.network._forget, list[str]()
    loop, make = asyncio.get_running_loop(), links.make_pod_netns

    def made(*arguments: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        go.wait()
        make(*arguments)
        steps.append("made")

    def forgotten(uid: str) -> None:
        forget(uid)
        steps.append("forgotten")

    monkeypatch.setattr(links, "make_pod_netns", made)
    monkeypatch.setattr(rig.network, "_forget", forgotten)
    attaching = asyncio.create_task(rig.network.attach(pod("brief")))
    await begun.wait()
    attaching.cancel()
    for _ in range(1000):  # nothing is forgotten meanwhile, however long it takes
        await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await attaching
    assert steps == ["made", "forgotten"]
    assert not any((rig.directory / "pods").glob("*"))
    assert not rig.network.addresses._allocated


async def test_missing_nft_is_reported(tmp_path: Path, host: NetworkNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    rig = NetworkRig(tmp_path / "network", host)
    with pytest.raises(NetworkUnavailable, match="nft is not installed"):
        await rig.network.start()
    monkeypatch.undo()
    await rig.network.stop()


async def test_ruleset_rejected_by_nft_is_a_node_condition_until_it_is_enforced(rig: NetworkRig) -> None:
    one, enforcer = await rig.pod("one"), rig.network.enforcer
    await rig.pod("two")
    run, refused = enforcer.run, asyncio.Event()

    async def refuse(script: str) -> None:
        enforcer.run = run
        refused.set()
        raise OSError("nft: no")

    enforcer.run = refuse
    closed = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    rig.policies.record_write({**named("NetworkPolicy", "closed", "default"), "spec": closed})
    await refused.wait()
    assert rig.dial(one, rig.address("two")) == OPEN, "what was in force is"
    message = "network policies are not enforced as written: nft: no"
    assert rig.network.weaknesses == {"NetworkPoliciesNotEnforced": message}

    async def in_force() -> bool:
        return not rig.network.weaknesses

    await until(in_force)
    assert rig.dial(one, rig.address("two")) == REFUSED


async def test_attach_is_idempotent(rig: NetworkRig) -> None:
    first = await rig.network.attach(pod("one"))
    assert await rig.network.attach(pod("one")) == first


async def test_pod_port_is_reachable_at_its_address_and_loopback(rig: NetworkRig) -> None:
    one = await rig.pod("one")
    await rig.policy("closed", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
    (await rig.network.dial("one", PORT)).close()
    with closing(one.call(lambda: socket.create_server(("127.0.0.1", PORT + 1)))):
        (await rig.network.dial("one", PORT + 1, "127.0.0.1")).close()
    with pytest.raises(ConnectionRefusedError):
        await rig.network.dial("one", PORT + 1)
    with pytest.raises(ConnectionRefusedError, match="pod two is not connected"):
        await rig.network.dial("two", PORT)


def udp(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, PORT))
    return sock


def connect_world(rig: NetworkRig, world: NetworkNamespace) -> None:
    """Link the node to a public address. (The namespace is isolated; no packet leaves the machine.)"""
    with world.path.open() as handle:
        make = f"ip link add world type veth peer name eth0 netns /proc/{os.getpid()}/fd/{handle.fileno()}"
        rig.host.call(
            lambda: subprocess.run(
                f"{make} && ip addr add 8.8.8.2/24 dev world && ip link set world up", shell=True, check=True
            )
        )
    inside = "ip addr add 8.8.8.1/24 dev eth0 && ip link set eth0 up"
    world.call(lambda: subprocess.run(inside, shell=True, check=True))


def traces(host: NetworkNamespace, directory: Path) -> tuple[object, ...]:
    """Return everything that a network could leave behind: links, rules and settings of the node, mounts, open
    files."""

    def on_node() -> tuple[str, str]:
        listed = subprocess.run(
            "ip -o link; ip route; nft list ruleset", shell=True, capture_output=True, text=True, check=True
        )
        return listed.stdout, Path("/proc/sys/net/ipv4/ip_forward").read_text()

    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(directory) in line]
    return host.call(on_node), mounts, len(os.listdir("/proc/self/fd"))


async def test_failed_detachment_succeeds_on_retry(rig: NetworkRig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.pod("one")
    (uid,) = await rig.network.attached()

    async def fail(script: str) -> None:
        raise OSError("nft: no")

    with monkeypatch.context() as broken:
        broken.setattr(rig.network.enforcer, "run", fail)
        with pytest.raises(OSError, match="nft: no"):
            await rig.network.detach(uid)
    await rig.network.detach(uid)
    assert await rig.network.attached() == set()
    assert not any((rig.directory / "pods").iterdir())
    assert not rig.network.addresses._allocated
