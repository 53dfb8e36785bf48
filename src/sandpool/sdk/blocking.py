"""The Python client for programs without asyncio: the same calls, which block.

All connections live in an event loop in a thread of its own, so that leases are renewed while the program works.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cached_property, partial, update_wrapper
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, overload
from weakref import finalize

from sandpool.sdk.attached import AsyncCommand, AsyncShell
from sandpool.sdk.client import DEFAULT_POOL, LEASE, AsyncClient, EnvPolicy
from sandpool.sdk.code import AsyncCode, AsyncCodeSession
from sandpool.sdk.file_watch import AsyncFileWatch, FileEvent
from sandpool.sdk.files import AsyncFiles
from sandpool.sdk.pool import AsyncPool, AsyncTemplate
from sandpool.sdk.process import AsyncProcess
from sandpool.sdk.results import MAX_OUTPUT, Output, Result
from sandpool.sdk.sandbox import AsyncSandbox
from sandpool.service.claims import READY_TIMEOUT
from sandpool.service.commands import SHELL

A = TypeVar("A")
W = TypeVar("W", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class _Worker:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandpool client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop and return its result. Ctrl-C cancels it and waits for its end; a second one
        does not wait."""
        ended: Future[R] = Future()
        tasks: list[asyncio.Task[R]] = []

        def start() -> None:
            task = self._loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(partial(_copy, ended))

        self._loop.call_soon_threadsafe(start)
        try:
            return ended.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            wait((ended,))
            raise

    def stop(self) -> None:
        """End the loop and its thread."""
        if self._thread.is_alive():
            self.run(self._end_connections())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end_connections(self) -> None:
        """End connections that are closing: TLS waits for the other side, and the loop ends now."""
        await asyncio.sleep(0)
        for transport in list(getattr(self._loop, "_transports", {}).values()):
            transport.abort()
        await asyncio.sleep(0)  # to close their sockets


def _copy(ended: Future[R], task: asyncio.Task[R]) -> None:
    """Pass on how a task has ended."""
    if task.cancelled():
        ended.cancel()
        ended.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


class LoopThread:
    """The loop of a client, for the client and everything that comes from it. When the last of them is given up, the
    client is closed and the thread ends: ``with Client().sandbox()`` leaves nothing behind."""

    def __init__(self) -> None:
        self._worker = _Worker()
        self._end: finalize[..., LoopThread] = finalize(self, self._worker.stop)

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop and return its result. Ctrl-C cancels it and waits for its end; a second one
        does not wait."""
        return self._worker.run(work)

    def serve(self, client: AsyncClient) -> None:
        """Close this client with the loop."""
        self._end.detach()
        self._end = finalize(self, _close_unused, self._worker, client)

    def close(self, client: AsyncClient) -> None:
        """Close the client and end the thread now. A second call has no effect."""
        if self._end.detach() is not None:
            _close(self._worker, client)

    def stop(self) -> None:
        """End the thread of a client that could not be made."""
        self._end()


def _close(worker: _Worker, client: AsyncClient) -> None:
    worker.run(client.close())
    worker.stop()


def _close_unused(worker: _Worker, client: AsyncClient) -> None:
    """Close a client that nothing uses any more. The garbage collector may run anywhere, also in the thread of the loop
    and where locks are held, so another thread waits for the end. When the program ends, no thread can be started."""
    if threading.main_thread().is_alive():
        threading.Thread(target=_close, args=(worker, client), name="close sandpool client").start()
    else:
        _close(worker, client)


class _Blocking(Generic[W]):
    """Wraps an object whose methods are coroutines."""

    def __init__(self, wrapped: W, loop: LoopThread) -> None:
        self._async = wrapped
        self._loop = loop


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[_Blocking[A], P], R]:
    """The blocking form of a method, with its signature and docstring."""

    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._async, *args, **kwargs))

    return update_wrapper(call, method)


class FileWatch(_Blocking[AsyncFileWatch]):
    """See ``AsyncFileWatch``."""

    read = blocking(AsyncFileWatch.read)
    close = blocking(AsyncFileWatch.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[FileEvent]:
        while (event := self.read()) is not None:
            yield event


class Files(_Blocking[AsyncFiles]):
    """See ``AsyncFiles``."""

    read = blocking(AsyncFiles.read)
    read_text = blocking(AsyncFiles.read_text)
    write = blocking(AsyncFiles.write)
    list = blocking(AsyncFiles.list)
    entries = blocking(AsyncFiles.entries)
    stat = blocking(AsyncFiles.stat)
    exists = blocking(AsyncFiles.exists)
    move = blocking(AsyncFiles.move)
    remove = blocking(AsyncFiles.remove)
    upload = blocking(AsyncFiles.upload)
    download = blocking(AsyncFiles.download)

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces. See ``AsyncFiles.stream``."""
        pieces = aiter(self._async.stream(path))

        async def following() -> bytes:
            return await anext(pieces, b"")

        while piece := self._loop.run(following()):
            yield piece

    def watch(self, path: str = ".") -> FileWatch:
        """Watch a directory and all below. See ``AsyncFiles.watch``."""
        return FileWatch(self._loop.run(self._async.watch(path).start()), self._loop)


