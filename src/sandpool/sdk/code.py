"""Python sessions in sandboxes: state stays between calls, and results are text, values and pictures.

A session is a Python process in the sandbox that a program sent there controls (``code_driver.py``). It talks through
one exec session, so that a call costs one round trip, works for every image with Python, and ends with its client.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeVar, get_args

import orjson

from sandpool.kube.pod_client import STDERR
from sandpool.sdk import drivers
from sandpool.sdk.code_driver import MAX_OUTPUT
from sandpool.sdk.errors import Diagnosis, Refused, SandboxLost, SandpoolError, TaskError
from sandpool.sdk.results import Output
from sandpool.service.commands import Command, Commands, KeptOutput, RunningCommand
from sandpool.service.sandboxes import Sandbox

T = TypeVar("T")

#: Bytes of one answer of a session. The sandbox is not trusted to stop.
_MAX_ANSWER: Final = 64 << 20
#: Seconds that interrupted code has to stop before its session is ended.
_INTERRUPT_GRACE: Final = 2.0
_PYTHON: Final = ("python3", "-u", "-c")

#: A format of pictures of figures of matplotlib.
FigureFormat = Literal["png", "svg"]
FIGURE_FORMATS: Final = get_args(FigureFormat)
#: Receives output as it arrives. The session reads no further before an awaitable that it returns is done.
Receiver = Callable[[Output], Awaitable[None] | None]


class CodeSessionEnded(SandpoolError):
    """The session ended while it was used: the code ended its process, or did not stop when interrupted."""


@dataclass(frozen=True, slots=True)
class Rich:
    """One result in the representations that the object offers. ``text`` is its ``repr``."""

    text: str
    png: bytes | None = None
    jpeg: bytes | None = None
    svg: str | None = None
    html: str | None = None
    markdown: str | None = None
    latex: str | None = None
    json: Any = None
    is_figure: bool = False  # of matplotlib, and not the value of the last expression
    is_displayed: bool = False  # by ``display``, and not the value of the last expression

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Self:
        """Parse what the code session sent. Formats that it did not offer stay None."""
        offered: dict[str, Any] = {
            **{name: str(shown[name]) for name in ("svg", "html", "markdown", "latex") if name in shown},
            **{name: base64.b64decode(shown[name]) for name in ("png", "jpeg") if name in shown},
        }
        return cls(
            text=str(shown.get("text", "")),
            json=shown.get("json"),
            is_figure=shown.get("figure") is True,
            is_displayed=shown.get("displayed") is True,
            **offered,
        )


@dataclass(frozen=True, slots=True)
class CodeError:
    """The exception that the code raised."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Execution:
    """The outcome of a piece of code. ``results`` has what it passed to ``display``, the value of the last expression,
    if that is not None, and the figures of matplotlib. ``value`` is set by ``call`` only. The sizes are the bytes that
    the code wrote, also those beyond the limit, and ``results_dropped`` counts the objects that were displayed when 16
    MiB had been; ``truncated`` tells of both."""

    stdout: str
    stderr: str
    results: tuple[Rich, ...]
    error: CodeError | None
    truncated: bool
    value: Any = None
    stdout_size: int = 0
    stderr_size: int = 0
    results_dropped: int = 0

    @property
    def text(self) -> str | None:
        """The value of the last expression, as text."""
        return next((each.text for each in self.results if not each.is_displayed), None)

    def check(self) -> Self:
        """Return the outcome, or raise ``TaskError`` with the traceback if the code raised an exception."""
        if self.error is not None:
            raise TaskError(f"the code failed:\n{self.error.traceback.rstrip()}", self)
        return self


