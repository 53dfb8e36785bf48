"""A small HTTP/1.1 server: one thread per connection, streamed bodies, files sent by the kernel.

TLS, compression and HTTP/2 are left out on purpose. Clients reach a sandbox through a router or a tunnel that has them.

A client cannot occupy the server for free: the number of connections is limited (``_ConnectionSlots``), a head is
limited in size (``sandpool.sandboxd.http1``) and in time (``HEAD_SECONDS``), and a silent connection is closed.
"""

from __future__ import annotations

import os
import select
from _socket import AF_INET, IPPROTO_TCP, MSG_MORE, MSG_PEEK, SHUT_RDWR, SHUT_WR, SOCK_STREAM, TCP_NODELAY, socket
from _thread import allocate_lock, start_new_thread
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from time import monotonic

from sandpool.sandboxd.encoding import to_json, unquote
from sandpool.sandboxd.http1 import (
    BodyReader,
    HeadBuffer,
    HeadTooLarge,
    MalformedRequest,
    RequestHead,
    web_page_refusal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HEAD_SECONDS = 30.0  # from the first byte of a head to its last
IDLE_SECONDS = 60.0  # a connection may be silent between requests, within a body or while a response is sent
_RECEIVE_BYTES = 1 << 18
_MAX_CONNECTIONS = 256
_DESCRIPTORS_PER_CONNECTION = 4  # the socket, and the files of a command or a download
# accept() fails with these until a descriptor or memory is released, here or in another process.
_EXHAUSTED = (EMFILE, ENFILE, ENOBUFS, ENOMEM)
_ACCEPT_RETRY_SECONDS = 0.1
# Bytes of a body that the handler did not read are skipped to keep the connection, up to this many reads.
_MAX_SKIPPED_READS = 4
_LINGER_SECONDS = 1.0
_REASONS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    507: "Insufficient Storage",
}


class ConnectionLost(Exception):
    """The client closed the connection within a request or a response."""


class _HeadTimeout(Exception):
    """The head of a request did not arrive within the time limit."""


class Request:
    """One request. ``path`` is still percent-encoded; handlers decode it once. Header names are in lower case."""

    def __init__(self, connection: _Connection, head: RequestHead) -> None:
        self._connection = connection
        self._reader = BodyReader(head)
        self.method = head.method
        self.path, _, query = head.target.partition("?")
        self.query = _query(query)
        self.headers = head.headers
        self.keeps_alive = head.keeps_alive
        self._sends_continue = self.headers.get("expect", "").lower() == "100-continue" and not head.is_http_1_0

    @property
    def announced_bytes(self) -> int:
        """Length of the body if the client has announced it, else 0."""
        return int(self.headers.get("content-length", "0"))

    def body(self) -> Iterator[bytes]:
        """Yield the rest of the body as it arrives."""
        if self._sends_continue and not self._reader.is_complete and not self._connection.has_data:
            self._sends_continue = False
            self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._reader.is_complete:
            piece = self._connection.read_body(self._reader)
            if piece:
                yield piece

    def whole(self, limit: int) -> bytes | None:
        """Return the body, None if it has more than ``limit`` bytes."""
        parts: list[bytes] = []
        for piece in self.body():
            limit -= len(piece)
            if limit < 0:
                return None
            parts.append(piece)
        return b"".join(parts)

    def skip_body(self) -> bool:
        """Skip what the handler did not read. Return False if that is too much to wait for."""
        reads = 0
        while not self._reader.is_complete:
            if not self._connection.has_data:
                reads += 1
                if reads > _MAX_SKIPPED_READS:
                    return False
            self._connection.read_body(self._reader)
        return True

    @property
    def is_read(self) -> bool:
        """Whether the whole body has been read."""
        return self._reader.is_complete

    def is_wanted(self) -> bool:
        """Return whether the client is still connected and waits for the response."""
        return self._connection.is_open()


class File:
    """A range of an open file as a response body. The server closes the file after it was sent."""

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
        """Make a JSON response."""
        return cls(status, to_json(value).encode(), {"Content-Type": "application/json"})


