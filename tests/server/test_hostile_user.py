"""A hostile user occupies a bounded part of the event loop before a request of another user is answered.

The unit is one function call on the thread of the event loop, so the result does not depend on the machine: the CPU
clock that the server shares out among its users counts calls, too. Work in other threads is not counted.
``benchmarks.hostile_user`` measures the same attacks in seconds.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count, repeat
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE, ROLE, ROLE_BINDING
from sandpool.server.api_server import ApiServer
from sandpool.server.http import HttpLimits, HttpServer
from sandpool.server.request.handler import LARGE_LIST
from sandpool.server.request.messages import User
from sandpool.server.store.store import Store
from sandpool.testing.simulation.journal import MemoryJournal

SECONDS_PER_CALL = 0.5e-6
CONNECTIONS = 200
#: Calls that other users cause while four requests are served. The attacks cause up to 41,000, and two of them more
#: than 100,000 if users do not take turns.
MOST_CALLS = 60_000
#: Calls in one turn of the event loop. The attacks reach 12,500, and those that belong into the thread more than 30,000
#: without it.
MOST_CALLS_PER_TURN = 20_000
RBAC = "rbac.authorization.k8s.io"

Request = tuple[str, str, str, Any]  # method, path, content type, body


@dataclass(frozen=True, slots=True)
class Cost:
    """What the event loop does from the moment at which a request is sent until its response has arrived."""

    calls: int
    turns: int


class Calls:
    """Counts calls of functions on this thread, while it is on."""

    def __init__(self) -> None:
        self.total = 0

    def seconds(self) -> float:
        return self.total * SECONDS_PER_CALL

    def on(self) -> None:
        sys.setprofile(self._count)

    def off(self) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" or event == "c_call":
            self.total += 1


class Wire:
    """One connection to the server. Neither sending nor receiving takes a turn of the event loop."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.left = b""
        self.received = b""

    def send(self, request: Request) -> None:
        method, path, kind, value = request
        body = b"" if value is None else orjson.dumps(value)
        head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.received = b""
        self.left = head.encode() + body
        self.push()

    def push(self) -> None:
        try:
            while self.left:
                self.left = self.left[self.end.send(self.left) :]
        except BlockingIOError:
            pass

    def status(self) -> int | None:
        """The status of the response, once it is complete."""
        self.push()
        try:
            while data := self.end.recv(1 << 20):
                self.received += data
        except BlockingIOError:
            pass
        head, _, body = self.received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        if not length or len(body) < int(length):
            return None
        return int(head.split()[1])


class Rig:
    def __init__(self, server: ApiServer, http: HttpServer, calls: Calls) -> None:
        self.server = server
        self.http = http
        self.calls = calls
        self.hostile: list[tuple[Wire, Iterator[Request]]] = []
        self.wires: list[Wire] = []
        self.answers: list[int] = []
        self.longest_turn = 0

    async def connect(self, user: str) -> Wire:
        wire = Wire(await self.http.connect(User(user)))
        self.wires.append(wire)
        return wire

    async def attack(self, requests: Callable[[int], Iterator[Request]], connections: int = CONNECTIONS) -> None:
        """Keep a request of the hostile user on each connection from now on."""
        for number in range(connections):
            wire, each = await self.connect("mallory"), requests(number)
            wire.send(next(each))
            self.hostile.append((wire, each))
        for _ in range(50):  # the queue is full, and the cost of a request is known
            await self.turn()

    async def turn(self) -> None:
        """Run one turn of the event loop, then send the next request of each hostile connection that was answered."""
        before = self.calls.total
        self.calls.on()
        await asyncio.sleep(0)
        self.calls.off()
        self.longest_turn = max(self.longest_turn, self.calls.total - before)
        for wire, requests in self.hostile:
            status = wire.status()
            if status is not None:
                self.answers.append(status)
                wire.send(next(requests))

    async def cost(self, wire: Wire, request: Request) -> Cost:
        before, turns = self.calls.total, 0
        wire.send(request)
        while (status := wire.status()) is None:
            await self.turn()
            turns += 1
        assert status in (200, 201)
        return Cost(self.calls.total - before, turns)

    async def victim(self, name: str) -> list[Cost]:
        """Send requests of another user, one after the other."""
        maps = "/api/v1/namespaces/alice/configmaps"
        wire = await self.connect("alice")
        new = {"metadata": {"name": name}, "data": {"a": "b"}}
        return [
            await self.cost(wire, request)
            for request in (
                ("POST", maps, "application/json", new),
                ("GET", f"{maps}/{name}", "application/json", None),
                ("PATCH", f"{maps}/{name}", "application/merge-patch+json", {"data": {"a": "c"}}),
                ("DELETE", f"{maps}/{name}", "application/json", None),
            )
        ]


