"""What an API was asked and by whom, read from its audit log while that grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from sandpool.explain.asked import WRITES, Asked, asked_of_kubernetes, asked_of_sandpool
from sandpool.explain.calls import is_pass

__all__ = ["WRITES", "Asked", "Audit", "asked_of_kubernetes", "asked_of_sandpool"]


class Audit:
    """The log at ``path``. ``flush`` makes the server write what it has."""

    def __init__(self, path: Path, parse: Callable[[Any], Asked], flush: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._parse = parse
        self._flush = flush
        self._read = 0  # bytes of the file, all of them whole lines
        self._asked: list[Asked] = []

    def __len__(self) -> int:
        return len(self.asked())

    def asked(self, *, since: int = 0, namespace: str | None = None, user: str | None = None) -> list[Asked]:
        """Requests in the order in which they were answered. ``since`` is what ``len`` said before."""
        self._flush()
        with self.path.open("rb") as file:
            file.seek(self._read)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._read += len(complete) + len(newline)
        lines = (line for line in complete.splitlines() if not is_pass(line))
        self._asked += [self._parse(orjson.loads(line)) for line in lines]
        return [
            each for each in self._asked[since:] if namespace in (None, each.namespace) and user in (None, each.user)
        ]
