"""The result of a command, with its output as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from sandpool.kube import pod_client
from sandpool.sdk.errors import TaskError
from sandpool.service.commands import KeptOutput

#: Bytes that are kept of each of standard output and standard error.
MAX_OUTPUT: Final = 1 << 20
_SHOWN: Final = 2000  # characters of output in an error


class Output(NamedTuple):
    """A piece of output as it arrives. ``stream`` is "stdout" or "stderr"."""

    stream: str
    data: bytes

    @property
    def text(self) -> str:
        """The data as text. Bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")

    @classmethod
    def of(cls, piece: pod_client.Output) -> Self:
        """Take a piece from the stream of an exec request."""
        return cls("stderr" if piece.stream == pod_client.STDERR else "stdout", piece.data)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a command. Output beyond the limit was dropped and counted. The exit code of a command that was
    killed after its timeout is -1."""

    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    timed_out: bool = False
    stdout_dropped: int = 0  # bytes
    stderr_dropped: int = 0

    @classmethod
    def of(cls, exit_code: int, stdout: KeptOutput, stderr: KeptOutput, timed_out: bool = False) -> Self:
        """Combine an exit code with the output that was kept."""
        return cls(exit_code, stdout.content, stderr.content, timed_out, stdout.dropped, stderr.dropped)

    @property
    def truncated(self) -> bool:
        """Whether output is missing."""
        return bool(self.stdout_dropped or self.stderr_dropped)

    @property
    def stdout_size(self) -> int:
        """The number of bytes that the command wrote to standard output."""
        return len(self.stdout_bytes) + self.stdout_dropped

    @property
    def stderr_size(self) -> int:
        """The number of bytes that the command wrote to standard error."""
        return len(self.stderr_bytes) + self.stderr_dropped

    @property
    def stdout(self) -> str:
        """Standard output as text. Bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error as text. Bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode(errors="replace")

    @property
    def ok(self) -> bool:
        """Whether the command ended with exit code 0."""
        return self.exit_code == 0

    def check(self) -> Self:
        """Return the result, or raise ``TaskError`` if the command failed."""
        if self.ok:
            return self
        output = (self.stderr.strip() or self.stdout.strip())[-_SHOWN:]
        what = "took longer than allowed and was killed" if self.timed_out else f"ended with exit code {self.exit_code}"
        raise TaskError(f"the command {what}" + (f":\n{output}" if output else ""), self)