def binding(user: str, kind: str, role: str) -> dict[str, Any]:
    reference = {"apiGroup": RBAC, "kind": kind, "name": role}
    return {
        "metadata": {"name": f"{user}-{role}"},
        "roleRef": reference,
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
    }


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    calls = Calls()
    server = ApiServer(tmp_path, open_store=lambda _: Store(MemoryJournal(lambda: 0.0)))
    await server.start()
    http = HttpServer(
        server.handler,
        server.authenticator,
        authorizer=server.authorizer,
        limits=HttpLimits(local_connections=1000),
        cpu=calls.seconds,
    )
    await http.start()
    admin = server.client()
    for user in ("mallory", "alice"):
        await admin.create(NAMESPACE, {"metadata": {"name": user}})
        await admin.create(ROLE_BINDING, binding(user, "ClusterRole", "admin"), user)
    rig = Rig(server, http, calls)
    yield rig
    calls.off()
    for wire in rig.wires:
        wire.end.close()
    await http.stop(0)
    await server.stop()


MAPS = "/api/v1/namespaces/mallory/configmaps"
ROLES = f"/apis/{RBAC}/v1/namespaces/mallory/roles"
JSON, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"


def config_map(name: str, keys: int) -> dict[str, Any]:
    data = {f"key-{number}": "x" for number in range(keys)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def floods(rig: Rig) -> None:
    """Small requests on many connections."""
    await rig.attack(lambda _: repeat(("GET", f"{MAPS}/none", JSON, None)))


async def lists(rig: Rig) -> None:
    """Lists of many objects, and of almost too few for the thread."""
    admin = rig.server.client()
    for number in range(2 * LARGE_LIST):
        await admin.create(CONFIG_MAP, config_map(f"m{number}", 2), "mallory")
    selector = ",".join(f"!label-{number}" for number in range(100))
    paths = (MAPS, f"{MAPS}?labelSelector={selector}", f"{MAPS}?limit={LARGE_LIST // 10}")
    await rig.attack(lambda number: repeat(("GET", paths[number % 3], JSON, None)), 30)


async def writes(rig: Rig) -> None:
    """Large bodies, and small changes of a large object."""
    await rig.server.client().create(CONFIG_MAP, config_map("large", 3000), "mallory")
    requests: list[Request] = [
        ("POST", f"{MAPS}?dryRun=All", JSON, config_map("new", 3000)),
        ("PATCH", f"{MAPS}/large?dryRun=All", MERGE, {"data": {"key-1": "y"}}),
        ("PATCH", f"{MAPS}/applied?dryRun=All&fieldManager=me", APPLY, config_map("applied", 1000)),
    ]
    await rig.attack(lambda number: repeat(requests[number % 3]), 30)


async def watches(rig: Rig) -> None:
    """Many watches of an object that changes all the time."""
    await rig.server.client().create(CONFIG_MAP, config_map("seen", 10), "mallory")
    await rig.attack(lambda _: repeat(("GET", f"{MAPS}?watch=1", JSON, None)))

    def changes(first: int) -> Iterator[Request]:
        for number in count():
            yield "PATCH", f"{MAPS}/seen", MERGE, {"data": {"key-1": f"{first}-{number}"}}

    await rig.attack(changes, 10)


async def roles(rig: Rig) -> None:
    """Changes of a Role, which empty caches, beside requests that many rules are compared with."""
    admin = rig.server.client()
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}
    for name in ("role-0", "role-1"):
        rules = [{**rule, "resourceNames": [f"n{number}"]} for number in range(1000)]
        await admin.create(ROLE, {"metadata": {"name": name}, "rules": rules}, "mallory")
        await admin.create(ROLE_BINDING, binding("mallory", "Role", name), "mallory")

    def calls(first: int) -> Iterator[Request]:
        for number in count():
            labels = {"note": f"{first}-{number}"}
            yield "PUT", f"{ROLES}/small", JSON, {"metadata": {"name": "small", "labels": labels}, "rules": [rule]}
            yield "GET", f"{MAPS}/none", JSON, None

    await rig.attack(calls, 30)


@pytest.mark.parametrize("attack", [floods, lists, writes, watches, roles])
async def test_hostile_user_occupies_a_bounded_part_of_the_event_loop(
    rig: Rig, attack: Callable[[Rig], Awaitable[None]]
) -> None:
    await rig.victim("first")  # fills caches
    alone = await rig.victim("alone")
    rig.longest_turn = 0
    await attack(rig)
    disturbed = await rig.victim("disturbed")
    while not rig.answers:  # the attack is carried out; a thread may take any number of turns for a large request
        await rig.turn()
    assert all(each.turns <= before.turns + 1 for each, before in zip(disturbed, alone, strict=True))
    assert sum(each.calls for each in disturbed) - sum(each.calls for each in alone) < MOST_CALLS
    assert rig.longest_turn < MOST_CALLS_PER_TURN
