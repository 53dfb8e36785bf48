"""Background processes in a sandbox: they outlive the program that started them, which finds them again by their ID.

``sh`` of the image runs them, so that they work for every image that has one. The directory of a process holds its
output, its exit code and a named pipe for its standard input.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final

from sandpool.sdk.errors import Diagnosis, SandpoolError
from sandpool.sdk.results import MAX_OUTPUT, Output, Result
from sandpool.service.commands import Command, Commands, KeptOutput
from sandpool.service.sandboxes import Sandbox

_DIRECTORY: Final = "/tmp/.sandpool-processes"  # in the sandbox, which has one user
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

# Exit codes of the scripts.
_ENDED: Final = 10
_LOST: Final = 11
_UNKNOWN: Final = 12
_EXISTS: Final = 13

# A pipe without a writer would end the input at once, so the holder keeps it open. A shell has its background processes
# ignore SIGINT; only env of coreutils can undo that.
_START: Final = f"""
d=$0
mkdir -p -m 700 "${{d%/*}}" && {{ mkdir -m 700 "$d" 2>/dev/null || exit {_EXISTS}; }} && mkfifo "$d/in" || exit 1
: >"$d/out"; : >"$d/err"
setsid sh -c '
d=$0
sleep 2147483647 0<>"$d/in" >/dev/null 2>&1 &
echo $! >"$d/holder"
echo $$ >"$d/supervisor.new" && mv "$d/supervisor.new" "$d/supervisor"
env --default-signal=INT,QUIT true 2>/dev/null && set -- env --default-signal=INT,QUIT "$@"
sh -c "echo \\$\\$ >\\"\\$0/pid\\"; exec setsid \\"\\$@\\"" "$d" "$@" <"$d/in" >>"$d/out" 2>>"$d/err"
echo $? >"$d/code.new"
kill "$(cat "$d/holder")" 2>/dev/null
mv "$d/code.new" "$d/code"
' "$d" "$@" </dev/null >/dev/null 2>&1 &
while [ ! -e "$d/supervisor" ]; do sleep 0.01 2>/dev/null || sleep 1; done
"""
# Waits until there is output after the given positions, or the end.
_FOLLOW: Final = f"""
[ -e "$0/supervisor" ] || exit {_UNKNOWN}
pause=0.02
while :; do
  state=0
  kill -0 "$(cat "$0/supervisor")" 2>/dev/null || state={_LOST}
  [ ! -e "$0/code" ] || state={_ENDED}
  [ "$(wc -c <"$0/out")" -le "$1" ] && [ "$(wc -c <"$0/err")" -le "$2" ] && [ "$state" = 0 ] && [ -n "$3" ] || break
  sleep $pause 2>/dev/null || sleep 1
  case $pause in 0.02) pause=0.05;; 0.05) pause=0.1;; *) pause=0.25;; esac
