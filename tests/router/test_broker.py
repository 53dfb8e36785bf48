"""Connections that a router asks its parent for."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from sandpool.router.broker import (
    API,
    CANCEL,
    DIAL,
    BrokerClient,
    BrokerRequest,
    ConnectionBroker,
    MalformedRequest,
    error_number,
    not_here,
)
from sandpool.router.destination import RequestRejected
from sandpool.router.dialer import NodeDialer
from sandpool.router.targets import Target
from sandpool.testing.waiting import until

TARGET = Target("team", "box", "uid-1", "10.0.0.1")
NO_NODE = NodeDialer(None)
REQUEST = BrokerRequest(DIAL, 7, 8888, "team", "box", "uid-1")


@dataclass
class Channel:
    broker: ConnectionBroker
    client: BrokerClient
    serving: asyncio.Task[None]


async def refuse_api() -> socket.socket:
    raise ConnectionRefusedError(errno.ECONNREFUSED, "no")


@asynccontextmanager
async def channel(
    dial: Callable[[Target, int], Awaitable[socket.socket]] = NO_NODE,
    connect_api: Callable[[], Awaitable[socket.socket]] = refuse_api,
    max_requests: int = 100,
) -> AsyncIterator[Channel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    broker = ConnectionBroker(ours, dial, connect_api, max_requests=max_requests)
    serving = asyncio.create_task(broker.serve())
    client = BrokerClient(theirs)
    try:
        yield Channel(broker, client, serving)
    finally:
        client.close()
        with suppress(MalformedRequest):
            await asyncio.wait_for(serving, 30)


MANY = 450  # more than a socket pair holds, in requests or in replies


class Pods:
    """A dialer whose connections are the first ends of socket pairs."""

    def __init__(self) -> None:
        self.dialled: list[tuple[Target, int]] = []
        self.ends: list[socket.socket] = []

    async def __call__(self, target: Target, port: int) -> socket.socket:
        self.dialled.append((target, port))
        return await self.connect()

    async def connect(self) -> socket.socket:
        theirs, ours = socket.socketpair()
        self.ends.append(ours)
        return theirs


@pytest.fixture
def pods() -> Iterator[Pods]:
    made = Pods()
    yield made
    for end in made.ends:
        end.close()


async def test_router_gets_a_connection_to_the_pod_it_names(pods: Pods) -> None:
    async with channel(pods) as each:
        with await each.client.dial(TARGET, 8888) as connected:
            assert pods.dialled == [(Target("team", "box", "uid-1", ""), 8888)]
            assert not connected.getblocking()
            assert not os.get_inheritable(connected.fileno())
            pods.ends[0].send(b"hello")
            assert connected.recv(10) == b"hello"
        assert pods.ends[0].recv(1) == b"", "the parent has kept no copy"


async def test_pod_of_another_node_is_refused() -> None:
    async with channel(NO_NODE) as each:
        with pytest.raises(RequestRejected, match="Nothing runs in pod box"):
            await each.client.dial(TARGET, 8888)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ConnectionRefusedError),
        (ConnectionRefusedError("pod is not connected"), ConnectionRefusedError),
        (TimeoutError(), TimeoutError),
        (OSError(errno.ENETUNREACH, "unreachable"), OSError),
        (ZeroDivisionError(), OSError),
    ],
)
async def test_failure_has_the_same_kind_on_both_ends(raised: Exception, expected: type[OSError]) -> None:
    async def fail(target: Target, port: int) -> socket.socket:
        raise raised

    async with channel(fail) as each:
        with pytest.raises(expected):
            await each.client.dial(TARGET, 1)
        with pytest.raises(expected):  # and the channel goes on
            await each.client.dial(TARGET, 1)


async def test_many_connections_are_made_at_once(pods: Pods) -> None:
    async with channel(pods, max_requests=2 * MANY) as each, asyncio.timeout(60):
        made = await asyncio.gather(*(each.client.dial(TARGET, 1) for _ in range(MANY)))
        for connected in made:
            connected.close()
    assert len(made) == len(pods.ends) == MANY


async def test_many_slow_connections_are_replied_to_at_once(pods: Pods) -> None:
    """The replies are more than the channel holds, while their readers are not running."""
    started, ready = 0, asyncio.Event()

    async def dial(target: Target, port: int) -> socket.socket:
        nonlocal started
        started += 1
        if started == MANY:
            ready.set()
        await ready.wait()
        return await pods(target, port)

    async with channel(dial, max_requests=2 * MANY) as each, asyncio.timeout(60):
        made = await asyncio.gather(*(each.client.dial(TARGET, 1) for _ in range(MANY)))
        for connected in made:
            connected.close()
    assert len(made) == MANY


async def test_connection_to_the_api_comes_from_the_parent(pods: Pods) -> None:
    async with channel(connect_api=pods.connect) as each:
        with await each.client.connect_api() as connected:
            pods.ends[0].send(b"hello")
            assert connected.recv(10) == b"hello"
    async with channel() as each:
        with pytest.raises(ConnectionRefusedError):
            await each.client.connect_api()


async def test_requests_under_way_are_bounded() -> None:
    gate, started = asyncio.Event(), 0

    async def slow(target: Target, port: int) -> socket.socket:
        nonlocal started
        started += 1
        await gate.wait()
        raise not_here(target.pod)

    async with channel(slow, max_requests=3) as each:
        asking = [asyncio.create_task(each.client.dial(TARGET, 1)) for _ in range(10)]

        async def full() -> bool:
            return each.broker.under_way == 3

        await until(full)
        assert started == 3
        gate.set()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RequestRejected] * 10
        assert started == 10


async def test_abandoned_request_is_cancelled_in_the_parent() -> None:
    cancelled = asyncio.Event()

    async def stuck(target: Target, port: int) -> socket.socket:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with channel(stuck) as each:
        asking = asyncio.create_task(each.client.dial(TARGET, 1))

        async def arrived() -> bool:
            return each.broker.under_way == 1

        await until(arrived)
        asking.cancel()
        await asyncio.wait_for(cancelled.wait(), 30)

        async def free() -> bool:
            return each.broker.under_way == 0

        await until(free)


async def test_router_that_is_gone_ends_the_channel_and_its_requests() -> None:
    async def stuck(target: Target, port: int) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    async with channel(stuck) as each:
        asking = asyncio.create_task(each.client.dial(TARGET, 1))

        async def arrived() -> bool:
            return each.broker.under_way == 1

        await until(arrived)
        each.client.close()
        await asyncio.wait_for(each.serving, 30)
        with pytest.raises(ConnectionResetError):
            await asking
        assert each.broker.under_way == 0


WELL_FORMED = REQUEST.encode()


@pytest.mark.parametrize(
    "frame",
    [
        b"D",
        WELL_FORMED[:-1],
        WELL_FORMED + b"x",
        b"X" + WELL_FORMED[1:],
        BrokerRequest(DIAL, 7, 0, "team", "box", "uid-1").encode(),
        BrokerRequest(DIAL, 7, 80, "", "box", "uid-1").encode(),
        BrokerRequest(DIAL, 7, 80, "team", "box", "").encode(),
        BrokerRequest(DIAL, 7, 80, "team", "b\nx", "uid-1").encode(),
        BrokerRequest(DIAL, 7, 80, "team", "bö", "uid-1").encode(),
        BrokerRequest(API, 7, 80).encode(),
        BrokerRequest(API, 7, 0, "team").encode(),
        BrokerRequest(CANCEL, 7, 0, "", "", "uid").encode(),
        b"D" * 5000,
    ],
)
async def test_malformed_frame_ends_the_channel(frame: bytes, pods: Pods) -> None:
    async with channel(pods) as each:
        each.client.connection.send(frame)
        with pytest.raises(MalformedRequest):
            await asyncio.wait_for(each.serving, 30)
    assert pods.dialled == []


async def test_descriptor_in_a_request_ends_the_channel_and_is_closed(pods: Pods) -> None:
    async with channel(pods) as each:
        reader, writer = os.pipe()
        socket.send_fds(each.client.connection, [WELL_FORMED], [writer])
        os.close(writer)
        with pytest.raises(MalformedRequest):
            await asyncio.wait_for(each.serving, 30)
        assert os.read(reader, 1) == b"", "no process holds the other end"
        os.close(reader)
    assert pods.dialled == []


async def test_number_in_use_ends_the_channel() -> None:
    async def stuck(target: Target, port: int) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    async with channel(stuck) as each:
        each.client.connection.send(WELL_FORMED)
        each.client.connection.send(WELL_FORMED)
        with pytest.raises(MalformedRequest, match="in use"):
            await asyncio.wait_for(each.serving, 30)


def test_requests_decode_to_what_was_encoded() -> None:
    for request in (REQUEST, BrokerRequest(API, 1), BrokerRequest(CANCEL, 0xFFFFFFFF)):
        assert BrokerRequest.decode(request.encode()) == request


def test_errors_without_a_number_get_one() -> None:
    assert error_number(ConnectionRefusedError("text")) == errno.ECONNREFUSED
    assert error_number(TimeoutError()) == errno.ETIMEDOUT
    assert error_number(OSError("text")) == errno.EHOSTUNREACH
