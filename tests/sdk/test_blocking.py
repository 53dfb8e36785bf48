"""The blocking client: how long its thread lives."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from sandpool.sdk import blocking
from sandpool.sdk.blocking import Client, Sandbox
from sandpool.sdk.client import AsyncClient


class StandIn:
    """What ``Client`` needs of an ``AsyncClient`` to give out a sandbox and to close."""

    closed: ClassVar[list[StandIn]] = []

    def __init__(self, **_: object) -> None:
        self.released = 0

    async def sandbox(self, *_: object, **__: object) -> StandIn:
        return self

    async def release(self) -> None:
        self.released += 1

    async def close(self) -> None:
        self.closed.append(self)

    @property
    def files(self) -> StandIn:
        return self

    async def exists(self, path: str) -> bool:
        return bool(path)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandIn]]:
    """The clients that were closed, in order. Nothing of them is left at the end."""
    monkeypatch.setattr(blocking, "AsyncClient", StandIn)
    monkeypatch.setattr(Sandbox, "release", blocking.blocking(StandIn.release))
    monkeypatch.setattr(blocking.Files, "exists", blocking.blocking(StandIn.exists))
    monkeypatch.setattr(StandIn, "closed", [])
    before = set(threading.enumerate())
    yield StandIn.closed
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("sandpool client")]


def test_clients_of_a_loop_do_not_pile_up(closed: list[StandIn]) -> None:
    for _ in range(20):
        with Client().sandbox() as sb:
            assert sb.files.exists("a")
        for thread in threading.enumerate():
            if thread.name == "close sandpool client":
                thread.join(10)
        assert len(client_threads()) <= 2  # that of ``sb``, until the next one takes its name
    assert len(closed) >= 18
    assert all(each.released for each in closed)


def test_client_lives_while_something_of_it_is_used(closed: list[StandIn]) -> None:
    files = Client().sandbox().files
    gc.collect()
    assert files.exists("a")
    assert not closed
    del files
    for thread in threading.enumerate():
        if thread.name == "close sandpool client":
            thread.join(10)
    assert len(closed) == 1


def test_client_that_is_given_up_in_its_own_thread_is_closed(closed: list[StandIn]) -> None:
    """The garbage collector may run in any thread."""
    client = [Client()]
    done = threading.Event()

    def give_up() -> None:
        client.clear()
        done.set()

    loop = client[0]._loop
    worker = loop._worker
    del loop
    worker._loop.call_soon_threadsafe(give_up)
    assert done.wait(10)
    worker._thread.join(10)
    assert not worker._thread.is_alive()
    assert len(closed) == 1


def test_client_is_closed_once(closed: list[StandIn]) -> None:
    with Client() as client:
        pass
    client.close()
    assert len(closed) == 1


def test_real_client_offers_what_the_stand_in_replaces() -> None:
    for name in ("sandbox", "close"):
        assert callable(getattr(AsyncClient, name))


INTERRUPTED = """
import asyncio, signal, threading
from sandpool.sdk.blocking import LoopThread

loop, ended = LoopThread(), []

async def work():
    try:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        for _ in range(1000):
            await asyncio.sleep(0)
        ended.append("ended")

try:
    loop.run(work())
except KeyboardInterrupt:
    print("interrupted", *ended)
"""


def test_interrupted_call_waits_for_the_end_of_its_work() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("interrupted ended\n", 0), done.stderr
