"""The fast way of ``sandpool run``: what it imports, when it is taken, and that it differs in nothing but time."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.cli import run_client
from sandpool.home import locations, users
from sandpool.home.discovery import announced
from sandpool.kube import kubeconfig
from sandpool.service.service import Service
from tests.home.test_discovery import default_dir, home_in
from tests.support.playground import WITHIN, Playground

# Packages of the standard library that take longer to import than the whole of a fast run may.
_SLOW = {"asyncio", "click", "json", "typing", "pathlib", "subprocess", "ssl", "dataclasses", "logging", "inspect"}
_OURS = {
    "sandpool",
    "sandpool.cli",
    "sandpool.cli.entry",
    "sandpool.cli.run_client",
    "sandpool.cli.run_frames",
    "sandpool.cli.streams",
    "sandpool.home",
    "sandpool.home.locations",
}


def test_a_fast_run_imports_almost_nothing() -> None:
    program = "import sys; import sandpool.cli.entry, sandpool.cli.run_client; print(*sys.modules)"
    # Without site, which imports for editable installations what a wheel does not need.
    environ = {"PYTHONPATH": str(Path(run_client.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.split())
    assert {name for name in modules if name.partition(".")[0] == "sandpool"} == _OURS
    assert modules & _SLOW == set()
    assert len(modules) < 60


@pytest.mark.parametrize(
    "environ",
    [
        {"HOME": "/home/alice"},
        {"HOME": "/home/alice", "XDG_DATA_HOME": "/data", "XDG_CONFIG_HOME": "/config"},
        {"HOME": "/home/alice", "XDG_DATA_HOME": "relative", "XDG_CONFIG_HOME": ""},
    ],
    ids=str,
)
def test_both_ways_find_the_same_files(environ: dict[str, str]) -> None:
    assert locations.data_directory(environ, environ["HOME"]) == str(users.default_data_dir(environ))
    assert locations.config_directory(environ, environ["HOME"]) == str(users.config_dir(environ))


class TestChoice:
    """Which home is asked. None stands for the ordinary way."""

    @pytest.fixture
    def environ(self, tmp_path: Path) -> dict[str, str]:
        return {"HOME": str(tmp_path / "home")}

    @pytest.fixture
    def sockets(self) -> Iterator[list[Any]]:
        opened: list[Any] = []
        yield opened
        for each in opened:
            each.close()

    def chosen(self, environ: Mapping[str, str]) -> bool:
        connection = run_client._connect(environ)
        if connection is not None:
            connection.close()
        return connection is not None

    def test_the_home_of_the_user_is_asked(self, environ: dict[str, str], sockets: list[Any]) -> None:
        with announced(home_in(default_dir(environ)), environ, sockets=sockets):
            assert self.chosen(environ)
        assert not self.chosen(environ)

    @pytest.mark.parametrize("variable", ["KUBECONFIG", "SUDO_UID", "SANDPOOL_TRACEBACK"])
    def test_variables_that_mean_something_else_lead_to_the_ordinary_way(
        self, environ: dict[str, str], sockets: list[Any], variable: str
    ) -> None:
        with announced(home_in(default_dir(environ)), environ, sockets=sockets):
            assert not self.chosen({**environ, variable: "1000"})

    def test_a_chosen_context_leads_to_the_ordinary_way(self, environ: dict[str, str], sockets: list[Any]) -> None:
        with announced(home_in(default_dir(environ)), environ, sockets=sockets):
            directory = users.config_dir(environ)
            directory.mkdir(parents=True)
            (directory / locations.CONTEXT).write_text("{}")
            assert not self.chosen(environ)

    def test_among_several_homes_only_the_default_one_is_asked(
        self, environ: dict[str, str], sockets: list[Any], tmp_path: Path
    ) -> None:
        one, two = home_in(tmp_path / "one"), home_in(tmp_path / "two")
        with announced(one, environ, sockets=sockets):
            assert self.chosen(environ)
            with announced(two, environ, sockets=sockets):
                assert not self.chosen(environ), "which of the two was started last is not in their sockets"
                with announced(home_in(default_dir(environ)), environ, sockets=sockets):
                    assert self.chosen(environ)

    def test_a_home_that_was_killed_is_not_asked(self, environ: dict[str, str], sockets: list[Any]) -> None:
        with announced(home_in(default_dir(environ)), environ, sockets=sockets):
            sockets.pop().close()
            assert not self.chosen(environ)

    def test_only_the_user_may_connect(self, environ: dict[str, str], sockets: list[Any]) -> None:
        with announced(home_in(default_dir(environ)), environ, sockets=sockets):
            socket = default_dir(environ) / locations.REGISTER / locations.LOCAL / locations.RUN_SOCKET
            assert (socket.stat().st_mode & 0o777, socket.stat().st_uid) == (0o600, os.geteuid())
            assert socket.parent.stat().st_mode & 0o777 == 0o700
        assert not socket.exists()


# Arguments, input, and the way of a user without KUBECONFIG.
CASES: list[tuple[tuple[str, ...], bytes | None, str]] = [
    (("--", "sh", "-c", "echo out; echo err >&2; exit 7"), None, "socket"),
    (("cat",), b"input", "socket"),
    (("-i", "cat"), None, "socket"),
    (("wc", "-c"), bytes(1_000_000), "socket"),
    (("head", "-c", "10"), bytes(1_000_000), "socket"),
    (("-e", "NAME=a b", "-e", "TOWN", "--", "sh", "-c", "echo $NAME $TOWN"), None, "socket"),
    (("--env=TOWN", "--", "sh", "-c", "echo $TOWN"), None, "API"),
    (("-e", "NOPE", "true"), None, "API"),
    (("-w", "/tmp", "pwd"), None, "socket"),
    (("-w", "/nope", "pwd"), None, "socket"),
    (("--timeout", "300ms", "--", "sh", "-c", "echo begun; sleep 100"), None, "socket"),
    (("--timeout", "soon", "true"), None, "API"),
    (("--pool", "python", "echo", "-n", "--pool", "x"), None, "socket"),
    (("--pool", "pyton", "--name", "mine", "true"), None, "socket"),
    (("--pool", "nothing-like-it", "--name", "mine", "true"), None, "socket"),
    (("--template", "nope", "true"), None, "socket"),
    (("-p", "a", "--template", "b", "true"), None, "socket"),
    (("-n", "elsewhere", "-p", "python", "--name", "mine", "true"), None, "socket"),
    (("--name", "Not A Name", "true"), None, "socket"),
    (("no-such-program",), None, "socket"),
    (("",), None, "socket"),
    (("python3",), None, "socket"),
    (("-it", "sh"), None, "socket"),
    (("-t", "--", "sh", "-c", "stty size; test -t 0 && echo terminal"), None, "socket"),
    (("--", "sh", "-c", "kill -9 $$"), None, "socket"),
    (("--keep", "--name", "mine", "true"), None, "socket"),
    (("-v", "here.txt:/tmp/there.txt", "cat", "/tmp/there.txt"), None, "API"),
    (("-v", "nope:x", "true"), None, "API"),
    (("--context", "nope", "true"), None, "API"),
    (("--nope",), None, "API"),
    (("--help",), None, "API"),
    ((), None, "API"),
    (("printf", "\\377\\200 no text"), None, "socket"),
    (("echo", os.fsdecode(b"\xff")), None, "API"),
    (("--pool", os.fsdecode(b"\xff"), "true"), None, "API"),
]


@pytest.mark.isolation
@pytest.mark.parametrize(("arguments", "stdin", "way"), CASES, ids=[" ".join(case[0])[:40] for case in CASES])
def test_both_ways_do_and_say_the_same(
    home: Playground, arguments: tuple[str, ...], stdin: bytes | None, way: str, tmp_path: Path
) -> None:
    (home.directory / "here.txt").write_text("here\n")
    noted = tmp_path / "way"
    results = []
    fast = home.over_the_socket()
    for user in (fast.through_the_api(), fast):
        environ = {**user.environ, "TOWN": "Here", "WAY": str(noted)}
        result = user.run("run", *arguments, stdin=stdin, env=environ)
        if "--keep" in arguments:
            user.works("release", "mine")
        results.append((result.returncode, _anonymous(result.stdout), _anonymous(result.stderr)))
    assert results[0] == results[1]
    assert noted.read_text() == way


def _anonymous(output: bytes) -> bytes:
    """Output without what names the program and the sandbox."""
    own = output.replace(b"python -m sandpool.cli.main", b"sandpool").replace(b"-c run", b"sandpool run")
    return re.sub(rb"python-[a-z0-9]{5}\b", b"SANDBOX", own)


@pytest.mark.isolation
def test_a_client_that_is_killed_leaves_no_claim(home: Playground) -> None:
    user = home.over_the_socket()
    command = user.command("run", "--", "sh", "-c", "echo begun; exec sleep 100")
    with subprocess.Popen(command, env=user.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        (name,) = home.claims()
        process.kill()
    asyncio.run(_deleted(home, name.removeprefix("claim/")))
    assert home.claims() == []


async def _deleted(home: Playground, name: str) -> None:
    """Return when the claim is gone."""
    async with asyncio.timeout(WITHIN), Service.connect(kubeconfig.load(home.kubeconfig)) as service:
        listed = await service.client.list(SANDBOX_CLAIM, service.namespace)
        if name in {claim["metadata"]["name"] for claim in listed["items"]}:
            version = listed["metadata"]["resourceVersion"]
            async for event in service.client.watch(SANDBOX_CLAIM, service.namespace, resource_version=version):
                if event.type == "DELETED" and event.object["metadata"]["name"] == name:
                    return
