from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from sandpool import TaskError
from sandpool.sdk.code import AsyncCodeSession, CodeSessionEnded
from sandpool.sdk.code_driver import MAX_OUTPUT
from sandpool.sdk.errors import Refused
from sandpool.sdk.results import Output
from sandpool.service.commands import Commands
from sandpool.service.sandboxes import Sandbox
from tests.support.fake_pod_client import FakePodClient, PlayedSession

BOX = Sandbox.from_object({"metadata": {"name": "box", "namespace": "space"}, "spec": {}})


@pytest.fixture
def session(pods: FakePodClient) -> AsyncCodeSession:
    return AsyncCodeSession(Commands(pods), BOX)


async def test_session_keeps_its_state(session: AsyncCodeSession) -> None:
    async with session:
        assert (await session.run("x = 1")).text is None
        done = await session.run("x += 1\nprint('hello')\nx")
        assert (done.text, done.stdout, done.stderr, done.error) == ("2", "hello\n", "", None)


async def test_sessions_are_independent(pods: FakePodClient) -> None:
    async with AsyncCodeSession(Commands(pods), BOX) as one, AsyncCodeSession(Commands(pods), BOX) as two:
        await asyncio.gather(one.run("x = 1"), two.run("x = 2"))
        assert [(await each.run("x")).text for each in (one, two)] == ["1", "2"]


async def test_exception_has_a_traceback_and_leaves_the_session(session: AsyncCodeSession) -> None:
    async with session:
        done = await session.run("x = 5\ndef f():\n    return 1 / 0\nf()")
        assert done.error is not None
        assert (done.error.name, done.error.value) == ("ZeroDivisionError", "division by zero")
        assert 'File "<code>", line 3, in f\n    return 1 / 0' in done.error.traceback
        assert "code_driver" not in done.error.traceback
        with pytest.raises(TaskError, match="ZeroDivisionError"):
            done.check()
        for code in ("raise SystemExit(3)", "if", "raise KeyboardInterrupt"):
            assert (await session.run(code)).error is not None
        assert (await session.run("x")).text == "5"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("class Mute(Exception):\n    def __str__(self): return 1 / 0\nraise Mute", "Mute"),
        ("class Mute(Exception):\n    def __str__(self): raise SystemExit\nraise Mute", "Mute"),
        ("raise Exception('\\ud800')", "Exception"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
        ("class Own(BaseException): pass\nraise Own", "Own"),
        ("import sys\nsys.stdout = None\nraise ValueError", "ValueError"),
    ],
)
async def test_session_outlives_every_exception(session: AsyncCodeSession, code: str, name: str) -> None:
    async with session:
        await session.run("x = 5")
        error = (await session.run(code)).error
        assert error is not None
        assert error.name == name
        assert (await session.run("x")).text == "5"


async def test_code_may_await_at_its_top_level(session: AsyncCodeSession) -> None:
    async with session:
        begun = (
            "import asyncio\n"
            "queue = asyncio.Queue()\n"
            "async def put(item): await queue.put(item)\n"
            "await put(1)\n"
            "await queue.get()"
        )
        assert (await session.run(begun)).check().text == "1"
        # The loop is the same one, and its tasks go on while code awaits.
        await session.run("async def later(): return await queue.get()")
        await session.run(
            "async def start():\n    global task\n    task = asyncio.ensure_future(later())\nawait start()"
        )
        assert (await session.run("await put(2)\nawait task")).check().text == "2"
        assert (await session.run("[each async for each in nothing()]")).error is not None
        failed = (await session.run("async def fail():\n    return 1 / 0\nawait fail()")).error
        assert failed is not None
        assert failed.traceback.startswith('Traceback (most recent call last):\n  File "<code>", line 3, in <module>')
        assert "asyncio" not in failed.traceback
        assert (await session.call("await asyncio.sleep(0, given)", {"given": 3})).value == 3
        assert (await session.run("asyncio.run(asyncio.sleep(0, 4))")).text == "4"


async def test_awaiting_code_is_interrupted(session: AsyncCodeSession) -> None:
    async with session:
        await session.run("import asyncio\nended = []")
        code = "try:\n    print('begun')\n    await asyncio.Event().wait()\nfinally:\n    ended.append(1)"
        done = await session.run(code, timeout=1.0)
        assert done.error is not None
        assert (done.error.name, done.stdout, done.stderr) == ("KeyboardInterrupt", "begun\n", "")
        assert (await session.run("await asyncio.sleep(0)\nended")).text == "[1]"


MATPLOTLIB = """
import sys, types
class Figure:
    def savefig(self, file, format, bbox_inches): file.write(f"<{format}>".encode())
pyplot = types.ModuleType("pyplot")
pyplot.get_fignums, pyplot.figure, pyplot.close = lambda: [1], lambda number: Figure(), lambda which: None
sys.modules["matplotlib.pyplot"] = pyplot
"""


