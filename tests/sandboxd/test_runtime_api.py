from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandpool.sandboxd.root import Root
from sandpool.sandboxd.runtime_api import RuntimeApi
from tests.support.http_client import SandboxdResponse, Talker, serving

BOUNDARY = "frontier"


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[Talker]:
    root = Root(str(tmp_path / "app"))
    with serving(RuntimeApi(root, 300.0).handle) as talker:
        yield talker
    root.close()


def upload(talker: Talker, name: str, content: bytes, field: str = "file") -> SandboxdResponse:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
    body = head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    return talker.ask("POST", "/upload", body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})


def test_status_is_ok(talker: Talker) -> None:
    assert talker.ask("GET", "/").json == {"status": "ok", "message": "Sandbox Runtime is active."}


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("echo hello", {"stdout": "hello\n", "stderr": "", "exit_code": 0, "timed_out": False}),
        ("sh -c 'echo a >&2; exit 3'", {"stdout": "", "stderr": "a\n", "exit_code": 3, "timed_out": False}),
        ("echo a | tr a b && echo $((1+1))", {"stdout": "b\n2\n", "stderr": "", "exit_code": 0, "timed_out": False}),
        ("printf '\\377'", {"stdout": "\ufffd", "stderr": "", "exit_code": 0, "timed_out": False}),
        (
            "no-such-program",
            {
                "stdout": "",
                "stderr": "Failed to execute command: [Errno 2] No such file or directory: 'no-such-program'",
                "exit_code": 1,
                "timed_out": False,
            },
        ),
        (
            "echo 'a",
            {
                "stdout": "",
                "stderr": "Failed to execute command: No closing quotation",
                "exit_code": 1,
                "timed_out": False,
            },
        ),
    ],
)
def test_command_returns_output_and_code(talker: Talker, command: str, answer: Any) -> None:
    response = talker.ask("POST", "/execute", {"command": command})
    assert (response.status, response.json) == (200, answer)


def test_command_runs_in_the_base_directory(talker: Talker, tmp_path: Path) -> None:
    assert talker.ask("POST", "/execute", {"command": "pwd"}).json["stdout"] == f"{tmp_path}/app\n"


def test_command_times_out(talker: Talker) -> None:
    answer = talker.ask("POST", "/execute", {"command": "sh -c 'echo a; sleep 100'", "timeout_seconds": 0.3}).json
    assert answer == {
        "stdout": "a\n",
        "stderr": "Failed to execute command: it took longer than 0.3 seconds",
        "exit_code": 124,
        "timed_out": True,
    }


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"command": 3},
        {"command": None},
        [],
        "nonsense",
        {"command": "a", "timeout_seconds": -1},
        {"command": "a", "timeout_seconds": float("nan")},
    ],
)
def test_request_without_a_command_is_unprocessable(talker: Talker, body: Any) -> None:
    answer = talker.ask("POST", "/execute", body if isinstance(body, dict) else str(body))
    assert answer.status == 422
    assert answer.json["detail"][0]["loc"][0] == "body"


