"""The fast way of ``sandpool run``: one request to the local home over its Unix socket.

A warm sandbox takes the home about 20 ms, and a Python program that imports click, asyncio and TLS takes 100 ms before
it can ask for one. This client therefore imports next to nothing and knows nothing: it sends its arguments to the home,
which parses and performs them with the code of the command itself (``cli.run_server``), and connects its standard
streams. Whatever is not certain goes the ordinary way: another API than the local home, a home that does not answer or
is of another version, an option that needs files or the API of this process, a mistake in the options.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

from sandpool import __version__
from sandpool.cli import run_frames as frames
from sandpool.cli import streams
from sandpool.home import locations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Variables that choose an API, or a behaviour, that only the ordinary way knows.
_ELSEWHERE = ("KUBECONFIG", "SUDO_UID", locations.TRACEBACK)


class ConnectionLost(Exception):
    """The home ended before the command did."""


def attempt(arguments: list[str], environ: Mapping[str, str] = os.environ) -> int | None:
    """Perform ``sandpool run`` with these arguments, and return the exit code; None if nothing was done.

    Raises ``OSError`` if the standard streams fail, and ``ConnectionLost``; the claim is released in both cases."""
    connection = _connect(environ)
    if connection is None:
        return None
    with connection:
        return _Conversation(connection).perform(arguments, environ)


def _connect(environ: Mapping[str, str]) -> socket.socket | None:
    """Connect to the home that the commands of this user talk to, if there is no doubt which one it is."""
    home = environ.get("HOME")
    if not home or any(environ.get(name) for name in _ELSEWHERE):
        return None
    if os.path.lexists(f"{locations.config_directory(environ, home)}/{locations.CONTEXT}"):
        return None
    register = f"{locations.data_directory(environ, home)}/{locations.REGISTER}"
    try:
        found = [name for name in os.listdir(register) if os.path.exists(f"{register}/{name}/{locations.DESCRIPTION}")]
    except OSError:
        return None
    best = next((name for name in locations.PREFERRED if name in found), found[0] if len(found) == 1 else None)
    return None if best is None else _dial(f"{register}/{best}")


def _dial(directory: str) -> socket.socket | None:
    """Connect to the home with this description. A home that was killed leaves a socket that refuses."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The address of a socket has at most 107 bytes, which a path through a descriptor never exceeds.
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{place}/{locations.RUN_SOCKET}")
        finally:
            os.close(place)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid, gid
        if int.from_bytes(peer[4:8], sys.byteorder) in (0, os.geteuid()):
            return connection
    except OSError:
        pass
    connection.close()
    return None


class _Conversation:
    """One request. The home always reads, because it grants every piece of input (WANT): sending never blocks long."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()
        self._terminal: streams.RawTerminal | None = None
        self._wanted = 0  # pieces of input that the home accepts
        self._feeding = False
        self._signal = 0  # the one that ends this program
        self._failure: OSError | None = None  # of the standard streams

    def perform(self, arguments: list[str], environ: Mapping[str, str]) -> int | None:
        console = frames.INTERACTIVE * streams.has_piped_input() | frames.TERMINAL * streams.is_terminal()
        console |= frames.MESSAGES_ON_TERMINAL * os.isatty(streams.STDERR)
        named = {os.fsencode(word): os.fsencode(environ[word]) for word in arguments if word in environ}
        request = frames.encode_request(__version__, console, list(map(os.fsencode, arguments)), named)
        with _Signals() as signals:
            try:
                self._send(frames.REQUEST, request)
                code = self._converse(signals)
            finally:
                self._end_command()
        if self._failure is not None:
            raise self._failure
        return 128 + self._signal if self._signal else code

    def _converse(self, signals: _Signals) -> int | None:
        """Pass everything on until the home has finished; returns the exit code, None if it declined."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(signals.descriptor, select.POLLIN)
        while True:
            if feeding := self._feeding and self._wanted > 0:
                poll.register(streams.STDIN, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            if feeding:
                poll.unregister(streams.STDIN)
            if signals.descriptor in ready:
                self._take_signals(signals.read())
            if feeding and streams.STDIN in ready:
                piece = streams.read_input()
                self._feeding = bool(piece)
                self._wanted -= 1
                self._send(frames.INPUT, piece)
            if self._connection.fileno() in ready:
                for kind, payload in self._read():
                    if kind == frames.DECLINED:
                        return None
                    if kind == frames.EXIT:
                        return payload[0]
                    self._take(kind, payload)

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == frames.OUTPUT:
            self._write(streams.STDOUT, payload)
        elif kind in (frames.ERROR_OUTPUT, frames.MESSAGE):
            self._write(streams.STDERR, payload)
        elif kind == frames.WANT:
            self._wanted += len(payload)
        elif kind == frames.STARTED:
            self._feeding = bool(payload[0] & frames.INTERACTIVE)
            if payload[0] & frames.TERMINAL:
                self._terminal = streams.RawTerminal()
                self._send_size()
        elif kind == frames.ENDED:
            self._end_command()

    def _take_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGWINCH:
                self._send_size()
            elif not self._signal:
                self._signal = number
                self._send(frames.CANCEL)

    def _send_size(self) -> None:
        if self._terminal is not None and (size := streams.terminal_size()) is not None:
            self._send(frames.SIZE, b"".join(number.to_bytes(2, "big") for number in size))

    def _end_command(self) -> None:
        self._feeding = False
        if self._terminal is not None:
            self._terminal.restore()
            self._terminal = None

    def _write(self, descriptor: int, data: bytes) -> None:
        if self._failure is None:
            try:
                streams.write(descriptor, data)
            except OSError as error:
                self._failure = error
                self._send(frames.CANCEL)

    def _send(self, kind: int, payload: bytes = b"") -> None:
        try:
            self._connection.sendall(frames.frame(kind, payload))
        except OSError:
            return  # the home is gone, and reading tells

    def _read(self) -> Iterator[tuple[int, bytes]]:
        """Yield the complete frames that have arrived."""
        try:
            data = self._connection.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data and not self._signal and self._failure is None:
            raise ConnectionLost
        if not data:
            yield frames.EXIT, b"\1"
            return
        received = self._received
        received += data
        while len(received) >= frames.HEAD:
            kind, size = frames.head(received)
            if len(received) < frames.HEAD + size:
                return
            payload = bytes(received[frames.HEAD : frames.HEAD + size])
            del received[: frames.HEAD + size]
            yield kind, payload


class _Signals:
    """Turns the signals that end programs, and changes of the terminal's size, into bytes that can be read."""

    def __enter__(self) -> _Signals:
        self.descriptor, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._handlers = {number: signal.signal(number, _ignore) for number in (*_ENDING, signal.SIGWINCH)}
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self.descriptor)
        os.close(self._writing)

    def read(self) -> bytes:
        try:
            return os.read(self.descriptor, 64)
        except BlockingIOError:
            return b""


def _ignore(number: int, frame: object) -> None:
    """The number of the signal was written to the pipe."""
