"""Access to the pods of this node: exec, attach, logs and port-forward.

A command is confined as its container is, and ends when its client disconnects. It has the variables that a claim has
handed to the pod (see ``node.pods.binding``). Every access counts as use of the pod and thaws it if it is frozen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from sandpool.api.resource import Object, SharedObject
from sandpool.kube import late_binding
from sandpool.kube.pod_access import RETRY_DELAYS, LogQuery, PodAccessError, StreamClient
from sandpool.node.agent import NodeAgent
from sandpool.node.descriptors import readable, writable
from sandpool.node.logs.manager import LogManager
from sandpool.node.logs.reader import LogOptions
from sandpool.node.pods.binding import NotBound
from sandpool.node.pods.worker import PodWorker
from sandpool.node.runtimes import stdin_once
from sandpool.node.runtimes.runtime import Command, Container, NoSuchCommand, Process, RuntimeFailure, Stdio
from sandpool.node.runtimes.terminal import Terminal, resize

_CHUNK: Final = 1 << 16
# A port of a pod that was started for its client less than this ago is dialled again.
_STARTED_SECONDS: Final = 5.0
# Maximum backlog of an attached client, in bytes.
MOST_BEHIND: Final = 16 << 20


class NodePodAccess:
    """Access to the pods of one agent."""

    def __init__(self, agent: NodeAgent, logs: LogManager) -> None:
        self.agent = agent
        self.log_manager = logs

    def serves(self, pod: SharedObject) -> bool:
        return bool(pod["spec"].get("nodeName") == self.agent.name)

    async def execute(self, pod: SharedObject, container: str, command: tuple[str, ...], client: StreamClient) -> int:
        with self._worker(pod).clients.client():
            return await self._execute(pod, container, command, client)

    async def _execute(self, pod: SharedObject, container: str, command: tuple[str, ...], client: StreamClient) -> int:
        running = await self._container(pod, container)
        talk = _terminal(running, client) if client.is_terminal else _Pipes(client)
        try:
            try:
                variables = await self._variables(pod, container)
                process = await running.execute(_command(running, command, client, variables), talk.child_ends)
            except NoSuchCommand as error:
                await client.write(f"{error}\n".encode(), error=True)
                return error.code
            except RuntimeFailure as error:
                # Checked only after a failure: the check takes longer than starting a command.
                raise PodAccessError(str(error) if running.is_running else _not_running(pod, container)) from error
            finally:
                talk.close_child_ends()
            return await talk.wait_for(process)
        finally:
            talk.close()

    async def attach(self, pod: SharedObject, container: str, client: StreamClient) -> int:
        with self._worker(pod).clients.client():
            return await self._attach(pod, container, client)

    async def _attach(self, pod: SharedObject, container: str, client: StreamClient) -> int:
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
                raise PodAccessError("the client reads too slowly; kubectl logs has the complete output")
            output.finish()
            await showing
            return (await ending).code
        finally:
            stop()
            await _cancel(ending, *tasks)

    async def dial(self, pod: SharedObject, port: int, user: Object) -> socket.socket:
        worker = self._worker(pod)
        with worker.clients.client():
            await worker.ensure_thawed()
            return worker.clients.counted(await self._dial_patiently(worker, pod, port))

    async def _dial_patiently(self, worker: PodWorker, pod: SharedObject, port: int) -> socket.socket:
        """A pod that was made for this client, because its sandbox slept, can be ready before its program listens."""
        for delay in RETRY_DELAYS:
            try:
                return await self._dial(worker, pod, port)
            except ConnectionRefusedError:
                if not self._has_just_started(worker):
                    raise
            await self.agent.clock.sleep(delay)
        return await self._dial(worker, pod, port)

    def _has_just_started(self, worker: PodWorker) -> bool:
        if worker.state.pod.sleep.suspend_after is None:
            return False
        since = worker.state[worker.first_container].since
        return since is not None and self.agent.clock.monotonic() - since.at < _STARTED_SECONDS

    async def _dial(self, worker: PodWorker, pod: SharedObject, port: int) -> socket.socket:
        if port == late_binding.PORT:
            return await worker.binding.connection(worker.first_run, worker.dial_sandboxd)
        try:
            await worker.variables()  # what the program behind the port starts has them
        except NotBound as error:
            raise PodAccessError(str(error)) from error
        # First as a process of the pod would, so that ports of its loopback interface can be forwarded too.
        try:
            return await self._dial_loopback(pod, port)
        except ConnectionRefusedError:
            return await self.agent.parts.network.dial(pod["metadata"]["uid"], port)

    async def _dial_loopback(self, pod: SharedObject, port: int) -> socket.socket:
        return await self.agent.parts.network.dial(pod["metadata"]["uid"], port, "127.0.0.1")

    async def _variables(self, pod: SharedObject, container: str) -> Mapping[str, str]:
        """The variables of the pod's claim. Only its first container has them, as a claim's variables do by default.
        Raises ``NotBound``."""
        worker = self._worker(pod)
        if container != worker.first_container:
            return {}
        return await worker.variables()

    def logs(self, pod: SharedObject, query: LogQuery) -> AsyncIterator[bytes]:
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

    async def stats(self, node: str) -> Object | None:
        if node != self.agent.name:
            return None
        pods = [await _pod_stats(worker) for worker in list(self.agent.workers.values())]
        return {"node": {"nodeName": node}, "pods": [pod for pod in pods if pod["containers"]]}

    def _worker(self, pod: SharedObject) -> PodWorker:
        metadata = pod["metadata"]
        worker = self.agent.find(metadata["namespace"], metadata["name"])
        if worker is None or worker.state.pod.uid != metadata["uid"]:
            raise PodAccessError(f'pod "{metadata["name"]}" does not run on node {self.agent.name}')
        return worker

    async def _container(self, pod: SharedObject, name: str) -> Container:
        """Return a container of the pod, running or ended, after thawing the pod."""
        worker = self._worker(pod)
        container = worker.resources.running(name)
        if container is None:
            await worker.clients.check_stays()  # it may have ended because the sandbox falls asleep
            raise PodAccessError(_not_running(pod, name))
        await worker.ensure_thawed()
        return container


async def _pod_stats(worker: PodWorker) -> Object:
    """Usage of the running containers of a pod, in the form of a kubelet's summary."""
    pod, containers = worker.state.pod, list[Object]()
    for name in worker.state.containers:
        container = worker.resources.running(name)
        if container is None or not container.is_running:
            continue
        with suppress(OSError, RuntimeFailure):  # it ends at this moment
            usage = await container.usage()
            time = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            cpu = {"time": time, "usageCoreNanoSeconds": usage.cpu_nanoseconds}
            memory = {"time": time, "usageBytes": usage.memory_bytes, "workingSetBytes": usage.working_set_bytes}
            containers.append({"name": name, "cpu": cpu, "memory": memory})
    return {"podRef": {"name": pod.key.name, "namespace": pod.key.namespace, "uid": pod.uid}, "containers": containers}


