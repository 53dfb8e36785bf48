"""The mark on a volume: which one it is, and whether its objects come from a backup.

A cluster remembers the volume of its sandboxes by this mark (``server.aggregated.volume_record``). A copy of a volume
has the same mark and an older revision. A restored volume has the mark of the one that was backed up, and a revision
far above that of the backup, which says nothing about what it has; so the mark has the revision of the backup, too.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from sandpool.server.auth.private_files import write_private

#: The name of the file in a data directory.
VOLUME_MARK: Final = "volume"


@dataclass(frozen=True, slots=True)
class VolumeMark:
    """``restored`` is the revision of the backup that the objects come from, and None once the cluster accepted it."""

    id: str
    restored: int | None = None

    @classmethod
    def new(cls) -> VolumeMark:
        return cls(str(uuid.uuid4()))

    @classmethod
    def read(cls, data_dir: Path) -> VolumeMark | None:
        try:
            return cls(**orjson.loads((data_dir / VOLUME_MARK).read_bytes()))
        except FileNotFoundError:
            return None

    def write(self, data_dir: Path) -> None:
        """Write the file; it is durable when this returns."""
        write_private(data_dir / VOLUME_MARK, orjson.dumps(asdict(self)))

    def from_backup(self, revision: int) -> VolumeMark:
        """The mark of a volume that is restored from a backup of this one."""
        return replace(self, restored=revision if self.restored is None else min(self.restored, revision))