class AsyncCodeSession:
    """A Python session. Calls run one after the other; use several sessions for several at once."""

    def __init__(self, commands: Commands, sandbox: Sandbox, diagnosed: Diagnosis = nullcontext) -> None:
        self._diagnosed = diagnosed
        self._commands = commands
        self._sandbox = sandbox
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._running: RunningCommand | None = None
        self._messages: AsyncIterator[dict[str, Any]] | None = None
        self._pid = 0
        self._number = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        stream: Receiver | None = None,
        figures: Sequence[FigureFormat] = ("png",),
        max_output: int = MAX_OUTPUT,
    ) -> Execution:
        """Run code, with the names that earlier code of this session defined. ``stream`` receives output as it arrives.
        Output beyond ``max_output`` bytes on stdout or stderr is dropped, and the outcome says that it is truncated.
        ``figures`` are the formats of the pictures of matplotlib. The code may use ``await`` outside of functions.

        Code that takes longer than ``timeout`` is interrupted, as by Ctrl-C: the outcome has a KeyboardInterrupt and
        the session keeps its state. Raises ``CodeSessionEnded`` if it does not stop, or if the session does not start
        in that time."""
        if unknown := set(figures) - set(FIGURE_FORMATS):
            raise Refused(f"figures cannot be in the formats {sorted(unknown)}", "Use png and svg.")
        request = {"code": code, "figures": list(figures), "max_output": max_output}
        return await self._execute(request, timeout, stream, max_output)

    async def call(self, code: str, variables: Mapping[str, Any], *, timeout: float | None = None) -> Execution:
        """Run code with variables set before; ``value`` of the outcome is the last expression, passed as JSON."""
        return await self._execute({"code": code, "variables": variables, "returns": True}, timeout, None)

    async def interrupt(self) -> None:
        """Interrupt the code that runs now, as by Ctrl-C. The session keeps its state."""
        if self._running is not None and self._pid:
            command = Command(("sh", "-c", 'kill -INT "$0"', str(self._pid)))
            await self._commands.run(self._sandbox, command, timeout=_INTERRUPT_GRACE)

    async def close(self) -> None:
        """End the session and its process."""
        running, self._running, self._messages = self._running, None, None
        if running is not None:
            await self._stack.aclose()

    async def _execute(
        self, request: dict[str, Any], timeout: float | None, stream: Receiver | None, max_output: int = MAX_OUTPUT
    ) -> Execution:
        async with self._lock, self._diagnosed():
            data = _encoded({**request, "id": self._number + 1})
            finished = False
            try:
                running = await self._start(timeout)
                self._number += 1
                await running.send(data)
                answering = asyncio.create_task(self._answer(stream, max_output))
                try:
                    done, _ = await asyncio.wait((answering,), timeout=timeout)
                    if not done:
                        await self._interrupt(answering)
                    outcome = await answering
                finally:
                    answering.cancel()
                    await asyncio.gather(answering, return_exceptions=True)
                finished = True
                return outcome
            finally:
                if not finished:
                    await self.close()  # its next answer would belong to this request

    async def _start(self, timeout: float | None) -> RunningCommand:
        if self._running is not None:
            return self._running
        command = Command((*_PYTHON, drivers.source(drivers.CODE)), stdin=True)
        self._stack = AsyncExitStack()
        running = await self._stack.enter_async_context(self._commands.start(self._sandbox, command))
        self._running = running
        self._messages = _messages(running)
        try:
            async with asyncio.timeout(timeout):
                message = await anext(self._messages)
        except TimeoutError:
            raise CodeSessionEnded(f"python3 did not start within {timeout:g} s") from None
        with _well_formed():
            self._pid = _typed(message["pid"], int)
        return running

    async def _answer(self, stream: Receiver | None, max_output: int) -> Execution:
        assert self._messages is not None
        printed = _Printed(max_output)
        async for message in self._messages:
            with _well_formed():
                if "stream" not in message:
                    return printed.outcome(message, self._number)
                output = printed.keep(message)
            if output.data and stream is not None and (receiving := stream(output)) is not None:
                await receiving
        raise CodeSessionEnded("the Python session ended")

    async def _interrupt(self, answering: asyncio.Task[Execution]) -> None:
        await self.interrupt()
        done, _ = await asyncio.wait((answering,), timeout=_INTERRUPT_GRACE)
        if not done:
            raise CodeSessionEnded("the code did not stop when it was interrupted; its session and its state are gone")


def _encoded(request: dict[str, Any]) -> bytes:
    """A line of JSON. Raises ``Refused`` if something in the request cannot be passed."""
    try:
        return orjson.dumps(request) + b"\n"
    except TypeError as error:
        raise Refused(f"code and variables are passed as JSON: {error}") from None


