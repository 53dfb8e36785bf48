"""Files of any size go in and out without being in memory: a sandbox pays for what its server holds."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_client import Talker

SIZE = 100_000_000
PIECE = bytes(1_000_000)
# Bytes; a tenth of the file.
ROOM = 10_000_000
_FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="large"\r\n\r\n', b"\r\n--x--\r\n"
_MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}
_SERVE = """
import socket, sys
from time import monotonic
from sandpool.sandboxd.files_api import FilesApi
from sandpool.sandboxd.http import Server
from sandpool.sandboxd.root import Root
from sandpool.sandboxd.runtime_api import RuntimeApi

listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
root = Root(sys.argv[2])
api = {"runtime": RuntimeApi(root), "files": FilesApi(root, monotonic)}[sys.argv[1]]
Server(listening, api.handle).serve()
"""


class Sandbox(Talker):
    """A sandbox whose server is a separate process."""

    def __init__(self, port: int, pid: int) -> None:
        super().__init__(port)
        self.pid = pid

    @property
    def most_memory(self) -> int:
        """Bytes that its server has had at once, so far."""
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def send(self, method: str, path: str, headers: dict[str, str], before: bytes = b"", after: bytes = b"") -> int:
        """A large file. The status."""
        size = len(before) + SIZE + len(after)
        self.connection.request(method, path, self._content(before, after), {**headers, "Content-Length": str(size)})
        answer = self.connection.getresponse()
        answer.read()
        return answer.status

    def _content(self, before: bytes, after: bytes) -> Iterator[bytes]:
        yield before
        for _ in range(SIZE // len(PIECE)):
            yield PIECE
        yield after

    def receive(self, path: str) -> int:
        """How many bytes there are."""
        self.connection.request("GET", path)
        answer, size = self.connection.getresponse(), 0
        while piece := answer.read(len(PIECE)):
            size += len(piece)
        return size


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sandbox]:
    command = [sys.executable, "-c", _SERVE, request.param, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        sandbox = Sandbox(int(process.stdout.readline()), process.pid)
        try:
            yield sandbox
        finally:
            sandbox.connection.close()
            process.kill()


@pytest.mark.parametrize(
    ("sandbox", "method", "path", "headers", "form"),
    [
        ("runtime", "POST", "/upload", _MULTIPART, _FORM),
        ("files", "PUT", "/v1/files/large", _MULTIPART, _FORM),
        ("files", "PUT", "/v1/files/large", {}, (b"", b"")),
    ],
    ids=["runtime", "files-form", "files"],
    indirect=["sandbox"],
)
def test_large_upload_is_streamed(
    sandbox: Sandbox, method: str, path: str, headers: dict[str, str], form: tuple[bytes, bytes], tmp_path: Path
) -> None:
    before = sandbox.most_memory
    assert sandbox.send(method, path, headers, *form) in (200, 204)
    assert (tmp_path / "large").stat().st_size == SIZE
    assert sandbox.most_memory - before < ROOM


@pytest.mark.parametrize(
    ("sandbox", "path"),
    [("runtime", "/download/large"), ("files", "/v1/files/large")],
    ids=["runtime", "files"],
    indirect=["sandbox"],
)
def test_large_download_is_streamed(sandbox: Sandbox, path: str, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(SIZE)
    before = sandbox.most_memory
    assert sandbox.receive(path) == SIZE
    assert sandbox.most_memory - before < ROOM
