"""A map over many sandboxes: one task per input, results in order, retries of failures of the infrastructure."""

from __future__ import annotations

import asyncio
import inspect
import sys
import textwrap
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from sandpool.sdk.code import AsyncCodeSession, CodeSessionEnded
from sandpool.sdk.errors import Refused, SandpoolError, TaskError

if TYPE_CHECKING:
    from sandpool.sdk.client import AsyncClient
    from sandpool.sdk.sandbox import AsyncSandbox

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
        self._all_finished = asyncio.Event()
        self._claiming: set[asyncio.Task[None]] = set()  # workers without a sandbox
        self._holding = 0  # workers with one
        self._show: Progress = _ignore

    async def run(self, inputs: list[Any], parallelism: int, progress: Progress | bool) -> list[Any]:
        """Run the task for every input and return the results in their order; see ``AsyncClient.map``."""
        if parallelism < 1:
            raise Refused("parallelism must be at least 1")
        if not inputs:
            return []
        self._show = (show_bar if progress else _ignore) if isinstance(progress, bool) else progress
        self._inputs, self._results = inputs, [None] * len(inputs)
        self._waiting.extend((index, 0) for index in range(len(inputs)))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(parallelism, len(inputs))):
                    group.create_task(self._work())
                await self._all_finished.wait()
                for worker in self._claiming:
                    worker.cancel()
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        return self._results

    async def _work(self) -> None:
        """Claim a sandbox and run tasks in it, until none is left.

        A worker takes a task only when it has a sandbox: a pool that cannot serve all workers delays no task. As long
        as one worker has a sandbox, another that gets none leaves the tasks to it."""
        failures = 0
        while self._waiting:
            async with AsyncExitStack() as stack:
                try:
                    sandbox = await self._claim(stack)
                except SandpoolError as error:
                    if error.retryable and self._holding:
                        return
                    failures += 1
                    if not error.retryable or failures > self.retries:
                        self._give_up(error)
                    continue
                failures = 0
                self._holding += 1
                stack.callback(self._released)
                await self._run_tasks(sandbox)

    async def _claim(self, stack: AsyncExitStack) -> AsyncSandbox:
        worker = asyncio.current_task()
        assert worker is not None
        self._claiming.add(worker)
        try:
            return await stack.enter_async_context(self.client.sandbox(self.pool))
        finally:
            self._claiming.discard(worker)

    def _released(self) -> None:
        self._holding -= 1

    async def _run_tasks(self, sandbox: AsyncSandbox) -> None:
        """Run tasks in a sandbox, until none is left or the sandbox fails."""
        session = sandbox.code.session()
        while self._waiting:
            index, attempts = self._waiting.popleft()
            try:
                await self._perform(session, index)
            except SandpoolError as error:
                if error.retryable and attempts < self.retries:
                    self._waiting.append((index, attempts + 1))
                elif self.return_exceptions:
                    self._finish(index, error)
                else:
                    raise
                return
            if self.fresh:
                return
            if not self.sessions:
                with suppress(SandpoolError):
                    await session.close()

    def _give_up(self, error: SandpoolError) -> None:
        """There is no sandbox for the tasks that are left."""
        if not self.return_exceptions:
            raise error
        while self._waiting:
            self._finish(self._waiting.popleft()[0], error)

    def _finish(self, index: int, result: Any) -> None:
        self._results[index] = result
        self._finished += 1
        self._show(self._finished, len(self._inputs))
        if self._finished == len(self._inputs):
            self._all_finished.set()

    async def _perform(self, session: AsyncCodeSession, index: int) -> None:
        try:
            done = await session.call(self.code, {"input": self._inputs[index]}, timeout=self.timeout)
            self._finish(index, done.check().value)
        except (TaskError, CodeSessionEnded, Refused) as error:
            failed: SandpoolError = TaskError(str(error)) if isinstance(error, CodeSessionEnded) else error
            if isinstance(error, Refused):
                failed = Refused(f"input {index} was refused: {error.message}")
            if not self.return_exceptions:
                raise failed from error
            self._finish(index, failed)


def source_of(task: str | Callable[[Any], Any]) -> str:
    """The code of a task: itself, or the source of a function and a call of it."""
    if isinstance(task, str):
        return textwrap.dedent(task)
    if inspect.ismethod(task):
        raise Refused("a method of an object cannot be sent", "Pass a function that needs nothing outside of itself.")
    name = getattr(task, "__name__", "")
    try:
        source = textwrap.dedent(inspect.getsource(task))
    except (OSError, TypeError):
        raise Refused("the source of the function cannot be read", "Pass its code as text.") from None
    if not name.isidentifier() or not source.lstrip().startswith(("def ", "@")):
        raise Refused("only functions made with def can be sent", "Pass the code as text.")
    return f"{source}\n{name}(input)"


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def show_bar(finished: int, total: int) -> None:
    """Show a progress bar on standard error."""
    filled = _WIDTH * finished // total
    end = "\n" if finished == total else ""
    sys.stderr.write(f"\r[{'#' * filled}{'.' * (_WIDTH - filled)}] {finished}/{total}{end}")
    sys.stderr.flush()


def _ignore(finished: int, total: int) -> None: ...