async def test_figures_are_pictures_in_the_formats_that_are_asked_for(session: AsyncCodeSession) -> None:
    async with session:
        (figure,) = (await session.run(MATPLOTLIB)).results
        assert (figure.png, figure.svg, figure.is_figure) == (b"<png>", None, True)
        (figure,) = (await session.run("", figures=["svg"])).results
        assert (figure.png, figure.svg) == (None, "<svg>")
        (figure,) = (await session.run("", figures=["png", "svg"])).results
        assert (figure.png, figure.svg) == (b"<png>", "<svg>")
        with pytest.raises(Refused, match="gif"):
            await session.run("", figures=["gif"])  # type: ignore[list-item]


async def test_output_of_programs_is_captured(session: AsyncCodeSession) -> None:
    pieces: list[Output] = []
    async with session:
        done = await session.run(
            "import os, sys\nos.system('echo from sh')\nprint('err', file=sys.stderr)\nprint('last', end='')",
            stream=pieces.append,
        )
    assert done.stdout in ("from sh\nlast", "lastfrom sh\n")
    assert done.stderr == "err\n"
    assert {piece.stream for piece in pieces} == {"stdout", "stderr"}


async def test_output_beyond_the_limit_is_dropped_and_told(session: AsyncCodeSession) -> None:
    async with session:
        done = await session.run("print('x' * (3 << 20))")
        assert (len(done.stdout), done.truncated) == (1 << 20, True)
        assert (done.stdout_size, done.stderr_size) == ((3 << 20) + 1, 0)
        again = await session.run("import sys; print(1); print('no', file=sys.stderr)")
        assert (again.truncated, again.stdout_size, again.stderr_size) == (False, 2, 3)
        short = await session.run("import sys; print('y' * 9); print('no', file=sys.stderr)", max_output=3)
        assert (short.stdout, short.stderr, short.truncated) == ("yyy", "no\n", True)
        assert (short.stdout_size, short.stderr_size) == (10, 3)
        assert (await session.run("print('y' * 9)")).stdout == "yyyyyyyyy\n", "a limit is of one call"


async def test_objects_show_what_they_offer(session: AsyncCodeSession) -> None:
    code = """
class Table:
    def _repr_html_(self): return "<b>1</b>"
    def _repr_png_(self): return b"png"
    def _repr_svg_(self): return "<svg/>"
    def _repr_json_(self): return {"a": [1]}
    def _repr_markdown_(self): raise ValueError
    def __repr__(self): return "Table()"
Table()
"""
    async with session:
        (shown,) = (await session.run(code)).results
    assert (shown.text, shown.html, shown.png, shown.svg) == ("Table()", "<b>1</b>", b"png", "<svg/>")
    assert (shown.json, shown.markdown) == ({"a": [1]}, None)


async def test_displayed_objects_are_results_beside_the_value(session: AsyncCodeSession) -> None:
    code = """
class Picture:
    def _repr_png_(self): return b"png"
def show():
    display(Picture(), "text")
show()
20 + 1
"""
    async with session:
        done = await session.run(code)
        assert [(each.png, each.is_displayed) for each in done.results] == [
            (b"png", True),
            (None, True),
            (None, False),
        ]
        assert done.text == "21"
        assert (await session.run("display(1)")).text is None
        failed = await session.run("display(2)\n1 / 0")
        assert failed.error is not None and [each.text for each in failed.results] == ["2"]


async def test_displayed_objects_beyond_the_limit_are_dropped_and_told(session: AsyncCodeSession) -> None:
    async with session:
        done = await session.run("for _ in range(40): display('x' * (1 << 20))")
        assert (0 < len(done.results) < 20, done.truncated) == (True, True)
        assert len(done.results) + done.results_dropped == 40
        next_one = await session.run("display('y')")
        assert ([each.text for each in next_one.results], next_one.results_dropped) == (["'y'"], 0)


async def test_value_is_passed_as_json(session: AsyncCodeSession) -> None:
    async with session:
        done = await session.call("[each * 2 for each in given]", {"given": [1, 2]})
        assert done.value == [2, 4]
        refused = await session.call("object()", {})
        assert refused.error is not None
        assert "JSON" in refused.error.value
        for code in ("2**70", "[-2**70]", "'\\ud800'"):
            assert (await session.call(code, {})).error is not None
        assert (await session.call("[2**64 - 1, -2**63, 0.5]", {})).value == [2**64 - 1, -(2**63), 0.5]


async def test_what_cannot_be_passed_is_refused_and_leaves_the_session(session: AsyncCodeSession) -> None:
    async with session:
        await session.run("x = 1")
        for variables in ({"given": {1}}, {"given": 2**70}, {"given": "\ud800"}):
            with pytest.raises(Refused, match="JSON"):
                await session.call("given", variables)
        with pytest.raises(Refused, match="JSON"):
            await session.run("'\ud800'")
        assert (await session.run("x")).text == "1"


async def test_code_past_its_timeout_is_interrupted(session: AsyncCodeSession) -> None:
    async with session:
        await session.run("x = 1")
        done = await session.run("import time\nprint('begun')\ntime.sleep(600)", timeout=1.0)
        assert done.error is not None
        assert (done.error.name, done.stdout) == ("KeyboardInterrupt", "begun\n")
        assert (await session.run("x")).text == "1"


