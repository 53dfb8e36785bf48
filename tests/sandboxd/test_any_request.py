"""No request to sandboxd, with any directory tree, reads or changes files outside the root."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sandpool.sandboxd.files_api import FilesApi
from sandpool.sandboxd.root import Root
from sandpool.sandboxd.runtime_api import RuntimeApi
from tests.support.http_client import SandboxdResponse, Talker, serving

SECRET = b"outside of the sandbox"
#: Names as they are on the disk, and as they are in a path.
PLAIN = ("a", "b", "dir", "größe", "e%20f", "-rf", ".hidden", "...", "a b", "\udcff", "q?#&", "\\", "x" * 255)
TRICKS = (
    *("..", ".", "", "%2e%2e", "..%2f..", "%2F", "%252e%252e", "link", "out", "loop", "%00", "x" * 300, "a\r\nb", "~"),
    *("outside", "secret", "%c0%ae%c0%ae", "..;", "%", "%zz", "\\..\\.."),
)
NAMES = st.sampled_from(PLAIN).map(lambda name: quote(name, safe="", errors="surrogateescape")) | st.sampled_from(
    TRICKS
)
PATHS = st.lists(NAMES, max_size=5).map("/".join).map(lambda path: path.replace("\r\n", "%0D%0A"))
CONTENT = st.binary(max_size=200)
LINKS = st.sampled_from(
    ["..", "../outside", "../outside/secret", "loop", "dir", "dir/../a", "/", "/etc/passwd", "link", "nothing"]
)


@contextmanager
def sandbox() -> Iterator[tuple[Path, Talker, Talker]]:
    """The directory around its root, and the older and the newer of its dialects."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, directory)
        (directory / "outside").mkdir()
        (directory / "outside" / "secret").write_bytes(SECRET)
        root = Root(str(directory / "root"))
        stack.callback(root.close)
        older = stack.enter_context(serving(RuntimeApi(root).handle))
        newer = stack.enter_context(serving(FilesApi(root, monotonic).handle))
        yield directory, older, newer


class Tree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self.directory, self.older, self.newer = self._stack.enter_context(sandbox())
        self.root = self.directory / "root"
        self.newer.ask("GET", "/v1/health")
        self.older.ask("GET", "/")
        self.open = len(os.listdir("/proc/self/fd"))

    def teardown(self) -> None:
        end = monotonic() + 10.0
        while len(os.listdir("/proc/self/fd")) > self.open:  # what was sent is closed a moment later
            assert monotonic() < end, "descriptors stay open"
        self._stack.close()

    @rule(path=PATHS, content=CONTENT)
    def put(self, path: str, content: bytes) -> None:
        if self.asked(self.newer, "PUT", f"/v1/files/{path}", content).status == 204:
            assert self.asked(self.newer, "GET", f"/v1/files/{path}").body == content

    @rule(path=PATHS)
    def get(self, path: str) -> None:
        self.asked(self.newer, "GET", f"/v1/files/{path}")
        self.asked(self.newer, "HEAD", f"/v1/files/{path}")

    @rule(path=PATHS, recursive=st.booleans())
    def delete(self, path: str, recursive: bool) -> None:
        self.asked(self.newer, "DELETE", f"/v1/files/{path}?recursive={recursive}")

    @rule(path=PATHS, verb=st.sampled_from(["download", "list", "exists"]))
    def look(self, path: str, verb: str) -> None:
        self.asked(self.older, "GET", f"/{verb}/{path}")

    @rule(name=st.sampled_from([*PLAIN, *TRICKS, "../outside/secret", "link/x", "/etc/passwd"]), content=CONTENT)
    def upload(self, name: str, content: bytes) -> None:
        name = name.replace("\r\n", "").replace('"', "")
        head = f'--frontier\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = head.encode(errors="surrogateescape") + content + b"\r\n--frontier--\r\n"
        kind = {"Content-Type": "multipart/form-data; boundary=frontier"}
        answer = self.older.ask("POST", "/upload", body, kind)
        assert answer.status in (200, 400, 403, 422, 500), answer.body

    @rule(name=st.sampled_from(["link", "out", "loop", "a", "dir/link"]), where=LINKS)
    def link(self, name: str, where: str) -> None:
        """Create a link, as code in the sandbox can at any time."""
        place = self.root / name
        if place.parent.is_dir() and place.parent.resolve().is_relative_to(self.root) and not os.path.lexists(place):
            place.symlink_to(where)

    @rule()
    def make_directory(self) -> None:
        if not os.path.lexists(self.root / "dir"):
            (self.root / "dir").mkdir()

    @invariant()
    def nothing_outside_the_root_has_changed(self) -> None:
        assert sorted(os.listdir(self.directory)) == ["outside", "root"]
        assert os.listdir(self.directory / "outside") == ["secret"]
        assert (self.directory / "outside" / "secret").read_bytes() == SECRET

    @invariant()
    def no_temporary_file_is_left(self) -> None:
        for directory, _, files in os.walk(self.root):
            unfinished = [name for name in files if name.startswith(".") and len(name.rpartition(".")[2]) == 12]
            assert not unfinished, (directory, unfinished)

    def asked(self, talker: Talker, method: str, target: str, body: bytes | None = None) -> SandboxdResponse:
        answer = talker.ask(method, target.encode("ascii", "surrogateescape").decode("latin-1"), body)
        # 5xx means "try again", which is wrong here.
        assert answer.status < 500, (method, target, answer.status, answer.body)
        assert SECRET not in answer.body
        assert b"root:x:0:0" not in answer.body
        return answer


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=40, stateful_step_count=15)