class AttachedOutput:
    """Forwards the output of a container to a client that reads at its own pace. The container does not wait and no
    output is skipped, so a client that falls too far behind is disconnected: its backlog is in memory."""

    def __init__(self, client: StreamClient) -> None:
        self.client = client
        self.overflowed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pieces: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self._waiting = 0  # bytes

    def write(self, stream: str, data: bytes) -> None:
        if self.overflowed.done():
            return
        self._waiting += len(data)
        self._pieces.put_nowait((stream, data))
        if self._waiting > MOST_BEHIND:
            self.overflowed.set_result(None)

    def finish(self) -> None:
        """No further output follows."""
        self._pieces.put_nowait(None)

    async def show(self) -> None:
        while (piece := await self._pieces.get()) is not None:
            stream, data = piece
            await self.client.write(data, error=stream == "stderr")
            self._waiting -= len(data)


class _Pipes:
    """The standard streams of a command as pipes. Streams that the client does not want are /dev/null."""

    def __init__(self, client: StreamClient) -> None:
        self.client = client
        self._child_ends: list[int] = []
        self._input = self._pipe(outward=False) if client.has_stdin else None
        self._outputs: list[tuple[int, bool]] = []
        stdout, stderr = self._output(client.has_stdout, error=False), self._output(client.has_stderr, error=True)
        self.child_ends = Stdio(self._child_ends[0] if client.has_stdin else self._devnull(), stdout, stderr)

    async def wait_for(self, process: Process) -> int:
        outputs = [_Output(ours, self.client, error=error) for ours, error in self._outputs]
        showing = [asyncio.create_task(each.forward()) for each in outputs]
        typing = [] if self._input is None else [asyncio.create_task(self._forward_input(self._input))]
        try:
            code = await process.wait()
            # Its children may still hold the pipes. Its own output is in them already.
            for each in outputs:
                each.finish()
            await asyncio.gather(*showing, return_exceptions=True)
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
        """Make a pipe and return our end."""
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
    """A command with a terminal."""

    def __init__(self, terminal: Terminal, client: StreamClient) -> None:
        self.client = client
        self._ours, child_ends = terminal
        os.set_blocking(self._ours, False)
        self._child_ends = child_ends
        self.child_ends = Stdio(child_ends, child_ends, child_ends)

    async def wait_for(self, process: Process) -> int:
        output = _Output(self._ours, self.client, error=False)
        showing = asyncio.create_task(output.forward())
        others = [
            asyncio.create_task(self._forward_input()),
            asyncio.create_task(_forward_resizes(self._ours, self.client)),
        ]
        try:
            code = await process.wait()
            output.finish()
            await asyncio.gather(showing, return_exceptions=True)
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