async def test_ended_process_is_told_and_replaced(session: AsyncCodeSession) -> None:
    async with session:
        with pytest.raises(CodeSessionEnded, match="exit code 7"):
            await session.run("import os; os._exit(7)")
        assert (await session.run("1 + 1")).text == "2"


async def test_cancelled_call_does_not_answer_the_next_one(session: AsyncCodeSession) -> None:
    async with session:
        await session.run("1")
        calling = asyncio.ensure_future(session.run("import time; time.sleep(600); 'late'"))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert (await session.run("'next'")).text == "'next'"


async def test_user_code_cannot_read_the_requests(session: AsyncCodeSession) -> None:
    async with session:
        assert (await session.run("import sys; sys.stdin.read()")).text == "''"


DONE = {"done": 1, "results": [], "error": None, "dropped": {"stdout": 0, "stderr": 0, "results": 0}}


def driver(*messages: Any) -> Callable[[PlayedSession], Awaitable[int]]:
    """A driver that the sandbox's user has replaced: it answers the first request with these messages."""

    async def play(session: PlayedSession) -> int:
        first, *rest = messages
        session.write(orjson.dumps(first) + b"\n")
        await session.input.get()
        for message in rest:
            session.write(orjson.dumps(message) + b"\n")
        await asyncio.Event().wait()  # until it is killed
        return 0

    return play


def printed(stream: str, data: bytes) -> dict[str, str]:
    return {"stream": stream, "data": base64.b64encode(data).decode()}


async def test_output_of_a_driver_without_limit_is_cut_off(pods: FakePodClient, session: AsyncCodeSession) -> None:
    pieces: list[Output] = []
    half = MAX_OUTPUT // 2 + 1
    much = [printed("stdout", b"x" * half) for _ in range(5)]
    pods.play = driver({"pid": 1}, *much, printed("stderr", b"y"), printed("stderr", b""), DONE)
    async with session:
        done = await session.run("1", stream=pieces.append)
    assert (len(done.stdout), done.stderr, done.truncated) == (MAX_OUTPUT, "y", True)
    assert (done.stdout_size, done.stderr_size) == (5 * half, 1)
    assert [len(piece.data) for piece in pieces] == [half, MAX_OUTPUT - half, 1]


@pytest.mark.parametrize(
    "messages",
    [
        [{"version": "3"}],
        [{"pid": "1; reboot"}],
        [{"pid": 1}, printed("stdin", b"x")],
        [{"pid": 1}, {"stream": ["stdout"], "data": ""}],
        [{"pid": 1}, {"stream": "stdout"}],
        [{"pid": 1}, {"stream": "stdout", "data": 5}],
        [{"pid": 1}, {"stream": "stdout", "data": "x"}],
        [{"pid": 1}, {}],
        [{"pid": 1}, DONE | {"done": 2}],
        [{"pid": 1}, {"done": 1}],
        [{"pid": 1}, DONE | {"dropped": 0}],
        [{"pid": 1}, DONE | {"dropped": {"stdout": "1", "stderr": 0, "results": 0}}],
        [{"pid": 1}, DONE | {"results": ["text"]}],
        [{"pid": 1}, DONE | {"results": [{"png": 5}]}],
        [{"pid": 1}, DONE | {"error": "text"}],
        [{"pid": 1}, DONE | {"error": {"name": "E", "value": 5, "traceback": ""}}],
    ],
    ids=repr,
)
async def test_malformed_message_ends_the_session(
    messages: list[Any], pods: FakePodClient, session: AsyncCodeSession
) -> None:
    honest, pods.play = pods.play, driver(*messages)
    async with session, asyncio.timeout(20):
        with pytest.raises(CodeSessionEnded, match="no message"):
            await session.run("1")
        assert pods.sessions[-1].closed
        pods.play = honest
        assert (await session.run("1 + 1")).text == "2"


async def test_session_that_does_not_start_ends_in_time(pods: FakePodClient, session: AsyncCodeSession) -> None:
    async def silent(_: PlayedSession) -> int:
        await asyncio.Event().wait()
        return 0

    honest, pods.play = pods.play, silent
    async with session, asyncio.timeout(20):
        with pytest.raises(CodeSessionEnded, match=r"did not start within 0.01 s"):
            await session.run("1", timeout=0.01)
        assert pods.sessions[-1].closed
        pods.play = honest
        assert (await session.run("1 + 1")).text == "2"


async def test_session_waits_for_the_receiver_of_output(pods: FakePodClient, session: AsyncCodeSession) -> None:
    received: list[str] = []

    async def receive(piece: Output) -> None:
        received.append(f"begin {piece.text}")
        await asyncio.sleep(0)
        received.append(f"end {piece.text}")

    pods.play = driver({"pid": 1}, printed("stdout", b"1"), printed("stdout", b"2"), DONE)
    async with session, asyncio.timeout(20):
        assert (await session.run("1", stream=receive)).stdout == "12"
    assert received == ["begin 1", "end 1", "begin 2", "end 2"]