class _Printed:
    """The output of one execution. The driver keeps the limit too, but it may be another program by now: it belongs to
    the user of the sandbox."""

    def __init__(self, limit: int) -> None:
        self._streams = {"stdout": KeptOutput(limit), "stderr": KeptOutput(limit)}

    def keep(self, message: Mapping[str, Any]) -> Output:
        """Keep the output in a message; returns the part of it that is within the limit."""
        stream = message["stream"]
        return Output(stream, self._streams[stream].add(base64.b64decode(message["data"])))

    def outcome(self, message: Mapping[str, Any], number: int) -> Execution:
        """The outcome in the last message of an execution."""
        if message["done"] != number:
            raise ValueError
        error, dropped = message["error"], message["dropped"]
        out, err = self._streams["stdout"], self._streams["stderr"]
        unsent_out, unsent_err, not_shown = (
            max(_typed(dropped[name], int), 0) for name in ("stdout", "stderr", "results")
        )
        return Execution(
            stdout=out.content.decode(errors="replace"),
            stderr=err.content.decode(errors="replace"),
            results=tuple(Rich.of(shown) for shown in message["results"]),
            error=None
            if error is None
            else CodeError(*(_typed(error[name], str) for name in ("name", "value", "traceback"))),
            truncated=bool(out.dropped or err.dropped or unsent_out or unsent_err or not_shown),
            value=message.get("value"),
            stdout_size=out.size + unsent_out,
            stderr_size=err.size + unsent_err,
            results_dropped=not_shown,
        )


def _typed(value: Any, wanted: type[T]) -> T:
    if not isinstance(value, wanted):
        raise TypeError
    return value


@contextmanager
def _well_formed() -> Iterator[None]:
    """Raises ``CodeSessionEnded`` if the block finds a message malformed."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CodeSessionEnded("the session sent something that is no message") from None


async def _messages(running: RunningCommand) -> AsyncIterator[dict[str, Any]]:
    """Yield what the driver sends. Raises ``CodeSessionEnded`` at the end of its process."""
    buffer, errors = bytearray(), bytearray()
    async for piece in running.output():
        if piece.stream == STDERR:
            errors += piece.data[: 2000 - len(errors)]
            continue
        buffer += piece.data
        if len(buffer) > _MAX_ANSWER:
            raise CodeSessionEnded(f"an answer of the session is larger than {_MAX_ANSWER >> 20} MiB")
        if b"\n" not in piece.data:
            continue
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            with _well_formed():
                message = _typed(orjson.loads(line), dict)
            yield message
    code = await running.wait()
    reason = errors.decode(errors="replace").strip()
    if code in (126, 127):
        raise CodeSessionEnded("the sandbox has no python3", "Use a template whose image has Python.")
    raise CodeSessionEnded(f"the Python session ended with exit code {code}" + (f":\n{reason}" if reason else ""))


class AsyncCode:
    """Code in one sandbox: a default session, and more with ``session``."""

    def __init__(self, commands: Commands, sandbox: Sandbox, diagnosed: Diagnosis = nullcontext) -> None:
        self._commands = commands
        self._sandbox = sandbox
        self._diagnosed = diagnosed
        self._default: AsyncCodeSession | None = None

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        stream: Receiver | None = None,
        figures: Sequence[FigureFormat] = ("png",),
        max_output: int = MAX_OUTPUT,
    ) -> Execution:
        """Run code in the default session; see ``AsyncCodeSession.run``."""
        if self._default is None:
            self._default = self.session()
        return await self._default.run(code, timeout=timeout, stream=stream, figures=figures, max_output=max_output)

    def session(self) -> AsyncCodeSession:
        """A session of its own. It starts with its first call; close it, or use it as a context manager."""
        return AsyncCodeSession(self._commands, self._sandbox, self._diagnosed)

    async def close(self) -> None:
        """End the default session, if it has started."""
        if self._default is not None:
            with suppress(OSError, SandboxLost):
                await self._default.close()
