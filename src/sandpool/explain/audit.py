"""Read the requests to an API from its audit log while the log grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from sandpool.explain.calls import is_reconcile
from sandpool.explain.request import WRITES, AuditedRequest, request_of_kubernetes, request_of_sandpool

__all__ = ["WRITES", "Audit", "AuditedRequest", "request_of_kubernetes", "request_of_sandpool"]


class Audit:
    """The audit log at ``path``. ``flush`` makes the server write buffered lines."""

    def __init__(
        self, path: Path, parse: Callable[[Any], AuditedRequest], flush: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        self._parse = parse
        self._flush = flush
        self._read = 0  # bytes read so far, up to the end of a line
        self._requests: list[AuditedRequest] = []

    def __len__(self) -> int:
        return len(self.requests())

    def requests(
        self, *, since: int = 0, namespace: str | None = None, user: str | None = None
    ) -> list[AuditedRequest]:
        """The requests in the order of their responses. ``since`` is an earlier ``len``."""
        self._flush()
        with self.path.open("rb") as file:
            file.seek(self._read)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._read += len(complete) + len(newline)
        lines = (line for line in complete.splitlines() if not is_reconcile(line))
        self._requests += [self._parse(orjson.loads(line)) for line in lines]
        return [
            each for each in self._requests[since:] if namespace in (None, each.namespace) and user in (None, each.user)
        ]
