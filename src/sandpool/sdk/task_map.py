"""A map over many sandboxes: one task per input, results in order, retries of failures of the infrastructure."""

from __future__ import annotations

import asyncio
import inspect
import sys
import textwrap
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sandpool.sdk.code import AsyncCodeSession, CodeSessionEnded
from sandpool.sdk.errors import Refused, SandpoolError, TaskError

if TYPE_CHECKING:
    from sandpool.sdk.client import AsyncClient

#: Receives the number of finished tasks and of all tasks.
Progress = Callable[[int, int], None]
_WIDTH: Final = 30


class TaskMap:
    """One call of ``AsyncClient.map``, which describes the parameters."""

    def __init__(
        self,
        client: AsyncClient,
        code: str,
        pool: str,
        sessions: bool,
        fresh: bool,
        retries: int,
        timeout: float | None,
        return_exceptions: bool,
    ) -> None:
        self.client = client
        self.code = code
        self.pool = pool
        self.sessions = sessions
        self.fresh = fresh
        self.retries = retries
        self.timeout = timeout
        self.return_exceptions = return_exceptions
        self._waiting: deque[tuple[int, int]] = deque()  # index of the input, attempts so far
        self._inputs: list[Any] = []
        self._results: list[Any] = []
        self._finished = 0

    async def run(self, inputs: list[Any], parallelism: int, progress: Progress | bool) -> list[Any]:
        if parallelism < 1:
            raise Refused("parallelism must be at least 1")
        show = (show_bar if progress else _ignore) if isinstance(progress, bool) else progress
        self._inputs, self._results = inputs, [None] * len(inputs)
        self._waiting.extend((index, 0) for index in range(len(inputs)))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(parallelism, len(inputs))):
                    group.create_task(self._work(show))
        except* SandpoolError as errors:
            raise _first(errors) from None
        return self._results

    async def _work(self, show: Progress) -> None:
        """Run tasks in one sandbox after the other, until none is left."""
        while self._waiting:
            index, attempts = self._waiting.popleft()
            try:
                async with self.client.sandbox(self.pool) as sandbox:
                    session = sandbox.code.session()
                    while True:
                        await self._perform(session, index)
                        self._finished += 1
                        show(self._finished, len(self._inputs))
                        if self.fresh or not self._waiting:
                            break
                        if not self.sessions:
                            await session.close()
                        index, attempts = self._waiting.popleft()
            except SandpoolError as error:
                if error.retryable and attempts < self.retries:
                    self._waiting.append((index, attempts + 1))
                elif self.return_exceptions:
                    self._results[index] = error
                    self._finished += 1
                    show(self._finished, len(self._inputs))
                else:
                    raise

    async def _perform(self, session: AsyncCodeSession, index: int) -> None:
        try:
            done = await session.call(self.code, {"input": self._inputs[index]}, timeout=self.timeout)
            self._results[index] = done.check().value
        except (TaskError, CodeSessionEnded) as error:
            failed = error if isinstance(error, TaskError) else TaskError(str(error))
            if not self.return_exceptions:
                raise failed from error
            self._results[index] = failed


def source_of(task: str | Callable[[Any], Any]) -> str:
    """The code of a task: itself, or the source of a function and a call of it."""
    if isinstance(task, str):
        return textwrap.dedent(task)
    name = getattr(task, "__name__", "")
    try:
        source = textwrap.dedent(inspect.getsource(task))
    except (OSError, TypeError):
        raise Refused("the source of the function cannot be read", "Pass its code as text.") from None
    if not name.isidentifier() or not source.lstrip().startswith(("def ", "@")):
        raise Refused("only functions made with def can be sent", "Pass the code as text.")
    return f"{source}\n{name}(input)"


def _first(errors: BaseExceptionGroup[SandpoolError]) -> SandpoolError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def show_bar(finished: int, total: int) -> None:
    """Show a progress bar on standard error."""
    filled = _WIDTH * finished // total
    end = "\n" if finished == total else ""
    sys.stderr.write(f"\r[{'#' * filled}{'.' * (_WIDTH - filled)}] {finished}/{total}{end}")
    sys.stderr.flush()


def _ignore(finished: int, total: int) -> None: ...
