"""The daemon's processes over a real gRPC connection."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandpool.sandboxd.binding import Binding
from sandpool.sandboxd.root import Root
from tests.support.protobuf import message, number, read

grpc = pytest.importorskip("grpc")
from sandpool.sandboxd.process_api import SERVICE, ProcessApi  # noqa: E402 - it imports grpc

# Seconds for an answer: a machine with much else to do takes half a minute for three small programs.
PATIENCE = 240.0


class Caller:
    """Calls methods with messages made of ``message`` and ``number``; answers are fields by their numbers."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def __call__(self, method: str, request: bytes, timeout: float = PATIENCE) -> dict[int, Any]:
        return read(self.channel.unary_unary(f"/{SERVICE}/{method}")(request, timeout=timeout))

    def stream(self, request: bytes) -> Any:
        return self.channel.unary_stream(f"/{SERVICE}/Start")(request, timeout=PATIENCE)

    def fails(self, method: str, request: bytes, **options: Any) -> str:
        with pytest.raises(grpc.RpcError) as raised:
            self(method, request, **options)
        code: str = raised.value.code().name
        return code

    def until(self, probe: Callable[[], bool]) -> None:
        """Waits by having the daemon wait."""
        end = time.monotonic() + PATIENCE
        while not probe():
            assert time.monotonic() < end
            self("Execute", config("sleep", "0.01"))


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Caller]:
    # As the daemon has one: who runs the tests may ignore it, and so would the programs that are started here.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    root = Root(str(tmp_path / "root"))
    server = ProcessApi(root).server()
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Caller(channel)
    server.stop(0).wait()
    root.close()
    signal.signal(signal.SIGINT, before)


def config(*command: str, cwd: str | None = None, **env: str) -> bytes:
    body = b"".join(message(1, word.encode()) for word in command)
    for name, value in env.items():
        body += message(2, message(1, name.encode()) + message(2, value.encode()))
    return message(1, body + (b"" if cwd is None else message(3, cwd.encode())))


def pty(columns: int, rows: int) -> bytes:
    return message(2, number(1, columns) + number(2, rows))


class TestExecute:
    def test_command_has_the_variables_of_a_claim_that_has_bound(
        self, call: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CANARY", "of the image")  # and restore it
        Binding(os.environ).answer(b'{"bind": {"claim": "c", "values": {"CANARY": "yellow"}}}')
        assert call("Execute", config("/bin/sh", "-c", "echo $CANARY")) == {2: b"yellow\n"}
        assert call("Execute", config("/bin/sh", "-c", "echo $CANARY", CANARY="blue")) == {2: b"blue\n"}

    def test_execute_returns_output_and_code(self, call: Caller) -> None:
        script = "echo $A; echo err >&2; exit 3"
        assert call("Execute", config("/bin/sh", "-c", script, A="b")) == {1: 3, 2: b"b\n", 3: b"err\n"}

    def test_truncated_output_is_flagged_and_counted(self, call: Caller) -> None:
        answer = call("Execute", config("head", "-c", "3000000", "/dev/zero"))
        assert answer[2] == bytes(1 << 20)
        assert (answer[1001], answer[1002]) == (1, 3_000_000)
        assert b"[stdout truncated to 1048576 of 3000000 bytes" in answer[3]

    def test_signal_is_reported_as_minus_one(self, call: Caller) -> None:
        assert call("Execute", config("/bin/sh", "-c", "kill -9 $$"))[1] == (1 << 64) - 1

    def test_working_directory_and_environment_are_applied(self, call: Caller, tmp_path: Path) -> None:
        (tmp_path / "root" / "sub").mkdir()
        assert call("Execute", config("pwd"))[2] == f"{tmp_path}/root\n".encode()
        assert call("Execute", config("pwd", cwd="/sub"))[2] == f"{tmp_path}/root/sub\n".encode()

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (config(), "INVALID_ARGUMENT"),
            (config("/no/such/program"), "NOT_FOUND"),
            (config("/etc/passwd"), "PERMISSION_DENIED"),
            (config("true", cwd="../.."), "PERMISSION_DENIED"),
            (config("true", cwd="none"), "NOT_FOUND"),
            (config("true\0"), "INVALID_ARGUMENT"),
        ],
    )
    def test_command_that_cannot_run_has_a_status_code(self, call: Caller, request_: bytes, code: str) -> None:
        assert call.fails("Execute", request_) == code

    def test_cancelled_call_kills_the_command(self, call: Caller, tmp_path: Path) -> None:
        pid = tmp_path / "root" / "pid"
        script = "echo $$ > pid.new; mv pid.new pid; exec sleep 4712"
        asked = call.channel.unary_unary(f"/{SERVICE}/Execute").future(config("/bin/sh", "-c", script))
        call.until(pid.exists)
        asked.cancel()
        number_ = int(pid.read_text())
        call.until(lambda: not os.path.exists(f"/proc/{number_}"))

    def test_deadline_ends_the_call(self, call: Caller) -> None:
        assert call.fails("Execute", config("sleep", "4713"), timeout=0.5) == "DEADLINE_EXCEEDED"


