"""One API under test or under load, whatever carries its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from sandpool.kube.client import Client
from sandpool.testing.control_plane import ADMIN


@dataclass(frozen=True)
class Answer:
    """An HTTP answer as it came, for tests of what a ``Client`` hides: headers, media types, exact bodies."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    warnings: tuple[str, ...] = ()  # the Warning headers, of which there may be several

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    def json(self) -> Any:
        return orjson.loads(self.body)

    def lines(self) -> list[Any]:
        """The events of a watch that has ended."""
        return [orjson.loads(line) for line in self.body.splitlines()]


class Endpoint(Protocol):
    name: str
    client: Client  # as the administrator

    def client_for(self, user: str) -> Client:
        """A client that acts as one of the users the endpoint was set up with."""
        ...

    async def raw(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        user: str | None = ADMIN,
    ) -> Answer:
        """Send exactly this and return exactly what came back. ``target`` is the path with its query, encoded; a
        user of None sends no credentials."""
        ...

    async def forget_history(self) -> None:
        """Drop what continue tokens and watches from old versions are answered with, as time alone would."""
        ...

    async def close(self) -> None: ...
