"""What a container started by bwrap has left to be found: its processes, and how it ended.

bwrap is three processes. The *watcher* is outside, waits for the program to end and writes its exit code to the status
file, wherever the agent is by then. *init* is the first process of the container's PID namespace and reaps orphans. The
*program* is what the container was made for, the second process of that namespace. All are in the container's cgroup,
and a PID that is not in there is somebody else's by now.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sandpool.node.cgroups.tree import Cgroup

_PROGRAM: Final = 2  # its PID inside


class Trace:
    def __init__(self, status: Path, cgroup: Cgroup) -> None:
        self.status = status
        self.cgroup = cgroup

    def exit_code(self) -> int | None:
        """Of the program, if it was executed and has ended. One that was killed with everything has none."""
        code = self._reported("exit-code")
        return None if code is None else int(code)

    def init(self) -> int | None:
        pid = self._reported("child-pid")
        return pid if pid is not None and pid in self.cgroup.processes() else None

    def watcher(self) -> int | None:
        init = self.init()
        if init is None:
            return None
        pid = _field(init, "PPid")
        return pid if pid in self.cgroup.processes() else None

    def is_executed(self) -> bool:
        """Whether the program is what it is going to be, and no longer a part of bwrap on the way there."""
        init, program = self.init(), self.program()
        if init is None or program is None:
            return False
        with suppress(OSError):
            return not os.path.samefile(f"/proc/{init}/exe", f"/proc/{program}/exe")
        return False

    def program(self) -> int | None:
        init = self.init()
        if init is None:
            return None
        with suppress(OSError):
            children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
            return next((int(pid) for pid in children if _field(int(pid), "NSpid") == _PROGRAM), None)
        return None

    def _reported(self, key: str) -> Any:
        """bwrap writes one document per line, in pieces; half a line is not there yet."""
        with suppress(FileNotFoundError):
            for line in self.status.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    with suppress(ValueError):
                        found = json.loads(line)
                        if key in found:
                            return found[key]
        return None


def _field(pid: int, name: str) -> int | None:
    """The last number of a line of a process's status; of NSpid that is the innermost."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[-1])
    return None
