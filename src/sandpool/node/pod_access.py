"""The way into the pods of this node: commands, terminals, logs and ports.

A command is confined as its container is, and goes when its client goes. A pod that is frozen while it is warm is
thawed by the first who comes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from sandpool.api.resource import Object
from sandpool.kube.pod_access import LogQuery, PodAccessError, StreamClient
from sandpool.node.agent import NodeAgent
from sandpool.node.attached import AttachedOutput
from sandpool.node.descriptors import readable, writable
from sandpool.node.logs.manager import LogManager
from sandpool.node.logs.reader import LogOptions
from sandpool.node.pods.worker import PodWorker
from sandpool.node.runtimes import stdin_once
from sandpool.node.runtimes.runtime import Command, Container, NoSuchCommand, Process, RuntimeFailure, Stdio
from sandpool.node.runtimes.terminal import Terminal, resize

_CHUNK: Final = 1 << 16


class NodePodAccess:
    def __init__(self, agent: NodeAgent, logs: LogManager) -> None:
        self.agent = agent
        self.log_manager = logs

    def leads_to(self, pod: Object) -> bool:
        return bool(pod["spec"].get("nodeName") == self.agent.name)

    async def execute(self, pod: Object, container: str, command: tuple[str, ...], client: StreamClient) -> int:
        running = await self._container(pod, container)
        talk = _terminal(running, client) if client.is_terminal else _Pipes(client)
        try:
            try:
                process = await running.execute(_command(running, command, client), talk.child_ends)
            except NoSuchCommand as error:
                await client.write(f"{error}\n".encode(), error=True)
                return error.code
            except RuntimeFailure as error:
                # Only now: to look whether it runs takes longer than to let a command in.
                raise PodAccessError(str(error) if running.is_running else _not_running(pod, container)) from error
            finally:
                talk.close_child_ends()
            return await talk.wait_for(process)
        finally:
            talk.close()

    async def attach(self, pod: Object, container: str, client: StreamClient) -> int:
        running = await self._container(pod, container)
        if not running.is_running:
            raise PodAccessError(_not_running(pod, container))
        output = AttachedOutput(client)
        stop = self.log_manager.listen(running, output.write)
        showing = asyncio.create_task(output.show())
        tasks = [showing, asyncio.create_task(_forward_stdin(running, client))]
        if running.terminal is not None:
            tasks.append(asyncio.create_task(_forward_resizes(running.terminal, client)))
        ending = asyncio.create_task(running.wait())
        try:
            await asyncio.wait((ending, showing, output.overflowed), return_when=asyncio.FIRST_COMPLETED)
            if output.overflowed.done():
                raise PodAccessError("what the container writes is not read in time; kubectl logs has it")
            output.finish()
            await showing
            return (await ending).code
        finally:
            stop()
            await _cancel(ending, *tasks)

    async def dial(self, pod: Object, port: int) -> socket.socket:
        worker = self._worker(pod)
        await worker.ensure_thawed()
        # As a process of the pod would: what listens on its loopback interface only can be forwarded too.
        try:
            return await self.agent.parts.network.dial(pod["metadata"]["uid"], port, "127.0.0.1")
        except ConnectionRefusedError:
            return await self.agent.parts.network.dial(pod["metadata"]["uid"], port)

    def logs(self, pod: Object, query: LogQuery) -> AsyncIterator[bytes]:
        worker = self._worker(pod)
        name = query.container
        last = worker.resources.last_run(name)
        if last is None:
            raise PodAccessError(f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start')
        directory, run = last
        run -= query.previous
        if run < 0:
            raise PodAccessError(f'previous terminated container "{name}" in pod "{pod["metadata"]["name"]}" not found')
        options = LogOptions(
            follow=query.follow and not query.previous,
            timestamps=query.timestamps,
            since=None if query.since is None else datetime.fromtimestamp(query.since, UTC),
            tail=query.tail,
            limit=query.limit,
        )
        return self.log_manager.read(directory, run, options)

    def _worker(self, pod: Object) -> PodWorker:
        metadata = pod["metadata"]
        worker = self.agent.find(metadata["namespace"], metadata["name"])
        if worker is None or worker.state.pod.uid != metadata["uid"]:
            raise PodAccessError(f'pod "{metadata["name"]}" does not run on node {self.agent.name}')
        return worker

    async def _container(self, pod: Object, name: str) -> Container:
        """A container of the pod, whether it runs or has ended; thawed, if the pod was frozen."""
        worker = self._worker(pod)
        container = worker.resources.running(name)
        if container is None:
            raise PodAccessError(_not_running(pod, name))
        await worker.ensure_thawed()
        return container


class _Pipes:
    """The three streams of a command, each a pipe; those that the client does not want lead nowhere."""

    def __init__(self, client: StreamClient) -> None:
        self.client = client
        self._child_ends: list[int] = []
        self._input = self._pipe(outward=False) if client.has_stdin else None
        self._outputs: list[tuple[int, bool]] = []
        stdout, stderr = self._output(client.has_stdout, error=False), self._output(client.has_stderr, error=True)
        self.child_ends = Stdio(self._child_ends[0] if client.has_stdin else self._devnull(), stdout, stderr)

    async def wait_for(self, process: Process) -> int:
        showing = [
            asyncio.create_task(_forward_output(ours, self.client, error=error)) for ours, error in self._outputs
        ]
        typing = [] if self._input is None else [asyncio.create_task(self._forward_input(self._input))]
        try:
            code = await process.wait()
            # What it has started may still hold the pipes; what it has written itself is in them.
            for task in showing:
                task.cancel()
            await asyncio.gather(*showing, return_exceptions=True)
            for ours, error in self._outputs:
                await _drain_output(ours, self.client, error=error)
            return code
        finally:
            await process.signal(signal.SIGKILL)
            await _cancel(*typing, *showing)

    def close_child_ends(self) -> None:
        for descriptor in self._child_ends:
            os.close(descriptor)
        self._child_ends.clear()

    def close(self) -> None:
        self.close_child_ends()
        for ours, _ in self._outputs:
            os.close(ours)
        self._outputs.clear()
        if self._input is not None:
            os.close(self._input)
            self._input = None

    async def _forward_input(self, descriptor: int) -> None:
        with suppress(OSError):
            while data := await self.client.receive():
                await _write(descriptor, data)
        os.close(descriptor)
        self._input = None

    def _pipe(self, *, outward: bool) -> int:
        """Our end of a new one."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        ours, child_ends = (reader, writer) if outward else (writer, reader)
        os.set_blocking(ours, False)
        self._child_ends.append(child_ends)
        return ours

    def _output(self, wanted: bool, *, error: bool) -> int:
        if not wanted:
            return self._devnull()
        self._outputs.append((self._pipe(outward=True), error))
        return self._child_ends[-1]

    def _devnull(self) -> int:
        self._child_ends.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        return self._child_ends[-1]


