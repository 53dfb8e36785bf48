"""Process API: gRPC on port 9090.

grpcio is imported only here, because it takes more memory than the rest of sandboxd.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc

from sandpool.sandboxd import commands, reflection
from sandpool.sandboxd import process_messages as messages
from sandpool.sandboxd.captured_output import DEFAULT_LIMIT
from sandpool.sandboxd.processes import SIGNALS, NoTerminal, Process, Processes, UnknownProcess
from sandpool.sandboxd.root import PathEscape, Root

SERVICE = "process.v1.ProcessService"
_MAX_CALLS = 128
_MAX_TERMINAL_SIZE = 0xFFFF  # columns or rows; the kernel stores 16 bits
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class ProcessApi:
    """``max_output`` limits the bytes of stdout and of stderr in a response of Execute. Start streams all output."""

    def __init__(self, root: Root, max_output: int = DEFAULT_LIMIT) -> None:
        self.root = root
        self.max_output = max_output
        self.processes = Processes()

    def server(self) -> grpc.Server:
        """Return a gRPC server; the caller adds a port and starts it."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        handlers = {
            "Execute": unary(self.execute, messages.execute_request),
            "Start": stream(self.start, messages.start_request),
            "WriteStdin": unary(self.write_stdin, messages.write_stdin_request),
            "SendSignal": unary(self.send_signal, messages.signal_request),
            "ResizeTTY": unary(self.resize, messages.resize_request),
        }
        server = grpc.server(ThreadPoolExecutor(_MAX_CALLS), options=_UNLIMITED)
        own = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((own, *reflection.handlers(SERVICE)))
        return server

    def execute(self, config: messages.ProcessConfig, context: Any) -> bytes:
        cwd = self._directory(config, context)
        try:
            outcome = commands.run(config.command, cwd, _environment(config), None, context.is_active, self.max_output)
        except commands.NotStarted as error:
            _not_started(error, context)
        finally:
            os.close(cwd)
        code = max(outcome.code, -1)
        if not outcome.is_truncated:
            return messages.execute_response(code, outcome.stdout, outcome.stderr)
        # Clients that know nothing of the sizes show the note.
        stderr = outcome.stderr + f"\n{outcome.truncation}\n".encode()
        sizes = outcome.stdout_size, outcome.stderr_size
        return messages.execute_response(code, outcome.stdout, stderr, sizes)

    def start(self, request: messages.StartRequest, context: Any) -> Iterator[bytes]:
        config = request.config
        if request.size is not None:
            _check(request.size, context)
        cwd = self._directory(config, context)
        try:
            process = Process(config.command, cwd, _environment(config), request.size)
        except commands.NotStarted as error:
            _not_started(error, context)
        finally:
            os.close(cwd)
        number = self.processes.add(process)
        try:
            yield messages.started(number)
            for piece in process.output(context.is_active):
                yield messages.output(piece.data, error=piece.error)
            yield messages.ended(process.code)
        finally:
            self.processes.remove(number)
            process.end()

    def write_stdin(self, request: messages.WriteStdinRequest, context: Any) -> bytes:
        try:
            self.processes.get(request.process).write(request.data, context.is_active)
        except (UnknownProcess, BrokenPipeError) as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return b""

    def send_signal(self, request: messages.SignalRequest, context: Any) -> bytes:
        if request.signal not in SIGNALS:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "only SIGINT, SIGKILL and SIGTERM can be sent")
        try:
            self.processes.get(request.process).signal(request.signal)
        except UnknownProcess as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return b""

    def resize(self, request: messages.ResizeRequest, context: Any) -> bytes:
        _check(request.size, context)
        try:
            self.processes.get(request.process).resize(*request.size)
        except UnknownProcess as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except NoTerminal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the process has no terminal")
        return b""

    def _directory(self, config: messages.ProcessConfig, context: Any) -> int:
        """Open the working directory of the process. Aborts the call if the command is empty."""
        if not config.command:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the command is empty")
        try:
            return self.root.open(config.cwd or "", os.O_RDONLY | os.O_DIRECTORY)
        except PathEscape:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "the working directory leads out of the root directory")
        except OSError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, f"the working directory: {error.strerror}")
        raise AssertionError  # abort does not return


def _environment(config: messages.ProcessConfig) -> dict[str, str]:
    return {**os.environ, **config.env}


def _check(size: messages.Size, context: Any) -> None:
    if max(size) > _MAX_TERMINAL_SIZE:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a terminal has at most {_MAX_TERMINAL_SIZE} columns and rows")


def _not_started(error: commands.NotStarted, context: Any) -> NoReturn:
    match error.__cause__:
        case FileNotFoundError() | NotADirectoryError():
            code = grpc.StatusCode.NOT_FOUND
        case PermissionError():
            code = grpc.StatusCode.PERMISSION_DENIED
        case ValueError():
            code = grpc.StatusCode.INVALID_ARGUMENT
        case _:
            code = grpc.StatusCode.INTERNAL
    context.abort(code, str(error))
    raise AssertionError  # abort does not return
