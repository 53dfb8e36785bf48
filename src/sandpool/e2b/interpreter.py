"""The code interpreter: contexts that keep the state of Python between executions.

A context is a session of the SDK (``sdk.code``) in the sandbox. It begins with its first execution and ends with its
sandbox or the endpoint. Other languages than Python are refused.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sandpool.e2b.errors import Refusal
from sandpool.kube.errors import ApiError
from sandpool.sdk.code import AsyncCodeSession, CodeSessionEnded, Execution, Rich
from sandpool.sdk.errors import SandpoolError
from sandpool.sdk.results import Output

if TYPE_CHECKING:
    from sandpool.e2b.running import RunningSandbox

#: The only language.
PYTHON: Final = "python"
_NAMES: Final = frozenset({"", PYTHON, "python3"})
#: The context of executions that name none.
DEFAULT: Final = "default"
#: Seconds that interrupted code has to stop, before its state is given up.
_INTERRUPT_GRACE: Final = 5.0
#: Pieces of output that wait for a client.
_WAITING_PIECES: Final = 32
_OS: Final = "__import__('os')"
_TEXTS: Final = ("html", "markdown", "svg", "latex", "json")
_PICTURES: Final = ("png", "jpeg")


class Context:
    """One context. Executions run one after the other."""

    def __init__(self, running: RunningSandbox, context_id: str, directory: str) -> None:
        self.id = context_id
        self.directory = directory
        self.executions = 0
        self._sandbox = running
        self._session: AsyncCodeSession | None = None
        self._turn = asyncio.Lock()
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def document(self) -> dict[str, str]:
        return {"id": self.id, "language": PYTHON, "cwd": self.directory}

    async def prepare(self) -> None:
        """Start the session, in the directory of the context. Raises ``Refusal``."""
        async with self._turn:
            await self._prepared()

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Run code; yields what it prints as it comes, and then its results. If the caller goes away, the code is
        interrupted, as by Ctrl-C, and the context keeps its state."""
        async with self._turn:
            session = await self._prepared()
            before = await self._set_variables(session, variables) if variables else {}
            self.executions += 1
            printed = _Printed()
            execution = asyncio.create_task(printed.run(session, code))
            finished = False
            try:
                while (piece := await printed.get()) is not None:
                    yield {"type": piece.stream, "text": piece.text, "timestamp": time.time_ns()}
                await asyncio.wait((execution,))
                finished = True
            finally:
                if not finished:
                    printed.discard()
                    await self._interrupt(session, execution, before)
            for event in self._outcome(execution):
                yield event
            if before and self._session is not None:
                await self._restore_variables(session, before)
        yield {"type": "number_of_executions", "execution_count": self.executions}
        yield {"type": "end_of_execution"}

    async def restart(self) -> None:
        """End the session; the next execution begins without state."""
        await self.close()
        await self.prepare()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(OSError, SandpoolError, ApiError):
                await session.close()
        self.executions = 0

    def _outcome(self, execution: asyncio.Task[Execution]) -> list[dict[str, Any]]:
        try:
            done = execution.result()
        except CodeSessionEnded as error:
            self._session = None  # what it held is gone
            return [{"type": "error", "name": "SessionEnded", "value": error.message, "traceback": str(error)}]
        events: list[dict[str, Any]] = [_result(shown) for shown in done.results]
        if done.truncated:
            events.append({"type": "stderr", "text": "[output was cut off]\n", "timestamp": time.time_ns()})
        if done.error is not None:
            error_of = done.error
            events.append(
                {"type": "error", "name": error_of.name, "value": error_of.value, "traceback": error_of.traceback}
            )
        return events

    async def _prepared(self) -> AsyncCodeSession:
        if self._session is not None:
            return self._session
        sandbox, commands = await self._sandbox.sandbox(), self._sandbox.service.commands
        session = AsyncCodeSession(commands, sandbox)
        try:
            if variables := await self._sandbox.variables():
                await session.run(f"{_OS}.environ.update({variables!r})")
            if self.directory:
                moved = await session.run(f"{_OS}.chdir({self.directory!r})")
                if moved.error is not None:
                    raise Refusal(400, f"cannot change to the directory {self.directory}: {moved.error.value}")
            self.directory = str((await session.call(f"{_OS}.getcwd()", {})).value)
        except BaseException:
            await session.close()
            raise
        self._session = session
        return session

    async def _set_variables(self, session: AsyncCodeSession, variables: Mapping[str, str]) -> dict[str, Any]:
        """Set environment variables; returns what they were before."""
        names = list(variables)
        before = await session.call(f"{{each: {_OS}.environ.get(each) for each in {names!r}}}", {})
        await session.run(f"{_OS}.environ.update({dict(variables)!r})")
        return dict(before.value or {})

    async def _restore_variables(self, session: AsyncCodeSession, before: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in before.items() if value is not None}
        lost = [name for name, value in before.items() if value is None]
        await session.run(
            f"{_OS}.environ.update({kept!r}); [{_OS}.environ.pop(each, None) for each in {lost!r}] and None"
        )

    async def _interrupt(
        self, session: AsyncCodeSession, execution: asyncio.Task[Execution], before: Mapping[str, Any]
    ) -> None:
        """Stop an execution whose caller has gone, without being cancelled with it."""

        async def stop() -> None:
            with suppress(SandpoolError, ApiError, OSError):
                await session.interrupt()
            await asyncio.wait((execution,), timeout=_INTERRUPT_GRACE)
            if not execution.done():
                self._session = None
                execution.cancel()
            await asyncio.gather(execution, return_exceptions=True)
            if before and self._session is session:
                with suppress(SandpoolError, ApiError, OSError):
                    await self._restore_variables(session, before)

        stopping = asyncio.create_task(stop(), name=f"interrupt in {self._sandbox.id}")
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
        await asyncio.shield(stopping)