class _Terminal:
    """A command that believes to be talking to a person."""

    def __init__(self, terminal: Terminal, client: StreamClient) -> None:
        self.client = client
        self._ours, child_ends = terminal
        os.set_blocking(self._ours, False)
        self._child_ends = child_ends
        self.child_ends = Stdio(child_ends, child_ends, child_ends)

    async def wait_for(self, process: Process) -> int:
        showing = asyncio.create_task(_forward_output(self._ours, self.client, error=False))
        others = [
            asyncio.create_task(self._forward_input()),
            asyncio.create_task(_forward_resizes(self._ours, self.client)),
        ]
        try:
            code = await process.wait()
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            await _drain_output(self._ours, self.client, error=False)
            return code
        finally:
            await process.signal(signal.SIGKILL)
            await _cancel(showing, *others)

    def close_child_ends(self) -> None:
        if self._child_ends >= 0:
            os.close(self._child_ends)
            self._child_ends = -1

    def close(self) -> None:
        self.close_child_ends()
        os.close(self._ours)

    async def _forward_input(self) -> None:
        with suppress(OSError):
            while data := await self.client.receive():
                await _write(self._ours, data)


def _command(running: Container, argv: tuple[str, ...], client: StreamClient) -> Command:
    """What has a terminal is told which, unless the container says so itself: editors and pagers refuse to guess."""
    if not client.is_terminal:
        return Command(argv)
    return Command(argv, {"TERM": "xterm", **running.spec.env}, tty=True)


def _not_running(pod: Object, container: str) -> str:
    return f'container "{container}" in pod "{pod["metadata"]["name"]}" is not running'


def _terminal(running: Container, client: StreamClient) -> _Terminal:
    try:
        return _Terminal(running.open_terminal(), client)
    except RuntimeFailure as error:
        raise PodAccessError(str(error)) from error


async def _forward_output(descriptor: int, client: StreamClient, *, error: bool) -> None:
    """Until everybody who could write has closed it."""
    while True:
        await readable(descriptor)
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            continue
        except OSError:  # a terminal that nobody holds any more
            return
        if not data:
            return
        await client.write(data, error=error)


async def _drain_output(descriptor: int, client: StreamClient, *, error: bool) -> None:
    with suppress(OSError):
        while data := os.read(descriptor, _CHUNK):
            await client.write(data, error=error)


async def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            await writable(descriptor)


async def _forward_stdin(running: Container, client: StreamClient) -> None:
    """What is typed goes to the container's own process, if it was made to listen."""
    if not client.has_stdin or not (running.spec.stdin or running.terminal is not None):
        return
    if running.terminal is not None:
        with suppress(OSError):
            while data := await client.receive():
                await _write(running.terminal, data)
        return
    if running.spec.stdin_once:
        descriptor = stdin_once.take(running.directory)
        if descriptor is None:
            return
    else:
        descriptor = os.open(running.directory / stdin_once.STDIN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            while data := await client.receive():
                await _write(descriptor, data)
    finally:
        os.close(descriptor)
        if running.spec.stdin_once:
            stdin_once.end(running.directory)


async def _forward_resizes(terminal: int, client: StreamClient) -> None:
    with suppress(OSError):
        while (size := await client.next_size()) is not None:
            resize(terminal, size.rows, size.columns)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