class CodeSession(_Blocking[AsyncCodeSession]):
    """See ``AsyncCodeSession``."""

    run = blocking(AsyncCodeSession.run)
    call = blocking(AsyncCodeSession.call)
    close = blocking(AsyncCodeSession.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Code(_Blocking[AsyncCode]):
    """See ``AsyncCode``."""

    run = blocking(AsyncCode.run)

    def session(self) -> CodeSession:
        """A session of its own, as a context manager."""
        return CodeSession(self._async.session(), self._loop)


class Process(_Blocking[AsyncProcess]):
    """See ``AsyncProcess``."""

    wait = blocking(AsyncProcess.wait)
    logs = blocking(AsyncProcess.logs)
    running = blocking(AsyncProcess.running)
    send = blocking(AsyncProcess.send)
    end_input = blocking(AsyncProcess.end_input)
    kill = blocking(AsyncProcess.kill)

    @property
    def id(self) -> str:
        """Finds the process again, with ``Sandbox.process``."""
        return self._async.id


class Command(_Blocking[AsyncCommand]):
    """See ``AsyncCommand``."""

    read = blocking(AsyncCommand.read)
    send = blocking(AsyncCommand.send)
    end_input = blocking(AsyncCommand.end_input)
    kill = blocking(AsyncCommand.kill)
    wait = blocking(AsyncCommand.wait)
    close = blocking(AsyncCommand.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Output]:
        while (piece := self.read()) is not None:
            yield piece


class Shell(_Blocking[AsyncShell]):
    """See ``AsyncShell``."""

    read = blocking(AsyncShell.read)
    send = blocking(AsyncShell.send)
    resize = blocking(AsyncShell.resize)
    wait = blocking(AsyncShell.wait)
    close = blocking(AsyncShell.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read():
            yield data


class Sandbox(_Blocking[AsyncSandbox]):
    """A sandbox of this program: a context manager that releases it. See ``AsyncSandbox``."""

    def __init__(self, wrapped: AsyncSandbox, loop: LoopThread, keep: bool = False) -> None:
        super().__init__(wrapped, loop)
        self._keep = keep

    url = blocking(AsyncSandbox.url)
    suspend = blocking(AsyncSandbox.suspend)
    resume = blocking(AsyncSandbox.resume)
    extend = blocking(AsyncSandbox.extend)
    release = blocking(AsyncSandbox.release)
    detach = blocking(AsyncSandbox.detach)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._keep:
            self.detach()
        else:
            self.release()

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: str | bytes | Iterable[bytes] | None = None,
        stream: Callable[[Output], None] | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Result: ...

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: Literal[True] | None = None,
        stream: Literal[True],
        max_output: int = MAX_OUTPUT,
    ) -> Command: ...

    def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: Any = None,
        stream: Any = None,
        max_output: int = MAX_OUTPUT,
    ) -> Result | Command:
        """Run a command. See ``AsyncSandbox.run``."""
        running: Result | AsyncCommand = self._loop.run(
            self._async.run(
                command, env=env, cwd=cwd, timeout=timeout, stdin=stdin, stream=stream, max_output=max_output
            )
        )
        return Command(running, self._loop) if isinstance(running, AsyncCommand) else running

    def shell(
        self,
        command: str | Sequence[str] = SHELL,
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Shell:
        """A terminal. See ``AsyncSandbox.shell``."""
        shell = self._async.shell(command, columns=columns, rows=rows, env=env, cwd=cwd)
        return Shell(self._loop.run(shell.start()), self._loop)

    def start(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,  # noqa: A002
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Process:
        """Start a command in the background and return at once. See ``AsyncSandbox.start``."""
        return Process(self._loop.run(self._async.start(command, id=id, env=env, cwd=cwd)), self._loop)

    def process(self, id: str) -> Process:  # noqa: A002
        """The background process with this ID."""
        return Process(self._async.process(id), self._loop)

    def processes(self) -> list[Process]:
        """The background processes, also those that have ended."""
        return [Process(found, self._loop) for found in self._loop.run(self._async.processes())]

    @property
    def name(self) -> str:
        """The name of its claim."""
        return self._async.name

    @property
    def launch(self) -> str:
        """ "warm" if it came from a pool, "cold" if it was created for this claim."""
        return self._async.launch

    @cached_property
    def files(self) -> Files:
        """Its files."""
        return Files(self._async.files, self._loop)

    @cached_property
    def code(self) -> Code:
        """Python in it, with state that stays between calls."""
        return Code(self._async.code, self._loop)


class Template(_Blocking[AsyncTemplate]):
    """See ``AsyncTemplate``."""

    delete = blocking(AsyncTemplate.delete)

    @property
    def name(self) -> str:
        """The name of the template."""
        return self._async.name


class Pool(_Blocking[AsyncPool]):
    """See ``AsyncPool``."""

    status = blocking(AsyncPool.status)
    scale = blocking(AsyncPool.scale)
    wait_ready = blocking(AsyncPool.wait_ready)
    delete = blocking(AsyncPool.delete)

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self._async.name


class Client(_Blocking[AsyncClient]):
    """Claims sandboxes: ``with Client().sandbox() as sb: print(sb.run("uname -a").stdout)``.

    Takes the arguments of ``AsyncClient``. It is closed when it, its sandboxes and everything of them are given up, and
    when the program ends: what it still holds then is released."""

    def __init__(
        self,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        namespace: str | None = None,
        lease: float = LEASE,
        router: str | None = None,
        router_token: str | None = None,
    ) -> None:
        loop = LoopThread()

        async def connect() -> AsyncClient:
            return AsyncClient(
                kubeconfig=kubeconfig,
                context=context,
                namespace=namespace,
                lease=lease,
                router=router,
                router_token=router_token,
            )

        try:
            super().__init__(loop.run(connect()), loop)
        except BaseException:
            loop.stop()
            raise
        loop.serve(self._async)

    map = blocking(AsyncClient.map)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sandbox(
        self,
        pool: str = DEFAULT_POOL,
        *,
        name: str | None = None,
        key: str | None = None,
        keep: bool = False,
        env: Mapping[str, str] | None = None,
        freeze_after: float | str | None = None,
        suspend_after: float | str | None = None,
        labels: Mapping[str, str] | None = None,
        pod_labels: Mapping[str, str] | None = None,
        pod_annotations: Mapping[str, str] | None = None,
        timeout: float = READY_TIMEOUT,
    ) -> Sandbox:
        """Claim a sandbox; use it as a context manager, or call ``release``. See ``AsyncClient.sandbox``."""

        async def claim() -> AsyncSandbox:
            return await self._async.sandbox(
                pool,
                name=name,
                key=key,
                keep=keep,
                env=env,
                freeze_after=freeze_after,
                suspend_after=suspend_after,
                labels=labels,
                pod_labels=pod_labels,
                pod_annotations=pod_annotations,
                timeout=timeout,
            )

        return Sandbox(self._loop.run(claim()), self._loop, keep)

    def template(
        self,
        name: str,
        *,
        image: str | None = None,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cpu: str | None = None,
        memory: str | None = None,
        disk: str | None = None,
        port: int | None = None,
        runtime: str | None = None,
        freeze: bool = False,
        freeze_after: float | str | None = None,
        suspend_after: float | str | None = None,
        late_binding: bool = False,
        env_policy: EnvPolicy | None = None,
    ) -> Template:
        """Create or find a template. See ``AsyncClient.template``."""
        making = self._async.template(
            name,
            image=image,
            command=command,
            env=env,
            cpu=cpu,
            memory=memory,
            disk=disk,
            port=port,
            runtime=runtime,
            freeze=freeze,
            freeze_after=freeze_after,
            suspend_after=suspend_after,
            late_binding=late_binding,
            env_policy=env_policy,
        )
        return Template(self._loop.run(making), self._loop)

    def pool(self, name: str, *, template: str | None = None, size: int | None = None) -> Pool:
        """Create or find a pool. See ``AsyncClient.pool``."""
        return Pool(self._loop.run(self._async.pool(name, template=template, size=size)), self._loop)

    def connect(self, name: str) -> Sandbox:
        """Use the sandbox of an existing claim. It is not released with this client."""
        return Sandbox(self._loop.run(self._async.connect(name)), self._loop, keep=True)

    def close(self) -> None:
        """Release the sandboxes that are held, and close all connections."""
        self._loop.close(self._async)
