"""The record of a pod for an agent that did not start it, kept on disk beside the pod's containers.

One file describes the pod and is written before anything is made for it. One file per run of a container is written
before the run starts. Each is written once, under a temporary name first, so a reader finds all of it or nothing. No
file is ever replaced, because file systems wait for the disk in that case. The files need not survive a crash of the
machine: no other part of a running pod does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

_FILE: Final = "pod.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
# A name no container can have.
_RUNS: Final = "_runs"


@dataclass(frozen=True, slots=True)
class PodCheckpoint:
    """Identity of a pod, its host user and its runtime."""

    uid: str
    namespace: str
    name: str
    host_uid: int
    runtime: str

    def write(self, directory: Path) -> None:
        (directory / _RUNS).mkdir(mode=0o711, parents=True, exist_ok=True)
        _write(directory / _FILE, self)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a container."""

    id: str
    image_id: str
    restarts: int
    started: str  # RFC 3339
    boot: str = ""  # boot ID of the machine; empty if unknown

    @property
    def is_of_another_boot(self) -> bool:
        """Whether the machine has rebooted since. Then the run has ended, whatever uses its process IDs today."""
        return self.boot not in ("", boot_id())

    def write(self, directory: Path, container: str) -> None:
        """Write to the pod's directory and delete the files of earlier runs."""
        before = _files(directory, container)
        _write(directory / _RUNS / f"{container}.{self.restarts}", self)
        for file in before:
            if file.name != f"{container}.{self.restarts}":
                file.unlink(missing_ok=True)


@cache
def boot_id() -> str:
    return _BOOT.read_text().strip()


def read_checkpoint(directory: Path) -> PodCheckpoint | None:
    """Return the checkpoint of a pod directory, or None if there is none: then nothing was made for the pod."""
    try:
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=PodCheckpoint)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def read_run(directory: Path, container: str) -> Run | None:
    """Return the last run of a container, or None if it never ran."""
    files = sorted(_files(directory, container), key=lambda file: int(file.suffix[1:]))
    try:
        return msgspec.json.decode(files[-1].read_bytes(), type=Run) if files else None
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _files(directory: Path, container: str) -> list[Path]:
    return [file for file in (directory / _RUNS).glob(f"{container}.*") if file.suffix[1:].isdecimal()]


def _write(path: Path, record: PodCheckpoint | Run) -> None:
    draft = path.with_name(f".{path.name}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        file.write(msgspec.json.encode(record))
    draft.rename(path)
