"""Connections for a router without privileges: its parent makes them and passes their descriptors.

A router in a process of its own can neither connect to pods nor to the API server. It asks for both over a socket pair,
and the parent decides: pods must run on the node of the parent, and the API sees the router's own user.

It also asks the parent to resume a sandbox that sleeps; the parent resumes no sandbox that a user has suspended.

One message is one request or one reply (``SOCK_SEQPACKET``). A request has an operation, a number, a port, and the
namespace, name and UID of a pod, or of a sandbox to resume. A reply has the number, a result, an error number and a
text; a connection comes as a descriptor with the result ``OK``.

The parent trusts nothing about a request: one that is not well-formed ends the channel, and at most ``max_requests``
are under way; further ones wait in the socket.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from array import array
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

from sandpool.node.descriptors import writable
from sandpool.router.destination import RequestRejected
from sandpool.router.targets import SandboxAsleep, Target
from sandpool.router.upstream import Dial
from sandpool.router.waking import Wake

_log = logging.getLogger(__name__)

DIAL: Final = b"D"
API: Final = b"A"
CANCEL: Final = b"C"
WAKE: Final = b"W"

OK: Final = 0
NOT_HERE: Final = 1
FAILED: Final = 2
#: The sandbox of the pod falls asleep. The text is the UID of the sandbox and its name, separated by a space.
ASLEEP: Final = 3
#: The sandbox was not resumed. The error number is the status of the response, the text says why.
REJECTED: Final = 4

_REQUEST: Final = struct.Struct("!cIHBBB")  # operation, number, port, lengths of namespace, name and UID
_REPLY: Final = struct.Struct("!IBH")  # number, result, error number
_MAX_TEXT: Final = 1024
_MAX_REQUEST: Final = _REQUEST.size + 3 * 255
#: Seconds for one connection. Until then a sandbox that does not accept occupies one request.
_TIMEOUT: Final = 60.0


def not_here(pod: str) -> RequestRejected:
    return RequestRejected(503, f"Nothing runs in pod {pod}: its node is simulated or gone.")


class MalformedRequest(Exception):
    pass


class BrokerRequest(NamedTuple):
    operation: bytes
    number: int
    port: int = 0
    namespace: str = ""
    pod: str = ""
    uid: str = ""

    def encode(self) -> bytes:
        names = [each.encode() for each in (self.namespace, self.pod, self.uid)]
        return _REQUEST.pack(self.operation, self.number, self.port, *map(len, names)) + b"".join(names)

    @classmethod
    def decode(cls, data: bytes) -> BrokerRequest:
        """Raises ``MalformedRequest``."""
        if len(data) < _REQUEST.size:
            raise MalformedRequest("it is too short")
        operation, number, port, *lengths = _REQUEST.unpack_from(data)
        if operation not in (DIAL, API, CANCEL, WAKE):
            raise MalformedRequest("it has an unknown operation")
        if len(data) != _REQUEST.size + sum(lengths):
            raise MalformedRequest("it does not have the length that it states")
        named = operation in (DIAL, WAKE)
        if (operation == DIAL) != (port > 0) or any((length > 0) != named for length in lengths):
            raise MalformedRequest("fields of another operation are set")
        names, start = [], _REQUEST.size
        for length in lengths:
            name = data[start : start + length]
            if not name.isascii() or not name.decode("ascii").isprintable():
                raise MalformedRequest("a name is not printable ASCII")
            names.append(name.decode("ascii"))
            start += length
        return cls(operation, number, port, *names)


class ConnectionBroker:
    """The parent's end of one channel."""

    def __init__(
        self,
        connection: socket.socket,
        dial: Dial,
        connect_api: Callable[[], Awaitable[socket.socket]],
        *,
        max_requests: int,
        wake: Wake | None = None,
    ) -> None:
        self.connection = connection
        self.wake = wake
        self.dial = dial
        self.connect_api = connect_api
        self.max_requests = max_requests
        self._tasks: dict[int, asyncio.Task[None]] = {}  # requests under way, by number
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_reading = False
        connection.setblocking(False)

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    async def serve(self) -> None:
        """Return when the router has closed the channel. Raises ``MalformedRequest`` when it misbehaves."""
        self._read(True)
        try:
            await self._ended
        finally:
            self._read(False)
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.connection.close()

    def _read(self, reading: bool) -> None:
        if reading != self._is_reading:
            self._is_reading = reading
            if reading:
                self._loop.add_reader(self.connection, self._receive)
            else:
                self._loop.remove_reader(self.connection)

    def _receive(self) -> None:
        if self._ended.done():
            return
        try:
            data = _receive_request(self.connection)
            if data:
                self._begin(BrokerRequest.decode(data))
            else:
                self._ended.set_result(None)
        except BlockingIOError:
            return
        except MalformedRequest as error:
            self._ended.set_exception(error)
        except OSError:
            self._ended.set_result(None)

    def _begin(self, request: BrokerRequest) -> None:
        if request.operation == CANCEL:
            task = self._tasks.get(request.number)
            if task is not None:
                task.cancel()
            return
        if request.number in self._tasks:
            raise MalformedRequest("its number is in use")
        task = self._loop.create_task(self._answer(request), name="router: connection for the router")
        self._tasks[request.number] = task
        task.add_done_callback(lambda _: self._finished(request.number))
        if len(self._tasks) >= self.max_requests:
            self._read(False)

    def _finished(self, number: int) -> None:
        del self._tasks[number]
        if not self._ended.done():
            self._read(True)

    async def _answer(self, request: BrokerRequest) -> None:
        if request.operation == WAKE:
            await self._resume(request)
            return
        try:
            async with asyncio.timeout(_TIMEOUT):
                if request.operation == API:
                    made = await self.connect_api()
                else:
                    made = await self.dial(Target(request.namespace, request.pod, request.uid, ""), request.port)
        except SandboxAsleep as asleep:
            await self._reply(request.number, ASLEEP, 0, text=f"{asleep.uid} {asleep.name}")
        except RequestRejected:
            await self._reply(request.number, NOT_HERE, 0)
        except OSError as error:
            await self._reply(request.number, FAILED, error_number(error))
        except Exception:  # noqa: BLE001 - one failure must not end the channel
            _log.exception("cannot connect the router to pod %s/%s", request.namespace, request.pod)
            await self._reply(request.number, FAILED, errno.EIO)
        else:
            with made:
                await self._reply(request.number, OK, 0, made.fileno())

    async def _resume(self, request: BrokerRequest) -> None:
        try:
            if self.wake is None:
                raise RequestRejected(503, f"Sandbox {request.pod} is asleep, and nothing here can resume it.")
            await self.wake(request.namespace, request.pod, request.uid)
        except RequestRejected as rejection:
            await self._reply(request.number, REJECTED, rejection.status, text=rejection.detail)
        except Exception:  # noqa: BLE001 - one failure must not end the channel
            _log.exception("cannot resume sandbox %s/%s", request.namespace, request.pod)
            await self._reply(request.number, REJECTED, 503, text=f"Sandbox {request.pod} could not be resumed.")
        else:
            await self._reply(request.number, OK, 0)

    async def _reply(self, number: int, result: int, error: int, *descriptors: int, text: str = "") -> None:
        message = _REPLY.pack(number, result, error) + text.encode()[:_MAX_TEXT]
        with suppress(ConnectionError):  # the router is gone
            while True:
                try:
                    socket.send_fds(self.connection, [message], descriptors)
                except BlockingIOError:
                    await writable(self.connection.fileno())
                else:
                    return


