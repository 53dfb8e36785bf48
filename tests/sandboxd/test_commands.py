from __future__ import annotations

import errno
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandpool.sandboxd.captured_output import output_limit
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


def test_output_within_the_limit_is_returned_whole(tmp_path: Path) -> None:
    outcome = run(["head", "-c", "20000000", "/dev/zero"], str(tmp_path), limit=20_000_000)
    assert (len(outcome.stdout), outcome.stdout_size, outcome.is_truncated) == (20_000_000, 20_000_000, False)
    assert outcome.truncation == ""


def test_output_beyond_the_limit_is_counted_and_not_kept(tmp_path: Path) -> None:
    outcome = run(["sh", "-c", "echo begin; head -c 5000000 /dev/zero; echo oops >&2"], str(tmp_path), limit=1000)
    assert outcome.stdout == b"begin\n" + bytes(994)
    assert (outcome.code, outcome.stdout_size, outcome.stderr, outcome.is_truncated) == (0, 5_000_006, b"oops\n", True)
    assert outcome.truncation.startswith("[stdout truncated to 1000 of 5000006 bytes.")


def test_both_streams_have_limits_of_their_own(tmp_path: Path) -> None:
    outcome = run(["sh", "-c", "echo 12345; echo 123456 >&2"], str(tmp_path), limit=3)
    assert (outcome.stdout, outcome.stdout_size, outcome.stderr, outcome.stderr_size) == (b"123", 6, b"123", 7)


def test_endless_output_ends_at_the_timeout_and_costs_no_memory(tmp_path: Path) -> None:
    outcome = run(["cat", "/dev/zero"], str(tmp_path), timeout=0.3, limit=10)
    assert outcome.timed_out
    assert len(outcome.stdout) == 10
    assert outcome.stdout_size > 10


def test_background_process_can_go_on_writing(tmp_path: Path) -> None:
    """Its pipe is still read after the result: SIGPIPE would end it."""
    script = "(read line < go; head -c 200000 /dev/zero && echo survived > done) &"
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "done")
    assert run(["sh", "-c", script], str(tmp_path)).code == 0
    (tmp_path / "go").write_text("on\n")
    assert (tmp_path / "done").read_text() == "survived\n"


@pytest.mark.parametrize(
    ("configured", "limit"), [("", 1 << 20), ("5", 5), ("0", 1 << 20), ("-1", 1 << 20), ("much", 1 << 20)]
)
def test_limit_is_configured_by_a_variable(configured: str, limit: int) -> None:
    assert output_limit({"SANDBOX_MAX_OUTPUT_BYTES": configured}) == limit


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
    """Descriptors that pytest inherited do not count."""
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
        if state == "Z":  # its parent is another process
            return
        time.sleep(0.005)
    raise AssertionError(f"{pid} runs on")


def test_command_that_fails_for_lack_of_descriptors_leaks_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    pipe2 = os.pipe2

    def one(flags: int) -> tuple[int, int]:
        if made:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.extend(pipe2(flags))
        return made[0], made[1]

    monkeypatch.setattr(os, "pipe2", one)
    with pytest.raises(OSError, match="Too many open files"):
        run(["true"], str(tmp_path))
    for descriptor in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
