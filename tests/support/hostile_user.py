"""A user who wears the API server out, in a process of its own: ``python -m tests.support.hostile_user``.

Arguments: the port of the server, the file of its CA, the token, the namespace and one of ``ATTACKS``. The process
prints "ready" when its preparations are done, and attacks until its input ends. Then it prints how many requests were
answered, by status.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any

import orjson
import yaml

CONNECTIONS = 24
OBJECTS = 2000
WATCHES = 300
_JSON, _MERGE, _APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"

# Method, path, content type, body, Accept
Call = tuple[str, str, str, bytes, str]


def config_map(name: str, keys: int, value: str = "") -> bytes:
    data = {f"key-{number}": value for number in range(keys)}
    return orjson.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


def deep_pod(name: str, variables: int) -> bytes:
    environment = [{"name": f"E{number}", "value": "v"} for number in range(variables)]
    container = {"name": "c", "image": "i", "env": environment}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    return orjson.dumps(pod)


class HostileUser:
    def __init__(self, port: int, ca: str, token: str, namespace: str) -> None:
        self.port = port
        self.tls = ssl.create_default_context(cafile=ca)
        self.token = token
        self.maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        self.answers: Counter[int] = Counter()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, limit=1 << 20)

    def request(self, call: Call) -> bytes:
        method, path, kind, body, accept = call
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {self.token}",
            f"Content-Type: {kind}",
            f"Accept: {accept}",
            f"Content-Length: {len(body)}",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body

    @staticmethod
    async def answer(reader: asyncio.StreamReader) -> int:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        left = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        while left:
            left -= len(await reader.read(min(left, 1 << 16)))
        return int(head.split()[1])

    async def prepare(self, calls: list[Call]) -> None:
        reader, writer = await self.connect()
        for call in calls:
            writer.write(self.request(call))
            await self.answer(reader)
        writer.close()

    async def repeat(self, calls: Iterator[Call]) -> None:
        """Send requests one after the other over one connection, and connect again when it is closed."""
        while True:
            try:
                reader, writer = await self.connect()
                for call in calls:
                    writer.write(self.request(call))
                    self.answers[await self.answer(reader)] += 1
            except (OSError, asyncio.IncompleteReadError):
                self.answers[0] += 1
                await asyncio.sleep(0.01)

    async def watch(self) -> None:
        while True:
            try:
                reader, writer = await self.connect()
                writer.write(self.request(("GET", f"{self.maps}?watch=1&resourceVersion=0", _JSON, b"", _JSON)))
                while await reader.read(1 << 16):
                    self.answers[200] += 1
            except OSError:
                await asyncio.sleep(0.1)

    async def fill(self) -> None:
        await self.prepare([("POST", self.maps, _JSON, config_map(f"m{i}", 20, "x" * 20), "") for i in range(OBJECTS)])

    # -- attacks ----------------------------------------------------------------------------------------------------

    async def lists(self) -> list[Coroutine[Any, Any, None]]:
        await self.fill()
        tables = f"{_JSON};as=Table;v=v1;g=meta.k8s.io"
        selector = ",".join(f"!label-{number}" for number in range(250))
        calls: list[Call] = [
            ("GET", self.maps, _JSON, b"", _JSON),
            ("GET", self.maps, _JSON, b"", tables),
            ("GET", f"{self.maps}?labelSelector={selector}", _JSON, b"", _JSON),
            ("GET", f"{self.maps}?fieldSelector=metadata.name!=a,metadata.name!=b", _JSON, b"", tables),
            ("GET", f"{self.maps}?limit=500", _JSON, b"", _JSON),
        ]
        return [self.repeat(calls[number % len(calls)] for number in count(each)) for each in range(CONNECTIONS)]

    async def writes(self) -> list[Coroutine[Any, Any, None]]:
        await self.prepare([("POST", self.maps, _JSON, config_map("large", 20_000), "")])
        dry = "dryRun=All"
        text = yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "y"}, "data": {}})
        text += "".join(f"  k{number}: v\n" for number in range(4000)).replace("{}", "")
        calls: list[Call] = [
            ("POST", f"{self.maps}?{dry}", _JSON, config_map("new", 40_000), ""),
            ("PATCH", f"{self.maps}/large", _MERGE, b'{"data":{"key-1":"%d"}}', ""),
            ("PATCH", f"{self.maps}/large?{dry}", _MERGE, config_map("large", 20_000, "1"), ""),
            ("PATCH", f"{self.maps}/new?{dry}&fieldManager=me", _APPLY, config_map("new", 10_000), ""),
            ("PATCH", f"{self.pods}/deep?{dry}&fieldManager=me", _APPLY, deep_pod("deep", 5000), ""),
            ("POST", f"{self.pods}?{dry}", _JSON, deep_pod("new", 10_000), ""),
            ("POST", f"{self.maps}?{dry}", "application/yaml", text.encode(), ""),
        ]

        def calls_from(first: int) -> Iterator[Call]:
            for number in count(first):
                method, path, kind, body, accept = calls[number % len(calls)]
                yield method, path, kind, body % number if body.endswith(b'%d"}}') else body, accept

        return [self.repeat(calls_from(each)) for each in range(CONNECTIONS)]

    async def watches(self) -> list[Coroutine[Any, Any, None]]:
        await self.prepare([("POST", self.maps, _JSON, config_map("seen", 100), "")])

        def changes(first: int) -> Iterator[Call]:
            for number in count(first):
                yield "PATCH", f"{self.maps}/seen", _MERGE, b'{"data":{"key-1":"%d"}}' % number, ""

        writers = [self.repeat(changes(each * 1_000_000)) for each in range(4)]
        return [*(self.watch() for _ in range(WATCHES)), *writers]

    async def roles(self) -> list[Coroutine[Any, Any, None]]:
        def role(name: str, rules: int, note: int = 0) -> bytes:
            rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}
            each = [{**rule, "resourceNames": [f"n{number}"]} for number in range(rules)]
            return orjson.dumps({"metadata": {"name": name, "labels": {"note": str(note)}}, "rules": each})

        def binding(name: str) -> bytes:
            group = "rbac.authorization.k8s.io"
            reference = {"apiGroup": group, "kind": "Role", "name": name}
            subjects = [{"kind": "User", "apiGroup": group, "name": "mallory"}]
            return orjson.dumps({"metadata": {"name": name}, "roleRef": reference, "subjects": subjects})

        names = [f"role-{number}" for number in range(5)]
        await self.prepare(
            [("POST", f"{self.rbac}/roles", _JSON, role(name, 1500), "") for name in names]
            + [("POST", f"{self.rbac}/rolebindings", _JSON, binding(name), "") for name in names]
            + [("POST", f"{self.rbac}/roles", _JSON, role("small", 1), "")]
        )
        review = orjson.dumps({"spec": {"namespace": self.maps.split("/")[4]}})
        reviews = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

        def calls_from(first: int) -> Iterator[Call]:
            for number in count(first):
                yield "PUT", f"{self.rbac}/roles/small", _JSON, role("small", 1, number), ""  # empties caches
                yield "GET", f"{self.maps}/none", _JSON, b"", _JSON
                yield "POST", reviews, _JSON, review, _JSON

        return [self.repeat(calls_from(each * 1_000_000)) for each in range(CONNECTIONS)]

    async def floods(self) -> list[Coroutine[Any, Any, None]]:
        call: Call = ("GET", f"{self.maps}/none", _JSON, b"", _JSON)
        return [self.repeat(call for _ in count()) for _ in range(8 * CONNECTIONS)]


ATTACKS: dict[str, Callable[[HostileUser], Coroutine[Any, Any, list[Coroutine[Any, Any, None]]]]] = {
    "lists": HostileUser.lists,
    "writes": HostileUser.writes,
    "watches": HostileUser.watches,
    "roles": HostileUser.roles,
    "floods": HostileUser.floods,
}


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(port: str, ca: str, token: str, namespace: str, attack: str) -> None:
    os.nice(10)  # the server is the target, not the machine
    user = HostileUser(int(port), ca, token, namespace)
    tasks = [asyncio.ensure_future(each) for each in await ATTACKS[attack](user)]
    say("ready")
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    say(str(dict(user.answers)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
