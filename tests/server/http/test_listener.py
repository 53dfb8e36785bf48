"""Connections of clients that have not authenticated: their limits, and which of them make room."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.engine.listener import ACCEPTED_PER_TURN, Accepted, Stranger, Strangers
from sandpool.server.http import HttpLimits
from sandpool.server.serving.pki import Authority

if TYPE_CHECKING:
    from tests.server.http.conftest import Bench

MakeBench = Callable[..., "Awaitable[Bench]"]


class Dropped(Accepted):
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def stranger(address: str) -> Stranger:
    made = Stranger(address, socket.socket())
    made.socket.close()
    made.connection = Dropped()
    return made


def is_dropped(each: Stranger) -> bool:
    assert isinstance(each.connection, Dropped)
    return each.connection.aborted


def test_the_oldest_stranger_of_an_address_makes_room_for_its_next() -> None:
    strangers = Strangers(HttpLimits(strangers=100, strangers_per_address=3))
    other = stranger("b")
    strangers.add(other)
    ours = [stranger("a") for _ in range(5)]
    for each in ours:
        strangers.add(each)
    assert [is_dropped(each) for each in ours] == [True, True, False, False, False]
    assert not is_dropped(other)
    assert len(strangers) == 4


def test_the_address_with_most_strangers_makes_room_for_others() -> None:
    strangers = Strangers(HttpLimits(strangers=4, strangers_per_address=4))
    flood = [stranger("a") for _ in range(3)]
    quiet = [stranger("b"), stranger("c"), stranger("d")]
    for each in (*flood, *quiet):
        strangers.add(each)
    assert [is_dropped(each) for each in flood] == [True, True, False]
    assert not any(map(is_dropped, quiet))


def test_an_authenticated_client_is_no_stranger() -> None:
    strangers = Strangers(HttpLimits(strangers=2, strangers_per_address=2))
    known = stranger("a")
    strangers.add(known)
    strangers.remove(known)
    for _ in range(5):
        strangers.add(stranger("a"))
    assert not is_dropped(known)
    assert len(strangers) == 2


async def test_a_flood_of_idle_strangers_does_not_hold_out_a_client(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(connections=8, strangers=100, strangers_per_address=100))
    known = await bench.connect()
    known.request()
    assert (await known.answer()).status == 200
    idle = [await bench.connect() for _ in range(30)]
    late = await bench.connect()
    late.request()
    assert (await late.answer()).status == 200
    assert await idle[0].rest() == b"", "the oldest made room"
    known.request()
    assert (await known.answer()).status == 200


async def test_strangers_in_a_slow_head_make_room(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(strangers=4, strangers_per_address=4))
    slow = [await bench.connect() for _ in range(4)]
    for wire in slow:
        wire.send(b"GET /x HTTP/1.1\r\nHost: te")
    await bench.settle()
    known = await bench.connect()
    known.request()
    assert (await known.answer()).status == 200
    assert await slow[0].rest() == b""


async def test_an_anonymous_client_stays_a_stranger(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(strangers=1, strangers_per_address=1))
    anonymous = await bench.connect()
    anonymous.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await anonymous.answer()).status == 200
    await bench.connect()
    assert await anonymous.rest() == b""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(Path(tmp_path_factory.mktemp("pki")), SystemClock())


async def test_half_open_handshakes_make_room(make_bench: MakeBench, authority: Authority) -> None:
    limits = HttpLimits(strangers=3, strangers_per_address=3)
    bench = await make_bench(tls=authority.tls(()), limits=limits)
    half_open = [await bench.connect() for _ in range(ACCEPTED_PER_TURN * 2)]  # TCP only
    for wire in half_open:
        wire.send(b"\x16\x03\x01")  # the first bytes of a handshake
    client = ssl.create_default_context(cadata=authority.ca_pem)
    known = await bench.connect(client)
    known.request()
    assert (await known.answer()).status == 200
    assert await half_open[0].rest() == b""


async def test_an_unfinished_handshake_is_ended_in_time(make_bench: MakeBench, authority: Authority) -> None:
    bench = await make_bench(tls=authority.tls(()), limits=HttpLimits(tls_handshake_seconds=0.05))
    wire = await bench.connect()
    assert await wire.rest() == b""


async def test_descriptors_run_out_and_come_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpool.engine.listener._PAUSE_SECONDS", 0.01)
    idle = await bench.connect()
    await bench.settle()
    listener = bench.server._listener
    assert listener is not None

    class Exhausted:
        def __init__(self, real: socket.socket) -> None:
            self.real = real

            self.failed = False

        def accept(self) -> tuple[socket.socket, object]:
            if not self.failed:
                self.failed = True
                raise OSError(24, "Too many open files")
            return self.real.accept()

        def fileno(self) -> int:
            return self.real.fileno()

    (listening,) = listener._sockets
    listener._accept(Exhausted(listening))  # type: ignore[arg-type]
    assert await idle.rest() == b"", "an idle stranger gave its descriptor back"
    known = await bench.connect()
    known.request()
    assert (await known.answer()).status == 200


async def test_few_connections_are_accepted_in_one_turn(bench: Bench) -> None:
    listener = bench.server._listener
    assert listener is not None
    (listening,) = listener._sockets
    asyncio.get_running_loop().remove_reader(listening)
    clients = [socket.create_connection(("127.0.0.1", bench.server.port)) for _ in range(ACCEPTED_PER_TURN + 5)]
    listener._accept(listening)
    assert len(listener.strangers) == ACCEPTED_PER_TURN
    listener._accept(listening)
    assert len(listener.strangers) == ACCEPTED_PER_TURN + 5
    for client in clients:
        client.close()