FORMS = st.lists(
    st.sampled_from(
        [
            *(b"--frontier", b"--frontier--", b"\r\n", b"\r\n\r\n", b"content", b'filename="a"', b'name="file"', b"\0"),
            *(b"Content-Disposition: form-data; ", b'; filename="../outside/x"', b"; filename*=utf-8''..%2Fx", b"--"),
            *(b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n', b"x" * 5000, b"\n", b"\xff"),
        ]
    ),
    max_size=12,
).map(b"".join)
KINDS = st.sampled_from(
    [
        *("multipart/form-data; boundary=frontier", "multipart/form-data; boundary=", "multipart/form-data", ""),
        *('multipart/form-data; boundary="fro\\"ntier"', "multipart/form-data; boundary=" + "x" * 300, "text/plain"),
    ]
)


@given(FORMS, KINDS)
def test_hostile_forms_change_nothing_outside_the_root(body: bytes, kind: str) -> None:
    with sandbox() as (directory, older, newer):
        for talker, method, path in ((older, "POST", "/upload"), (newer, "PUT", "/v1/files/form")):
            answer = talker.ask(method, path, body, {"Content-Type": kind})
            assert answer.status in (200, 204, 400, 403, 422), answer.body
        assert sorted(os.listdir(directory)) == ["outside", "root"]
        assert sorted(os.listdir(directory / "outside")) == ["secret"]


HEADS = st.lists(
    st.sampled_from(
        [
            *(
                b"GET / HTTP/1.1\r\n",
                b"POST /execute HTTP/1.1\r\n",
                b"PUT /v1/files/a HTTP/1.1\r\n",
                b"HTTP/1.1 200\r\n",
            ),
            *(
                b"Content-Length: 5\r\n",
                b"Content-Length: -1\r\n",
                b"Content-Length: 99999999999999999999\r\n",
                b"\r\n",
            ),
            *(
                b"Transfer-Encoding: chunked\r\n",
                b"5\r\nabcde\r\n",
                b"0\r\n\r\n",
                b"zz\r\n",
                b"Expect: 100-continue\r\n",
            ),
            *(b'{"command": "true"}', b'{"command": 1}', b"[[[[", b"Range: bytes=9-1\r\n", b"Connection: close\r\n"),
            *(b"Upgrade: x\r\nConnection: upgrade\r\n", b"A" * 9_000, b"\0", b"X: \xff\r\n", b"\n\n", b" folded\r\n"),
        ]
    ),
    max_size=10,
).map(b"".join)


@given(HEADS | st.binary(max_size=300))
def test_server_survives_hostile_heads(data: bytes) -> None:
    with sandbox() as (_, older, newer):
        for talker, path in ((older, "/"), (newer, "/v1/health")):
            talker.raw(data)
            assert talker.ask("GET", path).status == 200
