"""A small HTTP/1.1 server: a thread per connection, bodies as streams, files sent by the kernel.

The parsing is httptools'. What is not here is left out on purpose: TLS, compression, HTTP/2. Whoever talks to a sandbox
does so through a router or a tunnel that has all of it.
"""

from __future__ import annotations

import os
import select
from _socket import AF_INET, IPPROTO_TCP, MSG_MORE, MSG_PEEK, SHUT_RDWR, SOCK_STREAM, TCP_NODELAY, socket
from _thread import allocate_lock, start_new_thread
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM

from sandpool.sandboxd.encoding import decoded, to_json
from sandpool.sandboxd.parser import HttpParserError, HttpParserUpgrade, HttpRequestParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PIECE = 1 << 18
_MOST_CONNECTIONS = 256
_DESCRIPTORS_EACH = 4  # of a connection, with the command or the file it asks for
# Nobody can be let in until something else is over, here or elsewhere. Then we look again so often.
_EXHAUSTED = (EMFILE, ENFILE, ENOBUFS, ENOMEM)
_PAUSE = 0.1
_LONGEST_HEAD = 1 << 16
_IDLE = 60.0  # seconds a connection may be silent between requests
_REASONS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Lost(Exception):
    """The other side is gone in the middle of something."""


class Request:
    """``path`` is as it was sent, still encoded; ``decoded`` is decoded once. Header names are in lower case."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.method = ""
        self.path = ""
        self.query: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.complete = False  # nothing of the body is still to come
        self.pieces: list[bytes] = []  # of the body, that have come and were not read

    def body(self) -> Iterator[bytes]:
        """What was sent, piece by piece."""
        if not self.complete and self.headers.get("expect", "").lower() == "100-continue":
            self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            while self.pieces:
                yield self.pieces.pop(0)
            if self.complete:
                return
            self._connection.receive()

    def whole(self, limit: int) -> bytes | None:
        """The body if it is at most this long."""
        parts: list[bytes] = []
        for piece in self.body():
            limit -= len(piece)
            if limit < 0:
                return None
            parts.append(piece)
        return b"".join(parts)

    def is_wanted(self) -> bool:
        """Whether somebody is still there to hear the answer."""
        return self._connection.is_open()


class File:
    """Part of an open file, as a body. It is closed when it was sent."""

    def __init__(self, handle: int, size: int, offset: int = 0) -> None:
        self.handle = handle
        self.size = size
        self.offset = offset


class Response:
    def __init__(self, status: int, body: bytes | File = b"", headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, value: object, status: int = 200) -> Response:
        """JSON."""
        return cls(status, to_json(value).encode(), {"Content-Type": "application/json"})


class Server:
    """Answers on a socket that listens already. ``serve`` returns after ``stop``."""

    def __init__(self, listening: socket, handler: Callable[[Request], Response]) -> None:
        self.listening = listening
        self.handler = handler
        self._room = _Room(min(_MOST_CONNECTIONS, max(os.sysconf("SC_OPEN_MAX") // _DESCRIPTORS_EACH, 1)))
        self._stopping = False

    @property
    def port(self) -> int:
        port: int = self.listening.getsockname()[1]
        return port

    def serve(self) -> None:
        while True:
            try:
                descriptor, _ = self.listening._accept()  # type: ignore[attr-defined]  # beneath ``accept``
            except OSError as error:
                if self._stopping:
                    return
                if error.errno in _EXHAUSTED:
                    self._room.wait_for_leaving(_PAUSE)  # who knocks waits in the kernel
                continue
            self._room.enter()
            sock = socket(AF_INET, SOCK_STREAM, 0, descriptor)
            try:
                start_new_thread(self._converse, (sock,))
            except RuntimeError:  # the programs of the sandbox leave no room for a thread; that may pass
                sock.close()
                self._room.leave()

    def stop(self) -> None:
        self._stopping = True
        # Closing alone does not wake a thread that waits in accept.
        try:  # noqa: SIM105 - contextlib is not imported
            self.listening.shutdown(SHUT_RDWR)
        except OSError:
            pass
        self.listening.close()

    def _converse(self, sock: socket) -> None:
        try:
            sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            sock.settimeout(_IDLE)
            _Connection(sock).answer(self.handler)
        except (Lost, OSError):
            pass  # whoever asked is gone
        finally:
            sock.close()
            self._room.leave()


class _Room:
    """For so many; whoever enters one that is full waits. One thread enters, any may leave."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._counting = allocate_lock()
        self._full = allocate_lock()  # held while nobody may enter
        self._quiet = allocate_lock()  # held while nobody has left since somebody waited for it
        self._quiet.acquire()

    def enter(self) -> None:
        with self._full:
            pass
        with self._counting:
            self.left -= 1
            if not self.left:
                self._full.acquire()

    def leave(self) -> None:
        with self._counting:
            if not self.left:
                self._full.release()
            self.left += 1
            if self._quiet.locked():
                self._quiet.release()

    def wait_for_leaving(self, seconds: float) -> None:
        """For no longer than that. Who has left before counts once."""
        self._quiet.acquire(timeout=seconds)