def _command(running: Container, argv: tuple[str, ...], client: StreamClient, variables: Mapping[str, str]) -> Command:
    """Set TERM for a command with a terminal, unless the container sets it: editors and pagers need it."""
    if not client.is_terminal:
        return Command(argv, {**running.spec.env, **variables} if variables else None)
    return Command(argv, {"TERM": "xterm", **running.spec.env, **variables}, tty=True)


def _not_running(pod: SharedObject, container: str) -> str:
    return f'container "{container}" in pod "{pod["metadata"]["name"]}" is not running'


def _terminal(running: Container, client: StreamClient) -> _Terminal:
    try:
        return _Terminal(running.open_terminal(), client)
    except RuntimeFailure as error:
        raise PodAccessError(str(error)) from error


class _Output:
    """Forwards what a command writes to a descriptor.

    Every piece that was read reaches the client: ``finish`` ends the wait for more, and never a write to the client.
    """

    def __init__(self, descriptor: int, client: StreamClient, *, error: bool) -> None:
        self.descriptor = descriptor
        self.client = client
        self.error = error
        self._finishing = False
        self._waiting: asyncio.Task[None] | None = None

    async def forward(self) -> None:
        """Forward until all writers have closed the descriptor, or until it is empty after ``finish``."""
        while True:
            try:
                data = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                if self._finishing:
                    return
                await self._wait()
                continue
            except OSError:  # all holders of the terminal have closed it
                return
            if not data:
                return
            await self.client.write(data, error=self.error)

    def finish(self) -> None:
        """The command has ended."""
        self._finishing = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self) -> None:
        """Return when there is something to read, or at ``finish``."""
        self._waiting = asyncio.create_task(readable(self.descriptor))
        try:
            await asyncio.wait((self._waiting,))
        finally:
            self._waiting.cancel()
            self._waiting = None


async def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            await writable(descriptor)


async def _forward_stdin(running: Container, client: StreamClient) -> None:
    """Forward input to the container's own process, if it has ``stdin`` or ``tty``."""
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