class Server:
    """Serves HTTP on a listening socket. ``serve`` returns after ``stop``."""

    def __init__(
        self, listening: socket, handler: Callable[[Request], Response], head_seconds: float = HEAD_SECONDS
    ) -> None:
        self.listening = listening
        self.handler = handler
        self.head_seconds = head_seconds
        descriptors = os.sysconf("SC_OPEN_MAX")
        self._slots = _ConnectionSlots(min(_MAX_CONNECTIONS, max(descriptors // _DESCRIPTORS_PER_CONNECTION, 1)))
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
                    # New clients wait in the kernel's backlog meanwhile.
                    self._slots.wait_for_release(_ACCEPT_RETRY_SECONDS)
                continue
            self._slots.acquire()
            sock = socket(AF_INET, SOCK_STREAM, 0, descriptor)
            try:
                start_new_thread(self._serve_connection, (sock,))
            except RuntimeError:  # processes of the sandbox have used up the threads; the next client may succeed
                sock.close()
                self._slots.release()

    def stop(self) -> None:
        self._stopping = True
        # close() alone does not interrupt a thread that is blocked in accept().
        try:  # noqa: SIM105 - contextlib is not imported
            self.listening.shutdown(SHUT_RDWR)
        except OSError:
            pass
        self.listening.close()

    def _serve_connection(self, sock: socket) -> None:
        try:
            sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            sock.settimeout(IDLE_SECONDS)
            _Connection(sock, self.head_seconds).serve(self.handler)
        except (ConnectionLost, OSError):
            pass  # the client is gone
        finally:
            sock.close()
            self._slots.release()


class _ConnectionSlots:
    """Counting semaphore made of ``_thread`` locks. One thread acquires, any thread releases."""

    def __init__(self, size: int) -> None:
        self.free = size
        self._counting = allocate_lock()
        self._full = allocate_lock()  # held while no slot is free
        self._unreleased = allocate_lock()  # held until a slot is released
        self._unreleased.acquire()

    def acquire(self) -> None:
        """Take a slot, waiting until one is free."""
        with self._full:
            pass
        with self._counting:
            self.free -= 1
            if not self.free:
                self._full.acquire()

    def release(self) -> None:
        with self._counting:
            if not self.free:
                self._full.release()
            self.free += 1
            if self._unreleased.locked():
                self._unreleased.release()

    def wait_for_release(self, seconds: float) -> None:
        """Wait until a slot is released, at most ``seconds``. Releases before the call count as one."""
        self._unreleased.acquire(timeout=seconds)


class _Connection:
    """One connection and its requests, one after the other.

    ``_data`` holds what was received last, from ``_start`` on what is not parsed yet: with pipelining the next request.
    """

    def __init__(self, sock: socket, head_seconds: float) -> None:
        self.sock = sock
        self.head_seconds = head_seconds
        self._heads = HeadBuffer()
        self._data = b""
        self._start = 0

    def serve(self, handler: Callable[[Request], Response]) -> None:
        while True:
            try:
                request = self._next()
            except HeadTooLarge as error:
                self._reject(431, f"the head is too large: {error}")
                return
            except MalformedRequest as error:
                self._reject(400, f"this is not HTTP: {error}")
                return
            except _HeadTimeout:
                self._reject(408, "the head did not arrive in time")
                return
            if request is None:
                return
            keep = request.keeps_alive
            try:
                why = web_page_refusal(request.headers, self.sock.getpeername()[0], self.sock.getsockname()[0])
                response = Response.of({"message": why}, 403) if why else handler(request)
                keep = keep and request.skip_body()
            except MalformedRequest as error:
                response, keep = Response.of({"message": f"the body is malformed: {error}"}, 400), False
            except (ConnectionLost, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - a defect here is reported to the client
                response, keep = Response.of({"message": f"{type(error).__name__}: {error}"}, 500), False
            self._send(response, request.method, keep=keep)
            if not keep:
                if not request.is_read:
                    self._linger()
                return

    @property
    def has_data(self) -> bool:
        """Whether bytes have been received that are not parsed yet."""
        return self._start < len(self._data)

    def read_body(self, reader: BodyReader) -> bytes:
        """Return the next piece of a body, receiving if nothing is left to parse. Raises ``ConnectionLost``."""
        if not self.has_data:
            self._receive()
        piece, self._start = reader.feed(self._data, self._start)
        return piece

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
        """Return the next request as soon as its head is complete, None if the client sends no further one."""
        deadline: float | None = None
        try:
            while True:
                if self.has_data:
                    found = self._heads.take(self._data, self._start)
                    if found is not None:
                        head, self._start = found
                        return Request(self, RequestHead(head))
                    self._start = len(self._data)
                    if deadline is None:
                        deadline = monotonic() + self.head_seconds
                if deadline is not None:
                    left = deadline - monotonic()
                    if left <= 0:
                        raise _HeadTimeout
                    self.sock.settimeout(left)
                try:
                    self._receive()
                except TimeoutError:
                    if deadline is None:
                        return None
                except (ConnectionLost, ConnectionError):
                    return None
        finally:
            if deadline is not None:
                self.sock.settimeout(IDLE_SECONDS)

    def _receive(self) -> None:
        self._data, self._start = self.sock.recv(_RECEIVE_BYTES), 0
        if not self._data:
            raise ConnectionLost

    def _reject(self, status: int, message: str) -> None:
        """Answer and end the connection."""
        self._send(Response.of({"message": message}, status), "", keep=False)
        self._linger()

    def _linger(self) -> None:
        """Read for a moment: closing with unread bytes would send RST, which discards the response on its way. A client
        that sends a large body learns only from this pause that it should stop."""
        self.sock.shutdown(SHUT_WR)
        deadline = monotonic() + _LINGER_SECONDS
        while (left := deadline - monotonic()) > 0:
            self.sock.settimeout(left)
            self._receive()

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
                sent = self._send_range(file.handle, offset, left)
                if not sent:
                    raise ConnectionLost  # the file was truncated: the announced length cannot be kept
                offset, left = offset + sent, left - sent
        finally:
            os.close(file.handle)

    def _send_range(self, handle: int, offset: int, left: int) -> int:
        """Return how many bytes sendfile() has sent. A socket with a time limit does not block by itself."""
        while True:
            try:
                return os.sendfile(self.sock.fileno(), handle, offset, min(left, 1 << 26))
            except BlockingIOError:
                self._wait_until_writable()

    def _wait_until_writable(self) -> None:
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        if not poll.poll(IDLE_SECONDS * 1000):
            raise ConnectionLost


def _query(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split("&") if pair)
    return {unquote(name.replace("+", " ")): unquote(value.replace("+", " ")) for name, _, value in pairs}
