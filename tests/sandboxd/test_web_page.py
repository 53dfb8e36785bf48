"""A web page that a browser in the sandbox shows reads no files and runs no commands of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.sandboxd.files_api import FilesApi
from sandpool.sandboxd.http1 import web_page_refusal
from sandpool.sandboxd.root import Root
from sandpool.sandboxd.runtime_api import RuntimeApi
from tests.support.http_client import Talker, serving

COMMAND = {"command": "touch made"}


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[Talker]:
    with serving(RuntimeApi(Root(str(tmp_path)), 300.0).handle) as talker:
        yield talker


@pytest.mark.parametrize(
    "headers",
    [
        *({"Origin": origin} for origin in ("http://evil.example", "null", "", "http://localhost:8888")),
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "same-origin")),
        {"Host": "evil.example:8888"},
    ],
)
def test_page_neither_runs_commands_nor_reads_files(talker: Talker, tmp_path: Path, headers: dict[str, str]) -> None:
    (tmp_path / "secret").write_text("canary")
    assert talker.ask("POST", "/execute", COMMAND, headers).status == 403
    assert not (tmp_path / "made").exists()
    for path in ("/download/secret", "/list/", "/exists/secret"):
        answer = talker.ask("GET", path, headers=headers)
        assert (answer.status, b"secret" in answer.body, b"canary" in answer.body) == (403, False, False)


def test_files_api_refuses_pages_as_well(tmp_path: Path) -> None:
    with serving(FilesApi(Root(str(tmp_path)), lambda: 0.0).handle) as talker:
        assert talker.ask("PUT", "/v1/files/made", b"x", {"Origin": "http://evil.example"}).status == 403
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "host", ["localhost:8888", "127.0.0.1:8888", "10.1.2.3", "[::1]:8888", "box", "a.localhost", ""]
)
def test_programs_in_the_sandbox_are_served(talker: Talker, host: str) -> None:
    assert talker.ask("POST", "/execute", COMMAND, {"Host": host}).status == 200


def test_clients_elsewhere_may_use_any_name() -> None:
    """Behind a Service or an ingress the name is that of the cluster. A page in the sandbox connects from within."""
    named = {"host": "box.default.svc.cluster.local:8888"}
    assert web_page_refusal(named, "10.0.0.9", "10.0.0.4") == ""
    assert web_page_refusal(named, "10.0.0.4", "10.0.0.4") != ""
    assert web_page_refusal(named, "127.0.0.1", "127.0.0.9") != ""
    assert web_page_refusal({**named, "origin": "http://evil.example"}, "10.0.0.9", "10.0.0.4") != ""
    assert web_page_refusal({"sec-fetch-site": "none", "host": "localhost"}, "127.0.0.1", "127.0.0.1") == "", (
        "typed by a user"
    )


@pytest.mark.parametrize("host", ["evil.example", "1.2.3.4.evil.example", "localhost.evil.example", "0x7f.1.evil"])
def test_names_of_sites_are_refused_from_within(host: str) -> None:
    assert web_page_refusal({"host": host}, "127.0.0.1", "127.0.0.1") != ""
