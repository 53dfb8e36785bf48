from __future__ import annotations

import errno
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandpool.sandboxd.commands import NotStarted, Outcome, arguments, run


@pytest.fixture(autouse=True)
def _come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command takes the process that starts it to its directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("echo hello", ["echo", "hello"]),
        ("echo 'a | b'", ["echo", "a | b"]),
        ('echo "a; b"', ["echo", "a; b"]),
        ("python3 -c 'print(1)'", ["python3", "-c", "print(1)"]),
        ("echo a\\ b", ["echo", "a b"]),
        ("echo \\$HOME", ["echo", "$HOME"]),
    ],
)
def test_plain_command_runs_without_a_shell(command: str, argv: list[str]) -> None:
    assert arguments(command) == argv


@pytest.mark.parametrize(
    "command",
    [
        "a | b",
        "a && b",
        "a; b",
        "a > b",
        "echo $HOME",
        'echo "$HOME"',
        "echo `id`",
        "ls *.py",
        "A=b env",
        "a\nb",
        "(a)",
    ],
)
def test_shell_syntax_runs_in_a_shell(command: str) -> None:
    assert arguments(command) == ["/bin/sh", "-c", command]


@pytest.mark.parametrize(("command", "why"), [("", "empty"), ("   ", "empty"), ("echo 'a", "No closing quotation")])
def test_unsplittable_command_is_not_started(command: str, why: str) -> None:
    with pytest.raises(NotStarted, match=why):
        arguments(command)


def test_output_and_exit_code_are_returned(tmp_path: Path) -> None:
    outcome = run(["sh", "-c", "pwd; echo oops >&2; exit 3"], str(tmp_path))
    assert _said(outcome) == (3, f"{tmp_path}\n".encode(), b"oops\n", False)


def test_signal_becomes_a_negative_code(tmp_path: Path) -> None:
    assert run(["sh", "-c", "kill -TERM $$"], str(tmp_path)).code == -signal.SIGTERM


def test_standard_input_is_empty(tmp_path: Path) -> None:
    assert _said(run(["cat"], str(tmp_path))) == (0, b"", b"", False)


def test_missing_program_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match="No such file or directory: 'no-such-program'"):
        run(["no-such-program"], str(tmp_path))


def test_timeout_kills_the_process_group(tmp_path: Path) -> None:
    outcome = run(["sh", "-c", "echo begun; sleep 1000 & echo $! > child; wait"], str(tmp_path), timeout=0.5)
    assert (outcome.code, outcome.stdout, outcome.timed_out) == (124, b"begun\n", True)
    _gone(int((tmp_path / "child").read_text()))


def test_disconnect_kills_the_command(tmp_path: Path) -> None:
    begun = tmp_path / "me"
    outcome = run(["sh", "-c", "echo $$ > me; sleep 1000"], str(tmp_path), is_wanted=lambda: not begun.exists())
    assert outcome.timed_out
    _gone(int(begun.read_text()))


def test_background_process_does_not_delay_the_result(tmp_path: Path) -> None:
    outcome = run(["sh", "-c", "sleep 1000 & echo $!"], str(tmp_path))
    assert outcome.code == 0
    os.kill(int(outcome.stdout), signal.SIGKILL)


def test_large_output_is_returned_whole(tmp_path: Path) -> None:
    assert len(run(["head", "-c", "20000000", "/dev/zero"], str(tmp_path)).stdout) == 20_000_000


def test_working_directory_can_be_a_descriptor(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    assert run(["pwd"], handle).stdout == f"{tmp_path}\n".encode()
    os.close(handle)


def test_given_environment_replaces_the_own_one(tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\necho $A $HOME\n")
    program.chmod(0o755)
    assert run(["mine"], "/", {"A": "b", "PATH": str(tmp_path)}).stdout == b"b\n"
    with pytest.raises(NotStarted, match="No such file or directory: 'mine'"):
        run(["mine"], "/", {"A": "b"})


def test_command_inherits_no_descriptors(tmp_path: Path) -> None:
    """What the tests were started with is not ours: whoever started them may have had more open than he needed."""
    ours = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = {descriptor for descriptor in map(int, os.listdir("/proc/self/fd")) if _is_passed_on(descriptor)}
    seen = set(map(int, run(["ls", "/proc/self/fd"], str(tmp_path)).stdout.split()))
    os.close(ours)
    assert len(seen - before - {0, 1, 2}) == 1, "one is its own"


def _is_passed_on(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        return False  # of the listing itself


def test_command_starts_with_default_signal_actions(tmp_path: Path) -> None:
    ignored = int(run(["grep", "^SigIgn", "/proc/self/status"], str(tmp_path)).stdout.split()[1], 16)
    assert [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored & 1 << number - 1] == []


def test_concurrent_commands_start_in_their_own_directories(tmp_path: Path) -> None:
    places = [tmp_path / str(number) for number in range(8)]
    for place in places:
        place.mkdir()
    with ThreadPoolExecutor(8) as threads:
        said = threads.map(lambda place: run(["pwd"], str(place)).stdout.decode().strip(), places * 5)
    assert list(said) == [str(place) for place in places * 5]


def _said(outcome: Outcome) -> tuple[int, bytes, bytes, bool]:
    return outcome.code, outcome.stdout, outcome.stderr, outcome.timed_out


def _gone(pid: int) -> None:
    """Its end was ordered, which takes the kernel a moment."""
    for _ in range(2000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":  # nobody here is its parent
            return
        time.sleep(0.005)
    raise AssertionError(f"{pid} runs on")


def test_command_that_fails_for_lack_of_descriptors_leaks_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def one(name: str) -> int:
        if made:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(os.open(os.devnull, os.O_RDONLY))
        return made[0]

    monkeypatch.setattr(os, "memfd_create", one)
    with pytest.raises(OSError, match="Too many open files"):
        run(["true"], str(tmp_path))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
