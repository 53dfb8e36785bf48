"""The files of audit logs and reconcile logs, with those that were rotated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandpool.explain.calls import is_reconcile


@dataclass(frozen=True, slots=True)
class LogFiles:
    """``audit`` are logs of API servers, ``controllers`` logs that contain reconciles among other lines."""

    audit: Sequence[Path]
    controllers: Sequence[Path] = ()

    def paths(self) -> list[Path]:
        """All files of the audit logs, oldest first."""
        return [file for log in self.audit for file in with_rotated(log)]

    def lines(self) -> Iterator[bytes]:
        """All lines about calls and reconciles. Raises ``OSError``."""
        for path in self.paths():
            with path.open("rb") as file:
                yield from file
        yield from self.reconciles()

    def reconciles(self) -> Iterator[bytes]:
        """The reconciles in the logs of controllers. Raises ``OSError``."""
        for path in (file for log in self.controllers for file in with_rotated(log)):
            with path.open("rb") as file:
                yield from filter(is_reconcile, file)


def with_rotated(log: Path) -> list[Path]:
    """The rotated files (``FILE.2``, ``FILE.1``) and the file, oldest first."""
    older: list[Path] = []
    while (path := Path(f"{log}.{len(older) + 1}")).exists():
        older.append(path)
    return [*reversed(older), log]
