from __future__ import annotations

import pytest

from sandpool.kube.errors import NotFound
from sandpool.service.commands import Command, Commands, Result
from sandpool.service.errors import CommandFailed, FileError, NotRunning
from sandpool.service.sandboxes import Sandbox
from tests.service.conftest import play
from tests.support.fake_pod_client import FakePodClient

BOX = Sandbox.from_object({"metadata": {"name": "box", "namespace": "space"}, "spec": {}})


@pytest.fixture
def pods() -> FakePodClient:
    return FakePodClient(play)


async def test_command_returns_its_result(pods: FakePodClient) -> None:
    commands = Commands(pods)
    assert await commands.run(BOX, Command(("echo", "a", "b"))) == Result(0, b"a b\n", b"")
    assert await commands.run(BOX, Command(("warn", "no"))) == Result(0, b"", b"no")
    assert await commands.run(BOX, Command(("exit", "3"))) == Result(3, b"", b"")
    assert await commands.run(BOX, Command(("cat",)), stdin=b"text") == Result(0, b"text", b"")
    assert await commands.run(BOX, Command(("cat",)), stdin=[b"a", b"b"]) == Result(0, b"ab", b"")
    assert pods.asked[0] == ("space", "box")


def test_environment_and_directory_are_set_by_the_image() -> None:
    assert Command("echo $A | cat").arguments() == ("sh", "-c", "echo $A | cat")
    assert Command(("a", "b"), env={"X": "1", "Y": "a b"}).arguments() == ("env", "X=1", "Y=a b", "a", "b")
    assert Command(("a",), cwd="/tmp").arguments() == ("sh", "-c", 'cd "$0" && exec "$@"', "/tmp", "a")
    with pytest.raises(CommandFailed, match="empty"):
        Command(()).arguments()


async def test_command_past_its_timeout_is_killed(pods: FakePodClient) -> None:
    result = await Commands(pods).run(BOX, Command(("wait",)), timeout=0.05)
    assert result == Result(-1, b"waiting", b"", timed_out=True)
    assert pods.sessions[0].closed


async def test_output_beyond_the_limit_is_dropped_and_counted(pods: FakePodClient) -> None:
    result = await Commands(pods).run(BOX, Command(("echo", "12345")), max_output=4)
    assert result == Result(0, b"1234", b"", stdout_dropped=2)
    assert (result.truncated, result.stdout_size, result.stderr_size) == (True, 6, 0)
    exact = await Commands(pods).run(BOX, Command(("echo", "123")), max_output=4)
    assert (exact.truncated, exact.stdout_size) == (False, 4)


async def test_leaving_the_block_kills_the_command(pods: FakePodClient) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Commands(pods).start(BOX, Command(("wait",))):
            raise ZeroDivisionError
    assert pods.sessions[0].closed


async def test_input_that_fails_ends_the_command_with_that_error(pods: FakePodClient) -> None:
    def content() -> object:
        yield b"one"
        raise FileError("it became shorter")

    with pytest.raises(FileError, match="became shorter"):
        await Commands(pods).run(BOX, Command(("cat",)), stdin=content())  # type: ignore[arg-type]
    assert pods.sessions[0].closed


async def test_failed_start_of_a_command_is_reported(pods: FakePodClient) -> None:
    with pytest.raises(CommandFailed, match="no such program"):
        await Commands(pods).run(BOX, Command(("impossible",)))
    pods.refusal = NotFound("no pod")
    with pytest.raises(NotRunning, match='sandbox "box" is not running: it is being started'):
        await Commands(pods).run(BOX, Command(("echo",)))
