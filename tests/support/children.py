"""The children of a process: by what they run, and with which privileges."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_OPENED = """
import os, sys
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
for path in sys.argv[2:]:
    try:
        open(path).close()
    except PermissionError:
        continue
    print(path)
"""


def children_of(parent: int, module: str) -> dict[str, int]:
    """Command lines with their PIDs, of those that run a module of ours."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            line = (path.parent / "cmdline").read_text().replace("\0", " ")
            if module in line and int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found[line] = int(path.parent.name)
        except OSError:
            continue
    return found


def status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def check_confined(pid: int) -> None:
    """Fail unless each thread of a process has no capabilities and filters, and as root a user of its own."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found = status(int(thread.name))
        assert {found[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
        assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
        if os.getuid() == 0:
            assert found["CapBnd"] == "0" * 16
            (uid,), (gid,) = set(found["Uid"].split()), set(found["Gid"].split())
            assert int(uid) not in (0, 65534) and int(gid) not in (0, 65534)
            assert found["Groups"].split() == []
        else:
            assert found["Uid"].split() == [str(os.getuid())] * 4
    assert os.getsid(pid) == pid


def opened_by(uid: str, files: Iterable[Path]) -> list[str]:
    """Those of these files that a user can open. Needs root."""
    command = [sys.executable, "-c", _OPENED, uid, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def open_files(pid: int) -> list[str]:
    """The files that a process has open, without its standard input and output."""
    targets = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return [each for each in targets if each.startswith("/") and each != "/dev/null"]
