"""Resource limits and usage of a cgroup."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """None means that no limit is set: that of the parent applies."""

    cpu: float | None = None  # cores, at most
    cpu_request: float | None = None  # cores; the share under contention
    memory: int | None = None  # bytes, with files in memory; above it all processes of the cgroup are killed
    pids: int | None = None  # processes and threads


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_nanoseconds: int  # since the cgroup was made
    memory_bytes: int
    working_set_bytes: int  # memory without inactive file pages, as Kubernetes defines the working set
    pids: int
