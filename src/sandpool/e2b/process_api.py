"""The service ``process.Process``: commands and terminals."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from sandpool.e2b.processes import Event, Exit, Follower, Process, ProcessSpec
from sandpool.e2b.rpc import Code, Message, RpcError
from sandpool.e2b.rpc_http import Call, ClientStream, ServerStream, Unary
from sandpool.kube.pod_client import STDERR

#: What is sent while a process says nothing.
KEEPALIVE: Final[Mapping[str, Any]] = {"event": {"keepalive": {}}}
_SIGNALS: Final = {"SIGNAL_SIGTERM": "TERM", "SIGNAL_SIGKILL": "KILL"}
_SIGNAL_NUMBERS: Final = {15: "TERM", 9: "KILL"}
_NOTHING: Final[Mapping[str, Any]] = {}
_MAX_SIDE: Final = 0xFFFF


async def start(call: Call, message: Message) -> AsyncIterator[Mapping[str, Any]]:
    """Start a process and stream its output. It goes on if the client disconnects."""
    await call.sandbox.check_user(call.user)
    process, follower = await call.sandbox.processes.start(_spec(call, message), call.timeout)
    async for event in _followed(process, follower, limited=True):
        yield event


async def connect(call: Call, message: Message) -> AsyncIterator[Mapping[str, Any]]:
    """Stream the output of a running process from now on."""
    process = _selected(call, message)
    async for event in _followed(process, process.follow()):
        yield event


async def list_processes(call: Call, message: Message) -> Mapping[str, Any]:
    """The processes that clients started and that still run."""
    return {"processes": [_info(process) for process in call.sandbox.processes.list()]}


async def send_input(call: Call, message: Message) -> Mapping[str, Any]:
    """Write to the standard input or the terminal of a process."""
    await _selected(call, message).send(_input(message.message("input")))
    return _NOTHING


async def stream_input(call: Call, messages: AsyncIterator[Message]) -> Mapping[str, Any]:
    """Write a stream to the standard input or the terminal of a process."""
    process: Process | None = None
    async for message in messages:
        if message.has("start"):
            process = _selected(call, message.message("start"))
        elif message.has("data"):
            if process is None:
                raise RpcError(Code.INVALID_ARGUMENT, "the first message must name the process")
            await process.send(_input(message.message("data").message("input")))
    return _NOTHING


async def send_signal(call: Call, message: Message) -> Mapping[str, Any]:
    """Send SIGTERM or SIGKILL to a process and its group."""
    process = _selected(call, message)
    await call.sandbox.processes.signal(process, _signal(message))
    return _NOTHING


async def close_stdin(call: Call, message: Message) -> Mapping[str, Any]:
    """End the standard input of a process."""
    await _selected(call, message).end_input()
    return _NOTHING


async def update(call: Call, message: Message) -> Mapping[str, Any]:
    """Change the size of a terminal."""
    process = _selected(call, message)
    if (size := _size(message)) is not None:
        await process.resize(*size)
    return _NOTHING


UNARY: Final[Mapping[str, Unary]] = {
    "List": list_processes,
    "SendInput": send_input,
    "SendSignal": send_signal,
    "CloseStdin": close_stdin,
    "Update": update,
}
SERVER_STREAMS: Final[Mapping[str, ServerStream]] = {"Start": start, "Connect": connect}
CLIENT_STREAMS: Final[Mapping[str, ClientStream]] = {"StreamInput": stream_input}


async def _followed(process: Process, follower: Follower, *, limited: bool = False) -> AsyncIterator[Mapping[str, Any]]:
    """The events of a process. ``limited`` is the call whose time limit is that of the process."""
    try:
        yield {"event": {"start": {"pid": process.pid}}}
        async for event in follower.events():
            if limited and isinstance(event, Exit) and event.timed_out:
                raise RpcError(Code.DEADLINE_EXCEEDED, event.error)
            yield {"event": _event(process, event)}
    finally:
        process.unfollow(follower)


def _event(process: Process, event: Event) -> Mapping[str, Any]:
    if isinstance(event, Exit):
        end: dict[str, Any] = {"exitCode": event.code, "exited": not event.error, "status": f"exit status {event.code}"}
        if event.error:
            end["error"] = end["status"] = event.error
        return {"end": end}
    stream = "pty" if process.spec.terminal is not None else "stderr" if event.stream == STDERR else "stdout"
    return {"data": {stream: base64.b64encode(event.data).decode()}}


def _spec(call: Call, message: Message) -> ProcessSpec:
    process = message.message("process")
    if not (command := process.text("cmd")):
        raise RpcError(Code.INVALID_ARGUMENT, "the command is empty")
    terminal = (_size(message) or (80, 24)) if message.has("pty") else None
    return ProcessSpec(
        command=command,
        arguments=process.texts("args"),
        variables=process.text_map("envs"),
        directory=process.text("cwd"),
        tag=message.text("tag"),
        stdin=message.flag("stdin", default=True),
        terminal=terminal,
    )


def _size(message: Message) -> tuple[int, int] | None:
    size = message.message("pty").message("size")
    columns, rows = size.number("cols"), size.number("rows")
    if not columns or not rows:
        return None
    return min(columns, _MAX_SIDE), min(rows, _MAX_SIDE)


def _selected(call: Call, message: Message) -> Process:
    selector = message.message("process")
    return call.sandbox.processes.get(pid=selector.number("pid"), tag=selector.text("tag"))


def _input(message: Message) -> bytes:
    return message.data("pty") if message.has("pty") else message.data("stdin")


def _signal(message: Message) -> str:
    try:
        name = _SIGNALS.get(message.text("signal"))
    except RpcError:
        name = _SIGNAL_NUMBERS.get(message.number("signal"))
    if name is None:
        raise RpcError(Code.INVALID_ARGUMENT, "the signal must be SIGTERM or SIGKILL")
    return name


def _info(process: Process) -> Mapping[str, Any]:
    spec = process.spec
    config = {"cmd": spec.command, "args": list(spec.arguments), "envs": dict(spec.variables)}
    if spec.directory:
        config["cwd"] = spec.directory
    return {"config": config, "pid": process.pid, **({"tag": spec.tag} if spec.tag else {})}