class _Printed:
    """Output on its way to a client. As with a pipe, code waits for a client that reads slowly."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[Output | None] = asyncio.Queue(_WAITING_PIECES)
        self._is_read = True

    async def run(self, session: AsyncCodeSession, code: str) -> Execution:
        try:
            return await session.run(code, stream=self._put)
        finally:
            await self._put(None)

    async def get(self) -> Output | None:
        """The next piece; None at the end of the execution."""
        return await self._pieces.get()

    def discard(self) -> None:
        """Drop the output from now on, so that code does not wait for a client that has gone."""
        self._is_read = False
        while not self._pieces.empty():
            self._pieces.get_nowait()

    async def _put(self, piece: Output | None) -> None:
        if self._is_read:
            await self._pieces.put(piece)


class Contexts:
    """The contexts of one sandbox."""

    def __init__(self, running: RunningSandbox, most: int) -> None:
        self._sandbox = running
        self._most = most
        self._contexts: dict[str, Context] = {}

    def list(self) -> list[dict[str, str]]:
        return [each.document for each in self._contexts.values()]

    async def create(self, language: str, directory: str) -> Context:
        """Make a context. Raises ``Refusal``."""
        _check_language(language)
        self._check_room()
        context = Context(self._sandbox, secrets.token_hex(8), directory)
        await context.prepare()
        self._contexts[context.id] = context
        return context

    def get(self, context_id: str) -> Context:
        """Raises ``Refusal``."""
        found = self._contexts.get(context_id)
        if found is None:
            raise Refusal(404, f"there is no context {context_id[:64]}")
        return found

    def for_language(self, language: str) -> Context:
        """The context of executions that name none."""
        _check_language(language)
        if DEFAULT not in self._contexts:
            self._check_room()
            self._contexts[DEFAULT] = Context(self._sandbox, DEFAULT, "")
        return self._contexts[DEFAULT]

    async def remove(self, context_id: str) -> None:
        context = self.get(context_id)
        del self._contexts[context_id]
        await context.close()

    async def close(self) -> None:
        contexts, self._contexts = self._contexts, {}
        await asyncio.gather(*(each.close() for each in contexts.values()), return_exceptions=True)

    def _check_room(self) -> None:
        if len(self._contexts) >= self._most:
            raise Refusal(429, f"the sandbox has {self._most} contexts, which is the limit: remove one first")


def _check_language(language: str) -> None:
    if language.lower() not in _NAMES:
        raise Refusal(400, f"the language {language[:40]!r} is not supported: contexts run Python")


def _result(shown: Rich) -> dict[str, Any]:
    """A result as E2B describes it. The value of the last expression is the main one; figures and displayed objects
    are not."""
    is_main = not (shown.is_figure or shown.is_displayed)
    result: dict[str, Any] = {"type": "result", "text": shown.text, "is_main_result": is_main}
    result |= {name: value for name in _TEXTS if (value := getattr(shown, name)) is not None}
    for name in _PICTURES:
        if (data := getattr(shown, name)) is not None:
            result[name] = base64.b64encode(data).decode()
    return result