done
tail -c "+$(($1 + 1))" "$0/out"
tail -c "+$(($2 + 1))" "$0/err" >&2
exit $state
"""
_CODE: Final = 'exec cat "$0/code"'
_SEND: Final = f'[ -e "$0/supervisor" ] || exit {_UNKNOWN}; [ ! -e "$0/code" ] || exit {_ENDED}; exec cat >"$0/in"'
_END_INPUT: Final = f'[ -e "$0/supervisor" ] || exit {_UNKNOWN}; kill "$(cat "$0/holder")" 2>/dev/null; exit 0'
_KILL: Final = f"""
[ -e "$0/supervisor" ] || exit {_UNKNOWN}
[ ! -e "$0/code" ] || exit 0
kill -"$1" -"$(cat "$0/pid")" 2>/dev/null || kill -"$1" "$(cat "$0/pid")" 2>/dev/null || exit 0
"""
_LIST: Final = f'cd {_DIRECTORY} 2>/dev/null || exit 0; for p in *; do [ ! -e "$p/supervisor" ] || echo "$p"; done'


class ProcessLost(SandpoolError):
    """The process is gone and left no exit code: the sandbox was suspended, or the shell around it was killed."""


class AsyncProcess:
    """A background process. It ends with its sandbox, not with this program."""

    def __init__(self, commands: Commands, sandbox: Sandbox, diagnosed: Diagnosis, process_id: str) -> None:
        self._commands = commands
        self._sandbox = sandbox
        self._diagnosed = diagnosed
        self.id = process_id

    async def wait(
        self,
        timeout: float | None = None,
        *,
        stream: Callable[[Output], None] | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Result:
        """Wait for the end and return the outcome, with the output since the start. ``stream`` receives all of it as
        it arrives. After ``timeout`` seconds the outcome so far is returned with ``timed_out``; the process goes on."""
        return await self._read(stream, max_output, timeout, follow=True)

    async def logs(self, *, max_output: int = MAX_OUTPUT) -> Result:
        """The output so far. The exit code of a process that still runs is -1."""
        return await self._read(None, max_output, None, follow=False)

    async def running(self) -> bool:
        """Whether it still runs. Raises ``ProcessLost`` if it is gone without an exit code."""
        return (await self.logs(max_output=0)).exit_code == -1

    async def send(self, data: str | bytes) -> None:
        """Write to its standard input."""
        given = data.encode() if isinstance(data, str) else data
        if (await self._script(_SEND, stdin=given)).exit_code == _ENDED:
            raise SandpoolError(f'process "{self.id}" has ended and reads no more input')

    async def end_input(self) -> None:
        """End its standard input."""
        await self._script(_END_INPUT)

    async def kill(self, signal: str = "KILL") -> None:
        """Send a signal, by its name without SIG, to the process and its children. Does nothing after its end."""
        if not re.fullmatch(r"[A-Z][A-Z0-9]*", signal):
            raise ValueError(f'no signal name: "{signal}"; use a name such as TERM, INT or KILL')
        await self._script(_KILL, signal)

    async def _read(
        self, stream: Callable[[Output], None] | None, max_output: int, timeout: float | None, *, follow: bool
    ) -> Result:
        out, err = KeptOutput(max_output), KeptOutput(max_output)

        def receive(piece: Output) -> None:
            (err if piece.stream == "stderr" else out).add(piece.data)
            if stream is not None:
                stream(piece)

        code, timed_out = -1, False
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = None if deadline is None else max(deadline - loop.time(), 0.0)
            positions = (str(out.size), str(err.size), "follow" if follow else "")
            result = await self._script(_FOLLOW, *positions, timeout=left, stream=receive)
            timed_out = result.timed_out
            if result.exit_code == _LOST:
                raise ProcessLost(f'process "{self.id}" is gone and left no exit code', "Start it again.")
            if result.exit_code == _ENDED:
                code = int((await self._script(_CODE)).stdout_bytes)
            if timed_out or not follow or result.exit_code == _ENDED:
                break
        return Result.of(code, out, err, timed_out)

    async def _script(
        self,
        script: str,
        *arguments: str,
        stdin: bytes | None = None,
        timeout: float | None = None,
        stream: Callable[[Output], None] | None = None,
    ) -> Result:
        command = Command(("sh", "-c", script, f"{_DIRECTORY}/{self.id}", *arguments))
        on_output = None if stream is None else lambda piece: stream(Output.of(piece))
        async with self._diagnosed():
            done = await self._commands.run(
                self._sandbox, command, stdin=stdin, timeout=timeout, max_output=1 << 16, stream=on_output
            )
        if done.exit_code == _UNKNOWN:
            raise SandpoolError(f'the sandbox has no process "{self.id}"', "sandbox.processes() lists them.")
        return Result(*done)


class AsyncProcesses:
    """The background processes of one sandbox."""

    def __init__(self, commands: Commands, sandbox: Sandbox, diagnosed: Diagnosis = nullcontext) -> None:
        self._commands = commands
        self._sandbox = sandbox
        self._diagnosed = diagnosed

    async def start(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,  # noqa: A002
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AsyncProcess:
        """Start a command in the background; see ``AsyncSandbox.start``. Raises ``SandpoolError``."""
        process = self.get(secrets.token_hex(6) if id is None else id)
        words = ("sh", "-c", command) if isinstance(command, str) else tuple(command)
        if not words or not words[0]:
            raise ValueError("the command is empty")
        started = Command(("sh", "-c", _START, f"{_DIRECTORY}/{process.id}", *words), env=env, cwd=cwd)
        async with self._diagnosed():
            done = await self._commands.run(self._sandbox, started, max_output=1 << 16)
        if done.exit_code == _EXISTS:
            raise SandpoolError(
                f'the sandbox already has a process "{process.id}"', "sandbox.process(id) finds it; or choose another."
            )
        if done.exit_code != 0:
            reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
            raise SandpoolError(f"cannot start a background process in the sandbox: {reason}")
        return process

    def get(self, process_id: str) -> AsyncProcess:
        """Return the process with this ID, without asking the sandbox for it. Raises ``ValueError`` for no valid ID."""
        if not _ID.fullmatch(process_id):
            raise ValueError(f'no ID of a process: "{process_id}"; use up to 63 letters, digits, ".", "_" and "-"')
        return AsyncProcess(self._commands, self._sandbox, self._diagnosed, process_id)

    async def list(self) -> list[AsyncProcess]:
        """List the background processes, including those that have ended."""
        async with self._diagnosed():
            listed = await self._commands.run(self._sandbox, Command(("sh", "-c", _LIST)), max_output=1 << 20)
        names = listed.stdout.decode(errors="replace").splitlines()
        return [self.get(name) for name in names if _ID.fullmatch(name)]
