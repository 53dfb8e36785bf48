"""Runs runc so that it leaves the cgroups alone and exits once the container runs.

**Cgroups.** runc makes cgroups for its container in every hierarchy it finds, and fails where it finds none. The option
``--rootless`` makes that failure acceptable, as long as runc has no limits to set and no cgroup path. So runc is shown
a cgroup that it cannot write to where it looks for the unified hierarchy (``Rootfs.cgroup``). It gives up, and the
container stays in the cgroups of this process.

**Watching.** crun waits for its container. runc could, too, but it is written in Go: its nine threads would count as
processes of the container, it would crash when it needs one more at the container's limit, and it would copy all output
of the container. It is therefore run detached. This process, a fork of the launcher, inherits the container, waits for
it and writes its exit code.
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
    """Run runc, then wait for the container; does not return. ``report`` is closed when runc was executed, which writes
    its errors to standard error."""
    syscalls.adopt_orphans()
    runc = os.fork()
    if runc == 0:
        os.close(status)
        os.execve(program, ["runc", *_OPTIONS, "run", "--detach", f"--bundle={BUNDLE}", NAME], _ENVIRONMENT)
    os.close(report)
    _, ended = os.waitpid(runc, 0)
    if ended != 0:
        os._exit(_FAILED)
    _, ended = os.wait()  # for the container, the one process that runc leaves
    code = os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else 128 + os.WTERMSIG(ended)
    os.write(status, json.dumps({"exit-code": code}).encode() + b"\n")
    os._exit(code)
