"""The dialer of the node in this process."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandpool.node.agent import NodeAgent
from sandpool.node.pods.binding import NotBound
from sandpool.node.sleep.activity import ClientActivity
from sandpool.router.destination import RequestRejected
from sandpool.router.dialer import NodeDialer
from sandpool.router.targets import Target
from sandpool.testing.clock import ManualClock


class Node:
    """A node agent with one pod, ``team/box``, that records what is done to it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.parts = SimpleNamespace(network=self)
        self.state = SimpleNamespace(pod=SimpleNamespace(uid="uid-1"))
        self.clients = ClientActivity(ManualClock())
        self.is_unbound = False

    def find(self, namespace: str, pod: str) -> Node | None:
        return self if (namespace, pod) == ("team", "box") else None

    async def ensure_thawed(self) -> None:
        self.calls.append(("thaw",))

    async def variables(self) -> dict[str, str]:
        if self.is_unbound:
            raise NotBound(10)
        self.calls.append(("bound",))
        return {}

    async def dial(self, uid: str, port: int) -> socket.socket:
        self.calls.append(("dial", uid, port))
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours


async def test_pod_that_lacks_the_variables_of_its_claim_is_not_dialled() -> None:
    node = Node()
    node.is_unbound = True
    with pytest.raises(TimeoutError, match="the variables of its claim were not handed over"):
        await NodeDialer(cast(NodeAgent, node))(Target("team", "box", "uid-1", ""), 80)
    assert node.calls == [("thaw",)]


async def test_pod_is_thawed_before_it_is_dialled() -> None:
    node = Node()
    (await NodeDialer(cast(NodeAgent, node))(Target("team", "box", "uid-1", ""), 80)).close()
    assert node.calls == [("thaw",), ("bound",), ("dial", "uid-1", 80)]
    assert node.clients.connected == 0, "the router knows of the requests on the connection"


@pytest.mark.parametrize(
    "target",
    [Target("team", "box", "uid-2", ""), Target("team", "other", "uid-1", ""), Target("x", "box", "uid-1", "")],
)
async def test_pod_with_another_uid_is_refused(target: Target) -> None:
    node = Node()
    with pytest.raises(RequestRejected, match="Nothing runs in pod"):
        await NodeDialer(cast(NodeAgent, node))(target, 80)
    assert node.calls == [], "neither thawed nor dialled"
