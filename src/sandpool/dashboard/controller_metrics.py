"""Reads metrics of the controllers in the Prometheus format: writes, conflicts, throttling, depth of work queues."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import aiohttp

from sandpool.api.metrics import CLAIM_CREATIONS
from sandpool.engine.transports import REQUESTS
from sandpool.engine.workqueue.metrics import QUEUE_DEPTH

_log = logging.getLogger(__name__)

_SECONDS: Final = 3.0
_MAX_BYTES: Final = 16 << 20
_SERIES: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([0-9eE+.\-]+|NaN|[+-]Inf)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_CREATE: Final = "POST"
_WRITES: Final = frozenset({_CREATE, "PUT", "PATCH", "DELETE"})


class Series(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class ControllerMetrics:
    """Reads the metrics page of the controllers. ``latest`` is None while there is none."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.latest: dict[str, Any] | None = None
        self._session: aiohttp.ClientSession | None = None

    async def refresh(self) -> None:
        """Read the page. A page that cannot be read leaves ``latest`` empty."""
        if self.url is None:
            return
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS))
        try:
            async with self._session.get(self.url, allow_redirects=False) as response:
                response.raise_for_status()
                text = (await response.content.read(_MAX_BYTES)).decode(errors="replace")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if self.latest is not None:
                _log.warning("cannot read the metrics at %s: %s", self.url, error)
            self.latest = None
            return
        self.latest = summary(text)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def summary(text: str) -> dict[str, Any]:
    """The numbers that the dashboard shows, from a metrics page."""
    writes = conflicts = throttled = claims = 0.0
    depth: dict[str, float] = {}
    for series in parse(text):
        if series.name == REQUESTS.name:
            if series.labels.get("method") in _WRITES:
                writes += series.value
                # A 409 of a creation is AlreadyExists: the name is taken, and no other writer was ahead.
                is_conflict = series.labels.get("code") == "409" and series.labels.get("method") != _CREATE
                conflicts += series.value * is_conflict
            throttled += series.value * (series.labels.get("code") == "429")
        elif series.name == QUEUE_DEPTH.name:
            name = series.labels.get("controller", "")
            depth[name] = depth.get(name, 0.0) + series.value
        elif series.name == CLAIM_CREATIONS.name:
            claims += series.value
    return {"writes": writes, "conflicts": conflicts, "throttled": throttled, "claims": claims, "depth": depth}


def parse(text: str) -> Iterator[Series]:
    """The series of a page in the text format."""
    for line in text.splitlines():
        if (match := _SERIES.match(line)) is not None:
            name, labels, value = match.groups()
            yield Series(name, dict(_LABEL.findall(labels or "")), float(value))