class TestStart:
    def test_output_is_streamed_until_the_exit_event(self, call: Caller) -> None:
        answers = [read(each) for each in call.stream(config("/bin/sh", "-c", "echo out; echo err >&2; exit 4"))]
        assert read(answers[0][1]) == {1: 1}
        assert b"".join(each.get(2, b"") for each in answers) == b"out\n"
        assert b"".join(each.get(3, b"") for each in answers) == b"err\n"
        assert read(answers[-1][4]) == {1: 4}

    def test_standard_input_reaches_the_process(self, call: Caller) -> None:
        stream = call.stream(config("cat"))
        process = read(read(next(stream))[1])[1]
        call("WriteStdin", number(1, process) + message(2, b"hello"))
        assert read(next(stream)) == {2: b"hello"}
        call("WriteStdin", number(1, process) + message(3, b""))
        assert read(next(stream)) == {4: b""}
        assert call.fails("WriteStdin", number(1, process) + message(2, b"x")) == "NOT_FOUND"

    def test_signals_reach_the_process(self, call: Caller) -> None:
        script = 'trap "echo told; exit 0" TERM; echo ready; while true; do sleep 0.05; done'
        stream = call.stream(config("/bin/sh", "-c", script))
        process = read(read(next(stream))[1])[1]
        assert read(next(stream)) == {2: b"ready\n"}
        assert call.fails("SendSignal", number(1, process) + number(2, 1)) == "INVALID_ARGUMENT"
        assert call.fails("SendSignal", number(1, 99) + number(2, 15)) == "NOT_FOUND"
        call("SendSignal", number(1, process) + number(2, 15))
        rest = [read(each) for each in stream]
        assert b"".join(each.get(2, b"") for each in rest) == b"told\n"
        assert rest[-1] == {4: b""}

    def test_process_has_a_terminal_of_the_given_size(self, call: Caller) -> None:
        stream = call.stream(config("/bin/sh", "-c", "stty -echo; stty size; read x; stty size; tty") + pty(100, 30))
        process = read(read(next(stream))[1])[1]
        seen = read(next(stream))[2]
        assert seen.strip() == b"30 100"
        call("ResizeTTY", number(1, process) + number(2, 120) + number(3, 40))
        call("WriteStdin", number(1, process) + message(2, b"\n"))
        rest = [read(each) for each in stream]
        shown = b"".join(each.get(2, b"") for each in rest)
        assert b"40 120" in shown
        assert b"/dev/pts/" in shown
        assert read(rest[-1][4]) == {}

    def test_ctrl_c_interrupts_the_process(self, call: Caller) -> None:
        stream = call.stream(config("/bin/sh", "-c", "stty -echo; echo ready; exec sleep 1000") + pty(80, 24))
        process = read(read(next(stream))[1])[1]
        assert read(next(stream))[2].strip() == b"ready"
        call("WriteStdin", number(1, process) + message(2, b"\x03"))
        rest = [read(each) for each in stream]
        assert read(rest[-1][4]) == {1: (1 << 64) - 1}

    def test_resize_without_a_terminal_is_rejected(self, call: Caller) -> None:
        stream = call.stream(config("cat"))
        process = read(read(next(stream))[1])[1]
        assert call.fails("ResizeTTY", number(1, process) + number(2, 1) + number(3, 1)) == "FAILED_PRECONDITION"
        stream.cancel()

    def test_oversized_terminal_is_rejected(self, call: Caller) -> None:
        with pytest.raises(grpc.RpcError) as raised:
            list(call.stream(config("true") + pty(70_000, 24)))
        assert raised.value.code().name == "INVALID_ARGUMENT"
        stream = call.stream(config("cat") + pty(80, 24))
        process = read(read(next(stream))[1])[1]
        assert call.fails("ResizeTTY", number(1, process) + number(2, 80) + number(3, 1 << 31)) == "INVALID_ARGUMENT"
        stream.cancel()

    @pytest.mark.parametrize("with_terminal", [False, True])
    def test_missing_program_is_not_found(self, call: Caller, with_terminal: bool) -> None:
        with pytest.raises(grpc.RpcError) as raised:
            list(call.stream(config("no-such-program") + (pty(80, 24) if with_terminal else b"")))
        assert raised.value.code().name == "NOT_FOUND"

    def test_background_process_does_not_delay_the_exit_event(self, call: Caller) -> None:
        answers = [read(each) for each in call.stream(config("/bin/sh", "-c", "sleep 30 & echo done"))]
        assert [each.get(2) for each in answers[1:-1]] == [b"done\n"]
