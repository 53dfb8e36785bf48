"""The children of a process, by what they run."""

from __future__ import annotations

from pathlib import Path


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
