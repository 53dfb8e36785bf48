"""What an agent must know of a pod that it did not start itself, on disk next to the pod's containers.

It is written before a container is started that it tells of, and replaced as a whole, so a reader finds the old or the
new one whatever happens in between. It need not survive a crash of the machine: nothing else of a running pod does.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

_FILE: Final = "pod.json"


@dataclass(frozen=True, slots=True)
class Run:
    """The last run of a container."""

    id: str
    image_id: str
    restarts: int
    started: str  # RFC 3339


@dataclass(frozen=True, slots=True)
class Ledger:
    uid: str
    namespace: str
    name: str
    host_uid: int
    runtime: str
    hostname: str
    netns: str = ""
    addresses: tuple[str, ...] = ()
    runs: dict[str, Run] = field(default_factory=dict)

    def with_run(self, container: str, run: Run) -> Ledger:
        return replace(self, runs={**self.runs, container: run})

    def write(self, directory: Path) -> None:
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        draft = directory / f".{_FILE}"
        draft.write_bytes(msgspec.json.encode(asdict(self)))
        os.replace(draft, directory / _FILE)


def read_ledger(directory: Path) -> Ledger | None:
    """None if there is none, or nothing that makes sense: then nothing was ever started."""
    try:
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=Ledger)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None
