"""Files over both of their interfaces: ``filesystem.Filesystem`` and ``/files``."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import aiohttp
import pytest

from sandpool.e2b.access import READ, WRITE
from sandpool.e2b.attempts import Attempts
from sandpool.e2b.endpoint import Endpoint
from sandpool.testing.clock import ManualClock
from tests.e2b.conftest import Answer, Guest, Tenant
from tests.e2b.signing import signature

SERVICE = "filesystem.Filesystem"


async def upload(guest: Guest, path: str, data: bytes, **headers: str) -> Answer:
    sent = {**guest.headers, "Content-Type": "application/octet-stream", **headers}
    return await guest.api.request("POST", "/files", sent, params={"path": path}, data=data)


async def download(guest: Guest, path: str) -> Answer:
    return await guest.api.request("GET", "/files", guest.headers, params={"path": path})


async def test_bytes_come_back_as_they_went_in(tenant: Tenant, directory: Path) -> None:
    guest = await tenant.create()
    content = bytes(range(256)) * 1000
    answer = await upload(guest, "a b/größe", content)
    assert answer.document == [{"name": "größe", "type": "file", "path": str(directory / "a b/größe")}]
    assert (await download(guest, "a b/größe")).body == content
    assert (await upload(guest, "a b/größe", b"")).status == 200
    assert (await download(guest, str(directory / "a b/größe"))).body == b""
    assert (await upload(guest, "-n", b"odd")).status == 200
    assert (await download(guest, "-n")).body == b"odd"


async def test_compressed_upload_is_unpacked_and_its_real_size_counts(tenant: Tenant) -> None:
    guest = await tenant.create()
    assert (await upload(guest, "x", gzip.compress(b"hello"), **{"Content-Encoding": "gzip"})).status == 200
    assert (await download(guest, "x")).body == b"hello"
    bomb = gzip.compress(bytes(3 << 20))
    assert len(bomb) < 1 << 14
    assert (await upload(guest, "x", bomb, **{"Content-Encoding": "gzip"})).status == 413


async def test_form_writes_many_files_or_one_to_the_path(tenant: Tenant, directory: Path) -> None:
    guest = await tenant.create()
    form = aiohttp.FormData(quote_fields=False)
    form.add_field("file", b"1", filename="d/one")
    form.add_field("other", "not a file")
    form.add_field("file", b"2", filename=f'{directory}/t"w\\o')
    answer = await guest.api.request("POST", "/files", guest.headers, data=form)
    assert [each["path"] for each in answer.document] == [str(directory / "d/one"), f'{directory}/t"w\\o']
    assert (directory / "d/one").read_bytes() == b"1"
    form = aiohttp.FormData()
    form.add_field("file", b"3", filename="ignored")
    answer = await guest.api.request("POST", "/files", guest.headers, data=form, params={"path": "three"})
    assert answer.document[0]["path"] == str(directory / "three")
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("other", "x")
    assert (await guest.api.request("POST", "/files", guest.headers, data=form)).status == 400
    for content_type in ("multipart/form-data", "multipart/form-data; boundary=x"):
        headers = {**guest.headers, "Content-Type": content_type}
        assert (await guest.api.request("POST", "/files", headers, data=b"no form")).status == 400, content_type


async def test_errors_of_files_are_told_apart(tenant: Tenant, directory: Path) -> None:
    guest = await tenant.create()
    (directory / "dir").mkdir()
    (directory / "file").write_text("x")
    assert (await download(guest, "none")).status == 404
    assert (await download(guest, "dir")).status == 400
    assert (await upload(guest, "dir", b"x")).status == 400
    assert (await upload(guest, "x", b"x", **{"X-Metadata-A": "b"})).status == 400
    for method, path, code in (
        ("Stat", "none", "not_found"),
        ("ListDir", "none", "not_found"),
        ("ListDir", "file", "invalid_argument"),
        ("MakeDir", "dir", "already_exists"),
        ("MakeDir", "file", "invalid_argument"),
    ):
        assert (await guest.call(f"{SERVICE}/{method}", path=path)).document["code"] == code, (method, path)
    moved = await guest.call(f"{SERVICE}/Move", source="none", destination="x")
    assert moved.document["code"] == "not_found"
    moved = await guest.call(f"{SERVICE}/Move", source="file", destination="dir")
    assert moved.document["code"] == "already_exists"
    assert (await guest.call(f"{SERVICE}/Remove", path="none")).document == {}


async def test_directories_are_made_listed_moved_and_removed(tenant: Tenant, directory: Path) -> None:
    guest = await tenant.create()
    made = (await guest.call(f"{SERVICE}/MakeDir", path="a/b")).document["entry"]
    assert (made["path"], made["type"]) == (str(directory / "a/b"), "FILE_TYPE_DIRECTORY")
    (directory / "a/b/text").write_text("hello")
    os.symlink("b/text", directory / "a/link")

    async def listed(depth: int) -> list[tuple[str, str]]:
        entries = (await guest.call(f"{SERVICE}/ListDir", path="a", depth=depth)).document["entries"]
        return [(each["name"], each["type"]) for each in entries]

    assert await listed(1) == [("b", "FILE_TYPE_DIRECTORY"), ("link", "FILE_TYPE_FILE")]
    assert await listed(2) == [
        ("b", "FILE_TYPE_DIRECTORY"),
        ("text", "FILE_TYPE_FILE"),
        ("link", "FILE_TYPE_FILE"),
    ]
    link = (await guest.call(f"{SERVICE}/Stat", path="a/link")).document["entry"]
    assert (link["isSymlink"], link["symlinkTarget"]) == (True, "b/text")
    moved = (await guest.call(f"{SERVICE}/Move", source="a/b", destination="new/c")).document["entry"]
    assert moved["path"] == str(directory / "new/c")
    await guest.call(f"{SERVICE}/Remove", path="new")
    assert sorted(os.listdir(directory)) == ["a"]


async def test_signed_url_opens_one_file_for_one_operation(tenant: Tenant, other: Tenant, directory: Path) -> None:
    guest, foreign = await tenant.create(), await other.create()
    (directory / "file").write_text("content")

    async def signed(method: str, token: str, operation: str, path: str = "file", end: str = "", **headers: str) -> int:
        query = {"path": path, "signature": signature("file", operation, "", token, end)}
        query |= {"signature_expiration": end} if end else {}
        sent = {"Content-Type": "application/octet-stream", **headers}
        return (await guest.api.request(method, "/files", sent, params=query, data=b"new")).status

    later, before = str(int(time.time()) + 600), str(int(time.time()) - 600)
    here = {"E2b-Sandbox-Id": guest.id}
    for headers in ({}, here):
        assert await signed("GET", guest.token, READ, **headers) == 200
        assert await signed("GET", guest.token, READ, end=later, **headers) == 200
        assert await signed("GET", guest.token, READ, end=before, **headers) == 401
        assert await signed("GET", guest.token, READ, path="/etc/passwd", **headers) == 401
        assert await signed("POST", guest.token, READ, **headers) == 401
        assert await signed("GET", guest.token, WRITE, **headers) == 401
        assert await signed("POST", guest.token, WRITE, **headers) == 200
        assert await signed("GET", "guessed", READ, **headers) == 401
    assert await signed("GET", foreign.token, READ, **here) == 401
    assert (directory / "file").read_text() == "new"


async def test_invented_signatures_are_compared_with_few_sandboxes(
    endpoint: Endpoint, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    """Without the name of a sandbox they belong to any of them."""
    guest = await tenant.create()
    (directory / "file").write_text("content")
    monkeypatch.setattr(endpoint, "attempts", Attempts(ManualClock()))
    endpoint.running._running.clear()
    good = {"path": "file", "signature": signature("file", READ, "", guest.token)}
    for _ in range(60):
        assert (await guest.api.request("GET", "/files", params=good)).status == 200
    statuses = []
    for number in range(60):
        query = {"path": "file", "signature": signature("file", READ, "", f"invented-{number}")}
        statuses.append((await guest.api.request("GET", "/files", params=query)).status)
    assert statuses == [401] * 40 + [429] * 20
    named = await guest.api.request("GET", "/files", {"E2b-Sandbox-Id": guest.id}, params=good)
    assert named.status == 200


async def test_invented_signature_makes_no_sandbox_known(endpoint: Endpoint, tenant: Tenant) -> None:
    guest = await tenant.create()
    endpoint.running._running.clear()
    query = {"path": "file", "signature": signature("file", READ, "", "invented")}
    assert (await guest.api.request("GET", "/files", params=query)).status == 401
    assert not endpoint.running._running


async def test_half_an_upload_is_no_success(tenant: Tenant) -> None:
    guest = await tenant.create()

    async def pieces() -> object:
        yield b"half"
        raise ConnectionResetError("the client has gone")

    with pytest.raises((aiohttp.ClientError, ConnectionResetError)):
        await guest.api.request("POST", "/files", guest.headers, params={"path": "x"}, data=pieces())
    assert (await guest.call("process.Process/List")).status == 200
