from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandpool.sandboxd.files_api import FilesApi
from sandpool.sandboxd.root import Root
from tests.support.http_client import Talker, serving


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("secret")
    return tmp_path / "root"


@pytest.fixture
def api(directory: Path) -> Iterator[FilesApi]:
    root = Root(str(directory))
    yield FilesApi(root, lambda: 0.0)
    root.close()


@pytest.fixture
def talker(api: FilesApi) -> Iterator[Talker]:
    with serving(api.handle) as talker:
        yield talker


class TestReading:
    def test_file_is_returned_with_its_headers(self, talker: Talker, directory: Path) -> None:
        (directory / "file").write_bytes(b"content")
        os.utime(directory / "file", (0, 0))
        answer = talker.ask("GET", "/v1/files/file")
        assert (answer.status, answer.body) == (200, b"content")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["last-modified"] == "Thu, 01 Jan 1970 00:00:00 GMT"

    def test_head_request_returns_no_content(self, talker: Talker, directory: Path) -> None:
        (directory / "file").write_bytes(b"content")
        answer = talker.ask("HEAD", "/v1/files/file")
        assert (answer.status, answer.headers["content-length"], answer.body) == (200, "7", b"")
        assert talker.ask("HEAD", "/v1/files/none").status == 404

    @pytest.mark.parametrize(
        ("wanted", "status", "content", "where"),
        [
            ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
            ("bytes=7-", 206, b"789", "bytes 7-9/10"),
            ("bytes=-2", 206, b"89", "bytes 8-9/10"),
            ("bytes=-20", 206, b"0123456789", "bytes 0-9/10"),
            ("bytes=5-100", 206, b"56789", "bytes 5-9/10"),
            ("nonsense", 200, b"0123456789", None),
            ("bytes=-", 200, b"0123456789", None),
        ],
    )
    def test_range_is_returned(
        self, talker: Talker, directory: Path, wanted: str, status: int, content: bytes, where: str | None
    ) -> None:
        (directory / "file").write_bytes(b"0123456789")
        answer = talker.ask("GET", "/v1/files/file", headers={"Range": wanted})
        assert (answer.status, answer.body, answer.headers.get("content-range")) == (status, content, where)

    def test_range_beyond_the_end_is_not_satisfiable(self, talker: Talker, directory: Path) -> None:
        (directory / "file").write_bytes(b"0123456789")
        assert talker.ask("GET", "/v1/files/file", headers={"Range": "bytes=10-"}).status == 416

    @pytest.mark.parametrize("path", ["", "/", "/.", "/%2E", "/%2F", "/a/.."])
    def test_root_is_listed_under_all_its_names(self, talker: Talker, directory: Path, path: str) -> None:
        (directory / "a").mkdir()
        answer = talker.ask("GET", f"/v1/files{path}")
        assert answer.status == 200
        assert [entry["name"] for entry in answer.json["entries"]] == ["a"]

    def test_directory_is_listed(self, talker: Talker, directory: Path) -> None:
        (directory / "d" / "sub").mkdir(parents=True)
        (directory / "d" / "file").write_bytes(b"123")
        (directory / "d" / "file").chmod(0o640)
        (directory / "d" / "link").symlink_to("file")
        (directory / "d" / "broken").symlink_to("none")
        (directory / "d" / "out").symlink_to("../../outside")
        os.utime(directory / "d" / "file", (86400, 86400.7))
        answer = talker.ask("GET", "/v1/files/d").json
        assert answer["path"] == "/d"
        file, link, sub = answer["entries"]
        expected = {"size": 3, "type": "file", "modified_at": "1970-01-02T00:00:00Z", "mode": "0640"}
        assert file == {"name": "file", **expected}
        assert link == {"name": "link", **expected}
        assert (sub["name"], sub["type"]) == ("sub", "directory")

    @pytest.mark.parametrize(
        ("path", "status", "code"),
        [
            ("none", 404, "NOT_FOUND"),
            ("file/below", 404, "NOT_FOUND"),
            ("..%2Foutside", 403, "PERMISSION_DENIED"),
            ("out", 403, "PERMISSION_DENIED"),
            ("pipe", 400, "INVALID_ARGUMENT"),
        ],
    )
    def test_unreadable_path_has_a_status_and_a_code(
        self, talker: Talker, directory: Path, path: str, status: int, code: str
    ) -> None:
        (directory / "file").write_bytes(b"")
        (directory / "out").symlink_to("../outside")
        os.mkfifo(directory / "pipe")
        answer = talker.ask("GET", f"/v1/files/{path}")
        assert (answer.status, answer.json["code"]) == (status, code)


