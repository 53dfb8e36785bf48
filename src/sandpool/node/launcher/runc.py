"""Containers that runc makes: how it is kept from our cgroups, and from staying.

**Cgroups.** runc makes cgroups for its container wherever it finds hierarchies, and fails where it finds none. It can
be told that it need not succeed (``--rootless``), as long as it is to set no limits and is given no path. So it finds,
where it looks for the unified hierarchy, a cgroup that cannot be written to (``Stage.cgroup``), gives up, and the
container stays in the cgroups that this process is in already.

**Watching.** crun waits for its container. runc could, but is written in Go: its nine threads would count as processes
of the container, it would break down when it needs one more and the container has used up what it may have, and it
would copy all that the container writes. So it is told to go when the container runs. This process, a fork of the
launcher's, inherits the container then, waits for it and writes down how it ended.
"""

from __future__ import annotations

import json
import os
from typing import Final, NoReturn

from sandpool.node.launcher import syscalls
from sandpool.node.launcher.bundle import BUNDLE, NAME, STATE

_OPTIONS: Final = (f"--root={STATE}", "--log=/log", "--rootless=true")
# While the container starts, threads of runc count as its processes.
_ENVIRONMENT: Final = {"GOMAXPROCS": "1"}
_FAILED: Final = 1


def run_and_watch(program: str, status: int, report: int) -> NoReturn:
    """``report`` is closed when runc is executed. What that complains about is on standard error."""
    syscalls.adopt_orphans()
    runc = os.fork()
    if runc == 0:
        os.close(status)
        os.execve(program, ["runc", *_OPTIONS, "run", "--detach", f"--bundle={BUNDLE}", NAME], _ENVIRONMENT)
    os.close(report)
    _, ended = os.waitpid(runc, 0)
    if ended != 0:
        os._exit(_FAILED)
    _, ended = os.wait()  # all that runc has left
    code = os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else 128 + os.WTERMSIG(ended)
    os.write(status, json.dumps({"exit-code": code}).encode() + b"\n")
    os._exit(code)
