"""The published packages of E2B, unmodified, against an endpoint beside a home with real sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import e2b_scripts as scripts
from tests.support.e2b_endpoint import VOLUME_POOL, E2bEndpoint, E2bProgram, find_python
from tests.support.private_network import PrivateHome

pytestmark = pytest.mark.isolation
#: As many sandboxes are alive at the same time.
CLIENTS = 200


@pytest.fixture(scope="module")
def endpoint() -> Iterator[E2bEndpoint]:
    if find_python() is None:
        pytest.skip("the packages of E2B are not installed: run dev/e2b")
    home = PrivateHome().start()
    try:
        with E2bEndpoint(home) as endpoint:
            yield endpoint
    finally:
        home.stop()


@pytest.fixture(scope="module")
def key(endpoint: E2bEndpoint) -> str:
    """A key; making the first one makes the pool."""
    return endpoint.key()


@pytest.fixture(scope="module")
def blocking(endpoint: E2bEndpoint, key: str) -> Iterator[E2bProgram]:
    program = endpoint.program(key)
    yield program
    program.stop()


@pytest.fixture(scope="module")
def asynchronous(endpoint: E2bEndpoint, key: str) -> Iterator[E2bProgram]:
    program = endpoint.program(key, asynchronous=True)
    yield program
    program.stop()


@pytest.fixture(scope="module")
def volume_pool(endpoint: E2bEndpoint, key: str) -> str:
    """The name of a pool whose sandboxes have a volume at /data."""
    endpoint.make_volume_pool()
    return VOLUME_POOL


@pytest.fixture(params=["blocking", "asynchronous"])
def program(request: pytest.FixtureRequest) -> E2bProgram:
    found: E2bProgram = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(
    "script",
    [
        scripts.creates_finds_and_kills,
        scripts.lists_in_pages,
        scripts.binds_clients,
        scripts.runs_commands,
        scripts.runs_commands_in_the_background,
        scripts.moves_files,
        scripts.opens_signed_urls,
        scripts.opens_a_terminal,
        scripts.streams_input,
        scripts.watches_directories,
        scripts.is_told_what_is_missing,
        scripts.runs_code,
        scripts.reaches_ports,
        scripts.refuses_what_is_not_served,
    ],
    ids=lambda script: script.__name__,
)
def test_package_works(program: E2bProgram, script: Callable[..., Any]) -> None:
    program(script)


def test_pause_keeps_the_files_of_a_volume(program: E2bProgram, volume_pool: str) -> None:
    program(scripts.pauses_and_resumes, volume_pool)


@pytest.mark.long
def test_hundreds_of_clients_at_once_lose_nothing(endpoint: E2bEndpoint, key: str) -> None:
    program = endpoint.program(endpoint.key("--max-sandboxes", str(CLIENTS)), asynchronous=True)
    try:
        found = program(scripts.serves_many, CLIENTS)
    finally:
        program.stop()
    assert (found["failures"], found["served"]) == ([], CLIENTS)


def test_tenants_of_one_key_never_see_anothers(endpoint: E2bEndpoint, blocking: E2bProgram) -> None:
    other = endpoint.program(endpoint.key())
    try:
        sandbox = blocking(scripts.creates)
        other(scripts.sees_none_of, sandbox)
        blocking(scripts.kills, sandbox)
    finally:
        other.stop()
