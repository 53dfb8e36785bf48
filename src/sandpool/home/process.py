"""Identity of a process: its id alone can be reused, together with boot and start time it cannot."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """``started`` is in clock ticks since boot."""

    pid: int
    started: int
    boot: str

    @classmethod
    def current(cls) -> ProcessIdentity:
        return cls(os.getpid(), _started(os.getpid()), _boot())

    def is_running(self) -> bool:
        """Whether this very process runs. A zombie does not."""
        try:
            return _boot() == self.boot and _started(self.pid) == self.started
        except (FileNotFoundError, ProcessLookupError):
            return self._is_hidden()

    def owner(self) -> int | None:
        """Return the user of the process, None if unknown."""
        try:
            return os.stat(f"/proc/{self.pid}").st_uid
        except OSError:
            return None

    def _is_hidden(self) -> bool:
        """Whether the process exists but /proc (mounted with hidepid) does not show it to this user."""
        if os.path.exists(f"/proc/{self.pid}"):
            return False  # a zombie
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return True
        except OSError:
            return False
        return False


def _boot() -> str:
    return _BOOT.read_text().strip()


def _started(pid: int) -> int:
    """Return the start time. Raises ``FileNotFoundError`` or ``ProcessLookupError`` if no such process runs."""
    # The command name, in parentheses, may contain spaces and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return int(fields[19])