class _Connection:
    """One connection. The parser calls the ``on_`` methods while it is fed."""

    def __init__(self, sock: socket) -> None:
        self.sock = sock
        self.parser = HttpRequestParser(self)
        self.requests: list[Request] = []  # that have begun to arrive, oldest first
        self.current: Request | None = None  # that is arriving
        self._url = b""
        self._head = 0  # bytes of the head that is arriving
        self._is_last = False  # what comes next is not HTTP, or would not be if we had agreed

    def answer(self, handler: Callable[[Request], Response]) -> None:
        while True:
            try:
                request = self._next()
            except HttpParserError as error:
                self._send(Response.of({"message": f"this is not HTTP: {error}"}, 400), "", keep=False)
                return
            if request is None:
                return
            keep = request.headers.get("connection", "").lower() != "close" and not self._is_last
            try:
                response = handler(request)
                keep = keep and self._is_drained(request)
            except HttpParserError:
                response, keep = Response.of({"message": "the body is not as announced"}, 400), False
            except (Lost, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - a mistake of ours, which whoever asked shall hear of
                response, keep = Response.of({"message": f"{type(error).__name__}: {error}"}, 500), False
            self._send(response, request.method, keep=keep)
            if not keep:
                return

    def receive(self) -> None:
        """Take in what has come, waiting for it. Raises ``Lost``."""
        data = self.sock.recv(_PIECE)
        if not data:
            raise Lost
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            self._is_last = True

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def is_open(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        if not poll.poll(0):
            return True
        try:
            return self.sock.recv(1, MSG_PEEK) != b""
        except OSError:
            return False

    def _next(self) -> Request | None:
        while not self.requests:
            try:
                self.receive()
            except (Lost, TimeoutError, ConnectionError):
                return None
        return self.requests.pop(0)

    def _is_drained(self, request: Request) -> bool:
        """What the handler has not read of a body is in the way of the next request. A little is skipped."""
        for _ in range(4):
            request.pieces.clear()
            if request.complete:
                return True
            self.receive()
        return False

    def _send(self, response: Response, method: str, *, keep: bool) -> None:
        body = response.body
        length = body.size if isinstance(body, File) else len(body)
        lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, '')}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        if response.status != 204 and "Content-Length" not in response.headers:
            lines.append(f"Content-Length: {length}")
        if not keep:
            lines.append("Connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
        if isinstance(body, File):
            self._send_file(head, body, with_content=method != "HEAD")
        else:
            self.send(head if method == "HEAD" else head + body)

    def _send_file(self, head: bytes, file: File, *, with_content: bool) -> None:
        try:
            self.sock.sendall(head, MSG_MORE if with_content else 0)
            offset, left = file.offset, file.size if with_content else 0
            while left:
                sent = self._push(file.handle, offset, left)
                if not sent:
                    raise Lost  # the file has become shorter than was announced
                offset, left = offset + sent, left - sent
        finally:
            os.close(file.handle)

    def _push(self, handle: int, offset: int, left: int) -> int:
        """Let the kernel send; a socket with a time-out does not wait by itself."""
        while True:
            try:
                return os.sendfile(self.sock.fileno(), handle, offset, min(left, 1 << 26))
            except BlockingIOError:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        if not poll.poll(_IDLE * 1000):
            raise Lost

    # --- what the parser finds ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.current = Request(self)
        self._url, self._head = b"", 0

    def on_url(self, url: bytes) -> None:
        self._count(url)
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        assert self.current is not None
        self.current.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self.current is not None
        request = self.current
        request.method = self.parser.get_method().decode("latin-1")
        path, _, query = self._url.decode("latin-1").partition("?")
        request.path = path
        request.query = _query(query)
        self.requests.append(request)

    def on_body(self, body: bytes) -> None:
        assert self.current is not None
        self.current.pieces.append(body)

    def on_message_complete(self) -> None:
        assert self.current is not None
        self.current.complete = True

    def _count(self, data: bytes) -> None:
        self._head += len(data)
        if self._head > _LONGEST_HEAD:
            raise HttpParserError("the head is too long")


def _query(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split("&") if pair)
    return {decoded(name.replace("+", " ")): decoded(value.replace("+", " ")) for name, _, value in pairs}