class TestWriting:
    def test_write_creates_parent_directories(self, talker: Talker, directory: Path) -> None:
        assert talker.ask("PUT", "/v1/files/a%2Fb%20c%2Ffile", b"content").status == 204
        assert (directory / "a" / "b c" / "file").read_bytes() == b"content"
        assert (directory / "a" / "b c" / "file").stat().st_mode & 0o777 == 0o644

    def test_write_replaces_a_file(self, talker: Talker, directory: Path) -> None:
        (directory / "file").write_bytes(b"a long content")
        assert talker.ask("PUT", "/v1/files/file?mode=0600", b"short").status == 204
        assert (directory / "file").read_bytes() == b"short"
        assert (directory / "file").stat().st_mode & 0o777 == 0o600
        assert os.listdir(directory) == ["file"]

    def test_file_of_a_form_is_written(self, talker: Talker, directory: Path) -> None:
        body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="ignored"\r\n\r\nin a form\r\n--x--\r\n'
        answer = talker.ask("PUT", "/v1/files/file", body, {"Content-Type": "multipart/form-data; boundary=x"})
        assert answer.status == 204
        assert (directory / "file").read_bytes() == b"in a form"

    def test_file_that_does_not_fit_is_rejected(
        self, talker: Talker, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sandpool.sandboxd.atomic_write._free_bytes", lambda directory: 1000)
        answer = talker.ask("PUT", "/v1/files/file", bytes(1001))
        assert (answer.status, answer.json["code"]) == (507, "RESOURCE_EXHAUSTED")
        assert answer.json["message"] == "1001 bytes do not fit: 1000 bytes are free"
        assert os.listdir(directory) == []

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("d", 400),
            ("", 400),
            ("file/below", 400),
            ("..%2Foutside", 403),
            ("out", 403),
            ("x?mode=9", 400),
            ("x?mode=07777", 400),
        ],
    )
    def test_unwritable_path_is_rejected(self, talker: Talker, directory: Path, path: str, status: int) -> None:
        (directory / "d").mkdir()
        (directory / "file").write_bytes(b"")
        (directory / "out").symlink_to("../outside")
        assert talker.ask("PUT", f"/v1/files/{path}", b"x").status == status
        assert (directory.parent / "outside").read_text() == "secret"


class TestDeleting:
    def test_files_and_directories_are_deleted(self, talker: Talker, directory: Path) -> None:
        (directory / "file").write_bytes(b"")
        (directory / "empty").mkdir()
        (directory / "full" / "sub").mkdir(parents=True)
        assert talker.ask("DELETE", "/v1/files/file").status == 204
        assert talker.ask("DELETE", "/v1/files/empty").status == 204
        assert talker.ask("DELETE", "/v1/files/full").status == 409
        assert talker.ask("DELETE", "/v1/files/full?recursive=true").status == 204
        assert talker.ask("DELETE", "/v1/files/full").status == 404
        assert os.listdir(directory) == []

    def test_deleting_a_link_keeps_its_target(self, talker: Talker, directory: Path) -> None:
        (directory / "kept").mkdir()
        (directory / "link").symlink_to("kept")
        (directory / "out").symlink_to("../outside")
        assert talker.ask("DELETE", "/v1/files/link?recursive=true").status == 204
        assert talker.ask("DELETE", "/v1/files/out").status == 204
        assert os.listdir(directory) == ["kept"]
        assert (directory.parent / "outside").exists()

    def test_root_directory_is_never_deleted(self, talker: Talker, directory: Path) -> None:
        (directory / "a" / "b").mkdir(parents=True)
        (directory / "link").symlink_to("..")
        assert talker.ask("DELETE", "/v1/files/").status == 409
        assert talker.ask("DELETE", "/v1/files/?recursive=true").status == 204
        assert os.listdir(directory) == []
        assert (directory.parent / "outside").exists()


def test_health_reports_uptime_and_shutdown(talker: Talker, api: FilesApi) -> None:
    assert talker.ask("GET", "/v1/health").json == {"status": "ok", "uptime_seconds": 0}
    api.stopping = True
    assert talker.ask("GET", "/v1/health").status == 503


def test_metadata_hides_secrets(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SANDBOX_NAME", "SANDBOX_API_TOKEN", "SANDBOX_Private_X", "OTHER"):
        monkeypatch.setenv(name, "value")
    assert talker.ask("GET", "/v1/metadata").json == {"env": {"SANDBOX_NAME": "value"}}


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/v1/files/x", 405), ("GET", "/v2", 404)])
def test_unknown_resources_and_methods_are_rejected(talker: Talker, method: str, path: str, status: int) -> None:
    assert talker.ask(method, path).status == status


NAMES = st.sampled_from(["a", "b", "..", ".", "", "out", "loop", "in", "ü", "%2e%2e", "a" * 300, "x\0y", "\udc80"])
STEPS = st.lists(st.tuples(st.sampled_from(["GET", "HEAD", "PUT", "DELETE"]), st.lists(NAMES, max_size=5)), max_size=12)


@given(STEPS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_no_request_touches_files_outside_the_root(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[str]]]
) -> None:
    directory = tmp_path_factory.mktemp("around")
    inside, outside = directory / "root", directory / "outside"
    outside.mkdir()
    (outside / "a").write_text("untouched")
    root = Root(str(inside))
    (inside / "out").symlink_to("../outside")
    (inside / "in").symlink_to(inside)
    (inside / "loop").symlink_to("loop")
    with serving(FilesApi(root, lambda: 0.0).handle) as talker:
        for method, names in steps:
            path = "/".join(quote(name, safe="", errors="surrogateescape") for name in names)
            body = b"changed" if method == "PUT" else None
            answer = talker.ask(method, f"/v1/files/{path}?recursive=true", body)
            assert answer.status in (200, 204, 400, 403, 404, 409), (method, path, answer.body)
            assert b"untouched" not in answer.body
    root.close()
    assert sorted(os.listdir(directory)) == ["outside", "root"]
    assert os.listdir(outside) == ["a"]
    assert (outside / "a").read_text() == "untouched"