def test_uploaded_file_is_downloaded_unchanged(talker: Talker) -> None:
    content = os.urandom(1_000_000)
    assert upload(talker, "deep/er/file.bin", content).json == {
        "message": "File 'deep/er/file.bin' uploaded successfully."
    }
    answer = talker.ask("GET", "/download/deep/er/file.bin")
    assert (answer.status, answer.body) == (200, content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="file.bin"'


@pytest.mark.parametrize("name", ["e%20f", "ü", "a b", "-rf", "..hidden", "a;b"])
def test_hostile_file_names_are_plain_names(talker: Talker, tmp_path: Path, name: str) -> None:
    from urllib.parse import quote

    assert upload(talker, name, b"content").status == 200
    assert (tmp_path / "app" / name).read_bytes() == b"content"
    assert talker.ask("GET", f"/download/{quote(name)}").body == b"content"
    assert talker.ask("GET", f"/exists/{quote(name)}").json == {"path": name, "exists": True}


def test_directory_is_listed(talker: Talker, tmp_path: Path) -> None:
    (tmp_path / "app/sub").mkdir()
    (tmp_path / "app/file").write_text("four")
    (tmp_path / "app/link").symlink_to("/etc/passwd")
    found = talker.ask("GET", "/list/").json
    assert [(each["name"], each["type"]) for each in found] == [
        ("file", "file"),
        ("link", "file"),
        ("sub", "directory"),
    ]
    assert found[0]["size"] == 4
    assert isinstance(found[0]["mod_time"], float)
    assert talker.ask("GET", "/list/sub").json == []


@pytest.mark.parametrize(
    ("path", "status", "answer"),
    [
        ("/download/nothing", 404, {"message": "File not found"}),
        ("/download/", 404, {"message": "File not found"}),
        ("/list/nothing", 404, {"message": "Path is not a directory"}),
        ("/exists/nothing", 200, {"path": "nothing", "exists": False}),
        ("/exists/", 200, {"path": "", "exists": True}),
        ("/exists/..%2F..%2Fetc%2Fpasswd", 403, {"message": "Access denied"}),
        ("/download/../../etc/passwd", 403, {"message": "Access denied"}),
        ("/list/..", 403, {"message": "Access denied"}),
        ("/nothing", 404, {"detail": "Not Found"}),
        ("/execute", 405, {"detail": "Method Not Allowed"}),
    ],
)
def test_missing_and_forbidden_paths_are_rejected(talker: Talker, path: str, status: int, answer: Any) -> None:
    response = talker.ask("GET", path)
    assert (response.status, response.json) == (status, answer)


@pytest.mark.parametrize("path", ["x" * 300, "file/below", "loop", "socket", "a%00b"])
def test_impossible_path_is_not_found_rather_than_an_error(talker: Talker, tmp_path: Path, path: str) -> None:
    """Clients would retry a 5xx response."""
    (tmp_path / "app/file").write_text("x")
    (tmp_path / "app/loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "app/socket"))
        assert talker.ask("GET", f"/download/{path}").json == {"message": "File not found"}
        assert talker.ask("GET", f"/list/{path}").status == 404
        assert talker.ask("GET", f"/exists/{path}").json["exists"] is (path == "socket")


def test_link_out_of_the_base_directory_is_rejected(talker: Talker, tmp_path: Path) -> None:
    (tmp_path / "app/out").symlink_to("/etc")
    for path in ("/download/out/passwd", "/list/out", "/exists/out/passwd"):
        assert talker.ask("GET", path).status == 403
    assert upload(talker, "out/evil", b"x").status == 403
    assert upload(talker, "../evil", b"x").status == 403


def test_upload_without_a_file_is_unprocessable(talker: Talker) -> None:
    assert upload(talker, "a", b"x", field="other").status == 422
    assert talker.ask("POST", "/upload", b"abc").status == 422


def test_aborted_upload_keeps_the_old_file(talker: Talker, tmp_path: Path) -> None:
    upload(talker, "file", b"before")
    head = (
        b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=frontier\r\n"
        b"Content-Length: 100000\r\n\r\n"
        b'--frontier\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n\r\nafter'
    )
    talker.raw(head)
    assert (tmp_path / "app/file").read_bytes() == b"before"
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["file"]


def test_upload_onto_a_directory_is_rejected(talker: Talker, tmp_path: Path) -> None:
    (tmp_path / "app/sub").mkdir()
    answer = upload(talker, "sub", b"x")
    assert (answer.status, answer.json) == (400, {"message": "File upload failed: Is a directory"})


@pytest.mark.parametrize(
    ("name", "status"), [("file/x", 400), ("file/x/y", 400), ("n" * 300, 400), ("loop/x", 400), ("file", 200)]
)
def test_upload_that_the_path_does_not_allow_is_the_fault_of_the_client(
    talker: Talker, tmp_path: Path, name: str, status: int
) -> None:
    (tmp_path / "app/file").write_bytes(b"before")
    (tmp_path / "app/loop").symlink_to("loop")
    assert upload(talker, name, b"x").status == status


def test_truncated_output_is_flagged_and_counted(tmp_path: Path) -> None:
    root = Root(str(tmp_path / "app"))
    with serving(RuntimeApi(root, max_output=4).handle) as talker:
        answer = talker.ask("POST", "/execute", {"command": "echo 123456"}).json
        whole = talker.ask("POST", "/execute", {"command": "echo 123"}).json
    root.close()
    assert (answer["stdout"], answer["truncated"], answer["stdout_bytes"], answer["stderr_bytes"]) == (
        "1234",
        True,
        7,
        0,
    )
    assert "[stdout truncated to 4 of 7 bytes" in answer["stderr"], "clients that know nothing of the fields show this"
    assert whole == {"stdout": "123\n", "stderr": "", "exit_code": 0, "timed_out": False}


def test_upload_that_cannot_fit_is_rejected_before_it_is_read(
    talker: Talker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(talker, "old.txt", b"old")
    monkeypatch.setattr("sandpool.sandboxd.atomic_write._free_bytes", lambda directory: 1000)
    answer = upload(talker, "old.txt", bytes(5000))
    assert answer.status == 507
    assert "do not fit: 1000 bytes are free" in answer.json["message"]
    assert (tmp_path / "app" / "old.txt").read_bytes() == b"old"
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["old.txt"]


def test_disk_that_fills_up_during_an_upload_is_reported(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fchmod", full)
    answer = upload(talker, "new.txt", bytes(5000))
    assert answer.status == 507
    assert "the disk is full after 5000 bytes of this file" in answer.json["message"]


def test_client_that_sends_a_large_body_reads_the_rejection(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpool.sandboxd.atomic_write._free_bytes", lambda directory: 1000)
    assert upload(talker, "big", bytes(20_000_000)).status == 507
