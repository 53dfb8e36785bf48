"""Container output is stored, bounded and served."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandpool.node.logs.files import LogFile
from sandpool.node.logs.manager import LogManager
from sandpool.node.logs.reader import LogOptions, Snapshot
from sandpool.node.runtimes.runtime import ContainerSpec
from sandpool.testing.clock import ManualClock
from tests.support.fake_runtime import FakeContainer, FakeRuntime, pod_sandbox


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[FakeContainer]:
    runtime = FakeRuntime()
    pod = pod_sandbox(tmp_path / "pod")
    await runtime.open_pod(pod)
    yield await runtime.create(pod, ContainerSpec("main", ("true",)))
    await runtime.close_pod(pod)


async def text(logs: LogManager, directory: Path, run: int = 0, **options: object) -> str:
    asked = LogOptions(**options)  # type: ignore[arg-type]
    return b"".join([piece async for piece in logs.read(directory, run, asked)]).decode()


async def test_lines_of_both_streams_keep_their_order(
    container: FakeContainer, clock: ManualClock, tmp_path: Path
) -> None:
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    for number in range(3):
        container.say(f"out {number}\n")
        await seen(logs, container, f"out {number}")
        container.say(f"err {number}\n", "stderr")
        await seen(logs, container, f"err {number}")
    await logs.finish(container)
    assert await text(logs, tmp_path / "logs") == "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n"
    assert await text(logs, tmp_path / "logs", stream="stderr") == "err 0\nerr 1\nerr 2\n"


async def seen(logs: LogManager, container: FakeContainer, what: str) -> None:
    """Wait until the log contains the text."""
    for _ in range(10_000):
        if what.encode() in await logs.tail(container, 1000):
            return
    raise AssertionError(f"{what} never came")


async def test_output_without_a_final_newline_is_kept(
    container: FakeContainer, clock: ManualClock, tmp_path: Path
) -> None:
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    container.say("last words")
    await logs.finish(container)
    await logs.finish(container)
    assert await text(logs, tmp_path / "logs") == "last words"
    assert await logs.tail(container, 5) == b"words"


async def test_log_options_are_honoured(container: FakeContainer, clock: ManualClock, tmp_path: Path) -> None:
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    times = []
    for number in range(4):
        times.append(clock.now())
        container.say(f"line {number}\n")
        await seen(logs, container, f"line {number}")
        await clock.advance(1.0)
    await logs.finish(container)
    where = tmp_path / "logs"
    assert await text(logs, where, tail=2) == "line 2\nline 3\n"
    assert await text(logs, where, tail=0) == ""
    assert await text(logs, where, since=times[3]) == "line 3\n"
    assert await text(logs, where, since=times[3] + timedelta(hours=1)) == ""
    assert await text(logs, where, limit=10) == "line 0\nlin"
    stamped = (await text(logs, where, timestamps=True, tail=1)).split(" ", 1)
    assert stamped[1] == "line 3\n"
    assert datetime.fromisoformat(stamped[0][:26] + "+00:00") == times[3].astimezone(UTC)


async def test_long_line_is_returned_as_one_line(container: FakeContainer, clock: ManualClock, tmp_path: Path) -> None:
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    container.say("first\n" + "x" * 40_000 + "\n")
    await logs.finish(container)
    shown = await text(logs, tmp_path / "logs", tail=1, timestamps=True)
    assert shown.count("Z ") == 1 and shown.count("x") == 40_000 and shown.count("\n") == 1


async def test_previous_run_can_be_read(container: FakeContainer, clock: ManualClock, tmp_path: Path) -> None:
    logs = LogManager(clock)
    for run in range(2):
        logs.follow(container, tmp_path / "logs", run)
        container.say(f"run {run}\n")
        await logs.finish(container)
    assert await text(logs, tmp_path / "logs", run=0) == "run 0\n"
    assert await text(logs, tmp_path / "logs", run=1) == "run 1\n"
    assert await logs.tail(container, 100) == b"run 1\n"


async def test_follow_shows_old_and_new_lines_until_the_end(
    container: FakeContainer, clock: ManualClock, tmp_path: Path
) -> None:
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    container.say("one\ntwo\n")
    await seen(logs, container, "two")
    pieces: list[bytes] = []
    arrived = asyncio.Event()

    async def watch() -> None:
        async for piece in logs.read(tmp_path / "logs", 0, LogOptions(follow=True, tail=1)):
            pieces.append(piece)
            arrived.set()

    watching = asyncio.create_task(watch())
    await asyncio.wait_for(arrived.wait(), 30)
    container.say("three\n")
    container.say("four\n")
    await seen(logs, container, "four")
    await logs.finish(container)
    await asyncio.wait_for(watching, 30)
    assert b"".join(pieces) == b"two\nthree\nfour\n"
    assert await text(logs, tmp_path / "logs", follow=True) == "one\ntwo\nthree\nfour\n"


async def test_next_agent_appends_to_the_same_file(
    container: FakeContainer, clock: ManualClock, tmp_path: Path
) -> None:
    first = LogManager(clock)
    first.follow(container, tmp_path / "logs", 0)
    container.say("before\n")
    await first.close()
    container.say("meanwhile\n")
    second = LogManager(clock)
    second.follow(container, tmp_path / "logs", 0)
    second.follow(container, tmp_path / "logs", 0)
    await second.finish(container)
    assert await text(second, tmp_path / "logs") == "before\nmeanwhile\n"


async def test_listener_receives_output_as_it_arrives(
    container: FakeContainer, clock: ManualClock, tmp_path: Path
) -> None:
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    heard: list[tuple[str, bytes]] = []
    any_file = asyncio.Event()

    def listen(stream: str, data: bytes) -> None:
        heard.append((stream, data))
        any_file.set()

    stop = logs.listen(container, listen)
    container.say("no newline", "stderr")
    await asyncio.wait_for(any_file.wait(), 30)
    stop()
    stop()
    container.say("unheard")
    await logs.finish(container)
    assert heard == [("stderr", b"no newline")]


async def test_output_rate_is_limited(container: FakeContainer, clock: ManualClock, tmp_path: Path) -> None:
    logs = LogManager(clock, rate=1 << 20)
    logs.follow(container, tmp_path / "logs", 0)
    line = "x" * 4000 + "\n"
    written = 0
    for _ in range(10_000):
        container.say(line * 10)
        await asyncio.sleep(0)
        size = sum(path.stat().st_size for path in (tmp_path / "logs").iterdir())
        if size == written and size > 0 and clock.sleepers:
            break
        written = size
    assert written < 10 << 20, "no time has passed: no more than what may be ahead is taken"
    await clock.advance(60.0)
    await logs.finish(container)


async def test_slow_follower_has_a_bounded_backlog(
    container: FakeContainer, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandpool.node.logs.manager.MOST_BEHIND", 10_000)
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    container.say("first\n")
    await seen(logs, container, "first")
    lines = aiter(logs.read(tmp_path / "logs", 0, LogOptions(follow=True)))
    assert await anext(lines) == b"first\n"
    followed = next(iter(logs._followed.values()))
    for number in range(100):
        container.say(f"{number:03} {'x' * 900}\n")
        await seen(logs, container, f"{number:03} ")
        assert sum(map(len, followed.readers[0].lines)) <= 10_000
    await logs.finish(container)
    rest = [piece async for piece in lines]
    assert rest[0].endswith(b" bytes dropped: the client reads too slowly]\n")
    assert rest[1:] == [f"{number:03} {'x' * 900}\n".encode() for number in range(100 - len(rest) + 1, 100)]
    assert followed.readers == []


async def test_read_without_follow_does_not_wait(container: FakeContainer, clock: ManualClock, tmp_path: Path) -> None:
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    container.say("first\n")
    await seen(logs, container, "first")
    lines = aiter(logs.read(tmp_path / "logs", 0, LogOptions()))
    assert await anext(lines) == b"first\n"
    assert next(iter(logs._followed.values())).readers == []
    await logs.finish(container)


@pytest.mark.parametrize("options", [LogOptions(), LogOptions(tail=1 << 40), LogOptions(tail=39_000)])
async def test_log_of_many_lines_is_read_in_little_memory(
    clock: ManualClock, tmp_path: Path, options: LogOptions
) -> None:
    file = LogFile(tmp_path, 0)
    file.write(b"2026-11-16T10:00:00.123456000Z stdout F \n" * 40_000)
    file.close()
    pieces = LogManager(clock).read(tmp_path, 0, options)
    tracemalloc.start()
    try:
        read = [len(piece) async for piece in pieces]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(read) == (39_000 if options.tail == 39_000 else 40_000)
    assert peak < 4 << 20, "as records it is 12 MiB"


async def test_end_of_a_log_is_read_in_little_memory(tmp_path: Path) -> None:
    file = LogFile(tmp_path, 0)
    file.write(b"2026-11-16T10:00:00.123456000Z stdout F words\n" * 40_000)
    file.close()
    with closing(Snapshot(tmp_path, 0)) as snapshot:
        tracemalloc.start()
        try:
            assert snapshot.end(8) == b"s\nwords\n"
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


async def test_last_lines_of_two_streams_are_whole(
    container: FakeContainer, clock: ManualClock, tmp_path: Path
) -> None:
    logs = LogManager(clock)
    logs.follow(container, tmp_path / "logs", 0)
    container.say("first\n")
    await seen(logs, container, "first")
    container.say("a" * 20_000)
    await seen(logs, container, "a" * 1000)
    container.say("between\n", "stderr")
    await seen(logs, container, "between")
    container.say("b\n")
    await logs.finish(container)
    where = tmp_path / "logs"
    assert (await text(logs, where, tail=1)) == "between\n"
    assert sorted(await text(logs, where, tail=2)) == sorted("a" * 20_000 + "b\n" + "between\n")
