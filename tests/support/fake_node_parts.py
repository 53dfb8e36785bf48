"""Doubles for images, volumes, network and logs of a node. They record each request of a pod and grant it unless a test
sets a failure."""

from __future__ import annotations

import base64
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from sandpool.api.kinds import SECRET
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.errors import NotFound
from sandpool.node.pods.interfaces import Attachment, Image, Owner
from sandpool.node.runtimes.runtime import Bind, Container, HostToolchain, Mount
from sandpool.testing.objects import new, pod


class FakeImages:
    """Every image exists and runs ``entrypoint``. ``failures`` are raised for images of these names."""

    def __init__(self) -> None:
        self.image = Image("sha256:0", HostToolchain(), entrypoint=("/init",), user="1000")
        self.failures: dict[str, Exception] = {}
        self.asked: list[tuple[str, str]] = []

    async def resolve(self, name: str, pull_policy: str, pod: SharedObject) -> Image:
        self.asked.append((name, pull_policy))
        if (failure := self.failures.get(name)) is not None:
            raise failure
        return self.image


class FakeNetwork:
    """Pods get consecutive addresses and keep them. Ports in ``open`` answer; ``dialled`` holds the other ends of all
    connections until ``close``."""

    nameservers: tuple[str, ...] = ("10.96.0.10",)
    host_addresses: tuple[str, ...] = ("192.0.2.1",)

    def __init__(self) -> None:
        self.weaknesses: dict[str, str] = {}
        self.failure: Exception | None = None
        self.addresses: dict[str, str] = {}  # of the pods that are attached, by UID
        self.open: set[int] = set()
        self.dialled: list[socket.socket] = []
        self.greeting = b"HTTP/1.1 200 OK\r\n\r\n"  # sent on every connection
        self._given = 0

    async def attach(self, pod: SharedObject) -> Attachment:
        if self.failure is not None:
            raise self.failure
        uid = pod["metadata"]["uid"]
        if uid not in self.addresses:
            self._given += 1
            self.addresses[uid] = f"10.1.0.{self._given}"
        return Attachment(None, (self.addresses[uid],))

    async def detach(self, uid: str) -> None:
        self.addresses.pop(uid, None)

    async def attached(self) -> set[str]:
        return set(self.addresses)

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        if port not in self.open:
            raise ConnectionRefusedError(f"dial tcp {self.addresses[uid]}:{port}: connect: connection refused")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.sendall(self.greeting)
        theirs.shutdown(socket.SHUT_WR)
        self.dialled.append(theirs)
        return ours

    def close(self) -> None:
        for each in self.dialled:
            each.close()


@dataclass
class FakeVolumes:
    """Every ``volumeMount`` is a directory. ``prepared`` are the pods with volumes, by UID."""

    failure: Exception | None = None
    prepared: dict[str, Owner] = field(default_factory=dict)

    async def prepare(
        self, pod: SharedObject, directory: Path, owner: Owner, *, simulated: bool = False
    ) -> FakePodVolumes:
        if self.failure is not None:
            raise self.failure
        self.prepared[pod["metadata"]["uid"]] = owner
        return FakePodVolumes(directory)

    async def release(self, uid: str, directory: Path, *, keep: bool = False) -> None:
        self.prepared.pop(uid, None)


@dataclass(frozen=True)
class FakePodVolumes:
    directory: Path

    def mounts(self, container: Object, env: Mapping[str, str]) -> tuple[Mount, ...]:
        mounts = container.get("volumeMounts") or ()
        return tuple(Bind(self.directory / each["name"], each["mountPath"]) for each in mounts)


@dataclass
class FakeLogs:
    """``text`` is the output of every container."""

    text: bytes = b""
    followed: list[tuple[str, int]] = field(default_factory=list)

    def follow(self, container: Container, directory: Path, restarts: int) -> None:
        self.followed.append((container.spec.name, restarts))

    async def finish(self, container: Container) -> None:
        pass

    async def tail(self, container: Container, limit: int) -> bytes:
        return self.text[-limit:]


class FakeSecrets:
    """Secrets that pods of any namespace can read."""

    def __init__(self, *secrets: Object) -> None:
        self.secrets = {secret["metadata"]["name"]: secret for secret in secrets}

    async def __call__(self, name: str, namespace: str) -> Object:
        if name not in self.secrets:
            raise NotFound(f'secrets "{name}" not found')
        return self.secrets[name]


def pull_secret(name: str, registries: Object) -> Object:
    """Return a secret as ``kubectl create secret docker-registry`` creates it."""
    document = base64.b64encode(orjson.dumps({"auths": registries})).decode()
    return new(SECRET, name, type="kubernetes.io/dockerconfigjson", data={".dockerconfigjson": document})


def pulling_pod(*secrets: str) -> Object:
    """Return a pod with these pull secrets."""
    return pod(
        "box", metadata={"namespace": "default"}, spec={"imagePullSecrets": [{"name": each} for each in secrets]}
    )