def _receive_request(connection: socket.socket) -> bytes:
    """Receive one message. Descriptors that come with it are closed and make it malformed, as does its length."""
    data, ancillary, flags, _ = connection.recvmsg(_MAX_REQUEST, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
    received = _descriptors(ancillary)
    for descriptor in received:
        os.close(descriptor)
    if received or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise MalformedRequest("it is too long or has descriptors")
    return data


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
    return list(found)


def error_number(error: OSError) -> int:
    """Return the number of an error; asyncio and our own code raise some without."""
    if error.errno is not None and 0 < error.errno < 1 << 16:
        return error.errno
    match error:
        case ConnectionRefusedError():
            return errno.ECONNREFUSED
        case TimeoutError():
            return errno.ETIMEDOUT
        case _:
            return errno.EHOSTUNREACH


class BrokerClient:
    """The router's end. ``dial`` connects to a pod, ``connect_api`` to the API server."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[socket.socket | None]] = {}
        self._resumes: set[int] = set()  # the numbers of requests that are answered without a connection
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._receive)

    async def dial(self, target: Target, port: int) -> socket.socket:
        """Raises ``RequestRejected`` if the pod does not run here or falls asleep, and ``OSError``."""
        try:
            made = await self._request(DIAL, port, target.namespace, target.pod, target.uid)
        except LookupError:
            raise not_here(target.pod) from None
        assert made is not None
        return made

    async def connect_api(self) -> socket.socket:
        """Raises ``OSError``."""
        made = await self._request(API)
        assert made is not None
        return made

    async def wake(self, namespace: str, name: str, uid: str) -> None:
        """Have a sandbox resumed. Raises ``RequestRejected``."""
        try:
            await self._request(WAKE, 0, namespace, name, uid)
        except OSError as error:
            raise RequestRejected(503, f"Sandbox {name} is asleep, and could not be resumed: {error}.") from error

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self.connection)
        self.connection.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the process that makes connections is gone"))

    async def _request(
        self, operation: bytes, port: int = 0, namespace: str = "", pod: str = "", uid: str = ""
    ) -> socket.socket | None:
        number = next(self._numbers) & 0xFFFFFFFF
        waiting: asyncio.Future[socket.socket | None] = self._loop.create_future()
        self._waiting[number] = waiting
        if operation == WAKE:
            self._resumes.add(number)
        try:
            await self._send(BrokerRequest(operation, number, port, namespace, pod, uid))
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                if (made := waiting.result()) is not None:
                    made.close()
            elif not self._is_closed:
                with suppress(OSError):  # a reply that arrives nevertheless is closed
                    self.connection.send(BrokerRequest(CANCEL, number).encode())
            raise
        finally:
            del self._waiting[number]
            self._resumes.discard(number)

    async def _send(self, request: BrokerRequest) -> None:
        message = request.encode()
        while True:
            if self._is_closed:
                raise ConnectionResetError("the process that makes connections is gone")
            try:
                self.connection.send(message)
            except BlockingIOError:
                await writable(self.connection.fileno())
            else:
                return

    def _receive(self) -> None:
        try:
            data, ancillary, _, _ = self.connection.recvmsg(
                _REPLY.size + _MAX_TEXT, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if len(data) < _REPLY.size:
            self.close()
            return
        number, result, error = _REPLY.unpack_from(data)
        text = data[_REPLY.size :].decode(errors="replace")
        connected = [socket.socket(fileno=each) for each in _descriptors(ancillary)]
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            for sock in connected:
                sock.close()
        elif connected:
            connected[0].setblocking(False)
            waiting.set_result(connected[0])
        elif result == OK and number in self._resumes:
            waiting.set_result(None)
        elif result == NOT_HERE:
            waiting.set_exception(LookupError(number))
        elif result == ASLEEP:
            uid, _, name = text.partition(" ")
            waiting.set_exception(SandboxAsleep(name, uid))
        elif result == REJECTED:
            waiting.set_exception(RequestRejected(error, text))
        else:  # with OK, but without a descriptor: this process has too many open files
            number = error if result == FAILED else errno.EMFILE
            waiting.set_exception(OSError(number, os.strerror(number)))
