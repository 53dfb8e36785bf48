"""What a cgroup may use, and what it has used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """None means that nothing is set: the limit of what is around it holds."""

    cpu: float | None = None  # cores, of which no more than these are given
    cpu_request: float | None = None  # cores; the share when there is not enough for everybody
    memory: int | None = None  # bytes, files in memory included; beyond it everything in the cgroup is killed
    pids: int | None = None  # processes and threads


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_nanoseconds: int  # since the cgroup was made
    memory_bytes: int
    working_set_bytes: int  # memory without files that could be dropped at once; what Kubernetes calls the working set
    pids: int
