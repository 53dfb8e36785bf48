"""What tests read from cgroups that the node itself waits for."""

from __future__ import annotations

from contextlib import suppress

from sandpool.node.cgroups.hierarchy import Cgroup


def is_populated(cgroup: Cgroup) -> bool:
    """Whether the cgroup or a descendant has processes."""
    with suppress(FileNotFoundError):
        return "populated 1" in (cgroup.directory / "cgroup.events").read_text()
    return False
