"""HTTP client for a server of ``sandpool.sandboxd`` on an ephemeral port."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sandpool.sandboxd.http import HEAD_SECONDS, Request, Response, Server


class SandboxdResponse:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Talker:
    """Sends requests over one connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> SandboxdResponse:
        if isinstance(body, dict):
            body = json.dumps(body)
        self.connection.request(method, path, body, headers or {})
        return SandboxdResponse(self.connection.getresponse())

    def raw(self, data: bytes, *, half_close: bool = True) -> bytes:
        """Send bytes over a new connection and return all bytes until the server closes it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as sock:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := sock.recv(65536):
                answer += piece
        return answer


@contextmanager
def serving(handler: Callable[[Request], Response], *, head_seconds: float = HEAD_SECONDS) -> Iterator[Talker]:
    """Start a server on a free port, and yield a client of it."""
    server = Server(socket.create_server(("127.0.0.1", 0)), handler, head_seconds)
    thread = threading.Thread(target=server.serve)
    thread.start()
    talker = Talker(server.port)
    try:
        yield talker
    finally:
        talker.connection.close()
        server.stop()
        thread.join()
